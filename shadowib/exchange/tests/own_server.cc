#include "shadowib/exchange/tests/own_server.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace shadowib {

OwnServer::OwnServer() {
  std::unique_ptr<ExchangeServer> server;
  const Status opened = ExchangeServer::open(true, &server);
  EXPECT_TRUE(opened.ok()) << opened.text();
  if (server == nullptr) return;
  port_ = server->port();
  password_ = server->password();
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  int never[2];
  if (::getppid() == parent && ::pipe(never) == 0) server->serve(never[0]);
  ::_exit(1);
}

void OwnServer::kill(int signal) const {
  if (pid_ > 0) ::kill(pid_, signal);
}

void OwnServer::end() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace shadowib
