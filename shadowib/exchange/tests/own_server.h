// The server behind pmix:, in a process of its own for one test program; what a launcher does is left out. It ends
// with this object, or with the thread that started it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "shadowib/exchange/exchange_server.h"

namespace shadowib {

class OwnServer {
 public:
  OwnServer();
  ~OwnServer() { end(); }
  OwnServer(const OwnServer&) = delete;
  OwnServer& operator=(const OwnServer&) = delete;

  std::uint16_t port() const { return port_; }
  const std::string& password() const { return password_; }
  // pmix://:PASSWORD@127.0.0.1:PORT/test
  std::string uri() const { return "pmix://:" + password_ + "@127.0.0.1:" + std::to_string(port_) + "/test"; }
  void kill(int signal) const;
  // Ends it at once.
  void end();

 private:
  std::uint16_t port_ = 0;
  std::string password_;
  pid_t pid_ = -1;
};

}  // namespace shadowib
