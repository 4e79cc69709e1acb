// Where a Redis server is, and how to be let in: what a URI of the kind redis: says.
//
//   redis://[USER[:PASSWORD]@]HOST[:PORT][/DB][/PREFIX][?password-file=PATH]
// HOST: a numeric address (an IPv6 one in brackets) or localhost. A name is for commands, which turn it into a number
// (cli/exchange_place.h): members of a job cannot ask a resolver, which takes the program's heap and locks. PREFIX
// has the form of a key; what several jobs share stands apart by it, and by their epochs. %XX stands for any byte of
// USER and PASSWORD. A password from a file is read when a connection is made, and kept nowhere: other memory goes
// into images.
#pragma once

#include <cstdint>
#include <string>

#include "shadowib/base/status.h"

namespace shadowib {

struct RedisPlace {
  std::string scheme =
      "redis";  // or pmix: a server that a job's launcher has, which speaks the same (pmix_exchange.h)
  std::string user, password, password_file, host, prefix = "shadowib";
  std::uint16_t port = 6379;
  int database = 0;

  // The URI of it, which parses to the same.
  std::string uri() const;
  // For people: no password.
  std::string shown() const;
};

// kUsage says what is wrong and repeats no password; for rediss: why not, and what to do instead. A URI of the kind
// pmix: has no DB.
Status parse_redis_uri(const std::string& uri, RedisPlace* place);

}  // namespace shadowib
