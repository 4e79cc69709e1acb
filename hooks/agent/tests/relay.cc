#include "hooks/agent/tests/relay.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

namespace shadowib {
namespace {

sockaddr_in on_loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

int make_socket() { return ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }

// A child that is just being forked may have the descriptor, too.
void end(int fd) {
  ::shutdown(fd, SHUT_RDWR);
  ::close(fd);
}

}  // namespace

Relay::Relay(std::uint16_t to) : to_(to), listener_(make_socket()), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  sockaddr_in address = on_loopback(0);
  socklen_t length = sizeof(address);
  EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(::listen(listener_, 64), 0);
  EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length), 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { run(); });
}

Relay::~Relay() {
  ends_ = true;
  wake();
  thread_.join();
  end_all();
  ::close(listener_);
  ::close(wake_);
}

std::string Relay::uri() const { return "redis://127.0.0.1:" + std::to_string(port_) + "/0/test"; }

void Relay::cut() {
  cut_ = true;
  wake();
}

void Relay::mend() { cut_ = false; }

void Relay::wake() const { ::eventfd_write(wake_, 1); }

void Relay::accept_one() {
  const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (client < 0) return;
  const int server = cut_ ? -1 : make_socket();
  const sockaddr_in address = on_loopback(to_);
  if (server >= 0 && ::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    pairs_.emplace_back(client, server);
    return;
  }
  if (server >= 0) ::close(server);
  end(client);
  ++refused_;
}

void Relay::end_all() {
  for (const auto& [client, server] : pairs_) end(client), end(server);
  pairs_.clear();
}

// False once the connection is over.
bool Relay::pass_on(int from, int to, bool asks) {
  char bytes[16384];
  const ssize_t got = ::read(from, bytes, sizeof(bytes));
  if (got <= 0) return false;
  const std::string_view text(bytes, static_cast<std::size_t>(got));
  const char* drops = drops_;
  if (asks && drops != nullptr && text.find(drops) != std::string_view::npos) {
    drops_ = nullptr;
    dropped_ = true;
    return false;
  }
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t n = ::send(to, bytes + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

void Relay::run() {
  while (!ends_) {
    std::vector<pollfd> polled{{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
    for (const auto& [client, server] : pairs_) {
      polled.push_back({client, POLLIN, 0});
      polled.push_back({server, POLLIN, 0});
    }
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;
    eventfd_t value = 0;
    ::eventfd_read(wake_, &value);
    if (cut_) {
      end_all();
    } else {
      for (std::size_t i = 0; i < pairs_.size(); ++i) {
        auto& [client, server] = pairs_[i];
        const bool lasts = (polled[2 + 2 * i].revents == 0 || pass_on(client, server, true)) &&
                           (polled[3 + 2 * i].revents == 0 || pass_on(server, client, false));
        if (lasts) continue;
        end(client), end(server);
        client = -1;
      }
      std::erase_if(pairs_, [](const auto& pair) { return pair.first < 0; });
    }
    if (polled[1].revents != 0) accept_one();
  }
}

}  // namespace shadowib
