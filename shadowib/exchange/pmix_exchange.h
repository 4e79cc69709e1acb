// The exchange of a job below a launcher that speaks PMIx: a server of ours (exchange_server.h). The command of the
// launch's rank 0 starts it, and it ends with the launcher (cli/launched_exchange.h).
//
// PMIx's own keys cannot carry an exchange: of two that publish one key both succeed, so that nothing can be claimed;
// a look-up that waits, waits for ever; and a member has to ask while the program's threads stand still, libpmix's
// among them, without the program's heap. Nor can commands, which are no ranks, ask a launcher. The experiments stand
// in docs/internals/decisions/pmix-carries-nothing.md.
//
// Members get pmix://ADDRESS:PORT/PREFIX?password-file=PATH (redis_place.h). The server speaks Redis' protocol, so
// that its connections are those of redis:, but with words of its own. P: the prefix; several exchanges stand beside
// each other.
//   AUTH password                                 OK; before it nothing else is answered
//   OPEN P create                                 1; 0: there is none at P, and create is 0
//   PUBLISH P key value; REMOVE P key; DROP P directory    1
//   CLAIM P key value                             1; 0: it is taken
//   LOOKUP P key...                               a list of values and nils
//   LIST P directory                              a list of names
//   BARRIER P name member n timeout_ms abort-key  1: all are there; 0: the abort key is; -1: not in time
//   WATCH P directory token timeout_ms            the token by now, another than that; -1: not in time
#pragma once

#include <memory>
#include <string>

#include "shadowib/exchange/exchange.h"

namespace shadowib {

// kUsage: the URI is wrong, or one that only a command can turn into the above. kNotFound if there is none and not
// `create`; kPermission; kIo.
Status open_pmix_exchange(const std::string& uri, bool create, std::unique_ptr<Exchange>* exchange);

// remove_below() for it. Fine if the server is gone, and with it all that was there.
Status remove_below_in_pmix(const std::string& uri, const std::string& prefix);

}  // namespace shadowib
