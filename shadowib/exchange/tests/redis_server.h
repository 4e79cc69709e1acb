// A Redis server for one test program: on a free port of the loopback, in a directory of its own, without any data on
// disk. It ends with this object, or with the thread that started it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace shadowib {

class RedisServer {
 public:
  // True if the program is there.
  static bool available();

  // Options as on its command line. With tls it hears nothing else. Fails the test if it does not begin.
  explicit RedisServer(std::vector<std::string> options = {}, bool tls = false);
  ~RedisServer();
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  std::uint16_t port() const { return port_; }
  // redis[s]://[who@]127.0.0.1:PORT/0/test
  std::string uri(const std::string& who = "") const;
  void kill(int signal) const;
  // Ends it at once, as if its machine had failed.
  void end();
  // Begins again on the same port, without what it held.
  void begin_again() { begin(); }

 private:
  bool begin();

  const std::vector<std::string> options_;
  const bool tls_;
  std::string directory_;
  std::uint16_t port_ = 0;
  pid_t pid_ = -1;
  int output_ = -1;
};

}  // namespace shadowib
