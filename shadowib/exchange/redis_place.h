// Where a Redis server is, and how to be let in: what a URI of the kind redis: or, with TLS, rediss: says.
//
//   redis[s]://[USER[:PASSWORD]@]HOST[:PORT][/DB][/PREFIX][?OPTION=VALUE[&OPTION=VALUE...]]
// OPTION: password-file, and of rediss: ca, cert, key and server-name (tls_session.h). HOST: a numeric address (an
// IPv6 one in brackets) or localhost. A name is for commands, which turn it into a number (cli/exchange_place.h):
// members of a job cannot ask a resolver, which takes the program's heap and locks. PREFIX has the form of a key;
// what several jobs share stands apart by it, and by their epochs. %XX stands for any byte of USER, PASSWORD and
// VALUE. A password from a file is read when a connection is made, and kept nowhere: other memory goes into images.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shadowib/base/status.h"
#include "shadowib/exchange/tls_session.h"

namespace shadowib {

struct RedisPlace {
  // redis, rediss, or pmix: a server that a job's launcher has, which speaks the same (pmix_exchange.h).
  std::string scheme = "redis";
  std::string user, password, password_file, host, prefix = "shadowib";
  std::uint16_t port = 6379;
  int database = 0;
  TlsPlace tls;  // of rediss; without a server_name HOST is the name

  bool has_tls() const { return scheme == "rediss"; }
  bool is_redis() const { return scheme != "pmix"; }

  // The URI of it, which parses to the same.
  std::string uri() const;
  // For people: no password.
  std::string shown() const;
};

// Whether a URI is of this kind, whatever follows.
bool is_redis_uri(std::string_view uri);

// kUsage says what is wrong and repeats no password. A URI of the kind pmix: has no DB.
Status parse_redis_uri(const std::string& uri, RedisPlace* place);

}  // namespace shadowib
