// --network of run and restart: the addresses that ib2tcp listens on and connects from.
#pragma once

#include <string>

#include "shadowib/base/status.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/machine.h"

namespace shadowib::cli {

// Adds the option. Its default is $SHADOWIB_IB2TCP_NETWORK, which the command reads.
void add_network(Command* command, std::string* network);

// Refuses a network that this host is not in; the text lists its interfaces.
Status check_network(const std::string& network);

// For doctor: the addresses that ib2tcp would publish here.
Finding examine_network(const std::string& network);

}  // namespace shadowib::cli
