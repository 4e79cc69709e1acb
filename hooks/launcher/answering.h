// Requests whose answers come later, and events, as far as the agent has to know of them (requests.h, events.h).
#pragma once

#include <string>

#include "shadowib/base/status.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib {

// The launcher is gone: what is listed is answered by us.
void wake_answering();
// kRefused names a listed request that could not be answered after a restart.
Status judge_requests();
void reset_requests_after_fork();

// Takes in what other ranks have told of events since the last time, if there is no launcher. Accepted events are in
// the image until the program has been told.
Status take_events(Exchange* exchange, const std::string& epoch);
// The rank has taken leave: the program hears of nothing more.
void forget_events();
void reset_events_after_fork();

}  // namespace shadowib
