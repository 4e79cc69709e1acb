#include "shadowib/exchange/tests/redis_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace shadowib {
namespace {

std::string find_program() {
  std::istringstream path(std::getenv("PATH") != nullptr ? std::getenv("PATH") : "/usr/bin");
  for (std::string directory; std::getline(path, directory, ':');)
    if (::access((directory + "/redis-server").c_str(), X_OK) == 0) return directory + "/redis-server";
  return "";
}

// One that was free a moment ago.
std::uint16_t find_port() {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

}  // namespace

bool RedisServer::available() { return !find_program().empty(); }

RedisServer::RedisServer(std::vector<std::string> options, bool tls) : options_(std::move(options)), tls_(tls) {
  char name[] = "/tmp/shadowib-redis-XXXXXX";
  if (::mkdtemp(name) != nullptr) directory_ = name;
  for (int attempt = 0; attempt < 20; ++attempt) {
    port_ = find_port();
    if (begin()) return;
  }
  ADD_FAILURE() << "redis-server does not begin";
}

RedisServer::~RedisServer() {
  end();
  std::error_code error;
  std::filesystem::remove_all(directory_, error);
}

// False if it ends instead of listening: the port was taken meanwhile.
bool RedisServer::begin() {
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) return false;
  std::vector<std::string> words{find_program(),
                                 "--bind",
                                 "127.0.0.1",
                                 tls_ ? "--tls-port" : "--port",
                                 std::to_string(port_),
                                 "--dir",
                                 directory_,
                                 "--save",
                                 "",
                                 "--appendonly",
                                 "no"};
  if (tls_) words.insert(words.end(), {"--port", "0"});
  words.insert(words.end(), options_.begin(), options_.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::dup2(pipe_fds[1], 1);
    ::dup2(pipe_fds[1], 2);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(pipe_fds[1]);
  // What it says later has to go somewhere, too: the pipe stays open, and 64 KiB are more than it says.
  output_ = pipe_fds[0];
  std::string said;
  char text[1024];
  for (ssize_t got; (got = ::read(output_, text, sizeof(text))) > 0;) {
    said.append(text, static_cast<std::size_t>(got));
    if (said.find("Ready to accept connections") != std::string::npos) return true;
  }
  end();
  return false;
}

std::string RedisServer::uri(const std::string& who) const {
  return (tls_ ? "rediss://" : "redis://") + (who.empty() ? who : who + "@") + "127.0.0.1:" + std::to_string(port_) +
         "/0/test";
}

void RedisServer::kill(int signal) const {
  if (pid_ > 0) ::kill(pid_, signal);
}

void RedisServer::end() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  if (output_ >= 0) ::close(output_);
  output_ = -1;
}

}  // namespace shadowib
