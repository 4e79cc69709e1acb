// The exchange on a Redis server (7 or later, or what speaks its protocol), for jobs on many machines.
//
// Below PREFIX of the URI, P:
//   P:x          a random word, made with the exchange; another, or none, and the server has lost what was there
//   P:h:a/b      hash: c -> the value of key a/b/c
//   P:s:a/b      set: names of the directories below a/b that have been there, as a directory's would be
//   P:v:a/b      stream, added to with each change of a key directly below a/b: the id of its last entry is the token
//                of watch(), and XREAD BLOCK wakes all who wait for the next, without polling. Some hundred are kept
//   P:b:a/b/c    set: who has entered barrier a/b/c.  P:w:a/b/c: for how many somebody waits. P:o:a/b/c: stream of
//                one entry, added to when so many are there, with their number
//   P:e:a/b      set: names of the barriers directly below a/b, so that they can be removed
// What changes more than one of these is done by one script on the server (redis_script.h), so that all see it whole.
//
// Every operation checks P:x. A connection that breaks fails the operation under way (kIo), of which nobody knows
// whether it took place; the next makes a new one.
#pragma once

#include <memory>
#include <string>

#include "shadowib/exchange/exchange.h"

namespace shadowib {

// kNotFound if there is none and not `create`; kPermission; kUsage; kIo.
Status open_redis_exchange(const std::string& uri, bool create, std::unique_ptr<Exchange>* exchange);

// remove_below() for it.
Status remove_below_in_redis(const std::string& uri, const std::string& prefix);

}  // namespace shadowib
