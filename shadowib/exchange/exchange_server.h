// The server behind `pmix:` (pmix_exchange.h): keeps exchanges in memory, for all who know its password.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shadowib/base/status.h"
#include "shadowib/exchange/kept_keys.h"
#include "shadowib/exchange/redis_replies.h"

namespace shadowib {

// A descriptor that closes itself, of a process that is ours alone: it needs none of raw_files.h's care.
class ServerFd {
 public:
  explicit ServerFd(int fd = -1) : fd_(fd) {}
  ServerFd(ServerFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ServerFd& operator=(ServerFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ServerFd();
  int get() const { return fd_; }

 private:
  int fd_;
};

// One thread serves. In a process of its own: it takes the heap.
class ExchangeServer {
 public:
  // Listens on a free port: of 127.0.0.1 only, or of all addresses. kIo.
  static Status open(bool loopback, std::unique_ptr<ExchangeServer>* server);
  ~ExchangeServer();

  std::uint16_t port() const { return port_; }
  const std::string& password() const { return password_; }

  // Until `end_fd` is readable and nobody is connected any more: who is in the midst of something may end it.
  void serve(int end_fd);
  // In a child that is to serve: closes all descriptors but its own, 0 to 2 and `kept`.
  void close_others(int kept) const;

 private:
  struct Connection;
  // The keys of one exchange, and the connections that wait for a change of it.
  struct Place {
    KeptKeys keys;
    std::map<std::string, std::multimap<std::size_t, Connection*>> at_barrier;  // by how many they wait for
    std::map<std::string, std::set<Connection*>> for_abort, for_change;         // by key; by directory
  };
  using Words = std::vector<std::unique_ptr<RedisReply>>;
  using Operation = void (ExchangeServer::*)(Connection&, Place&, const Words&);
  struct Known {
    std::size_t least, most;  // words, its own included
    Operation run;
  };
  static const std::map<std::string, Known>& operations();

  ExchangeServer() = default;
  Status listen_on(bool loopback);
  bool listen_for(int fd, bool on);
  void accept_all();
  void receive(Connection& connection);
  // Answers requests that have come whole. Nothing more while the connection waits.
  void answer_requests(Connection& connection);
  void answer(Connection& connection, const Words& words);
  void let_in(Connection& connection, const Words& words);
  void send(Connection& connection);
  void reply(Connection& connection, std::string_view text);
  void reply_number(Connection& connection, std::int64_t number);
  void reply_names(Connection& connection, const std::vector<std::string>& names);
  // Answers who waits, and lets it ask again.
  void wake(Connection* connection, std::int64_t number);
  void wait(Connection& connection, Place& place, std::int64_t timeout_ms);
  void forget_wait(Connection& connection);
  void tell_change(Place& place, const std::string& key, bool there);
  void wake_late();
  // It is hung up on when nobody looks at it any more.
  void give_up(Connection& connection);
  void hang_up_on_ended();

  void open_place(Connection&, Place&, const Words&);
  void publish(Connection&, Place&, const Words&);
  void claim(Connection&, Place&, const Words&);
  void remove(Connection&, Place&, const Words&);
  void lookup(Connection&, Place&, const Words&);
  void list(Connection&, Place&, const Words&);
  void entered(Connection&, Place&, const Words&);
  void drop(Connection&, Place&, const Words&);
  void barrier(Connection&, Place&, const Words&);
  void watch(Connection&, Place&, const Words&);

  std::uint16_t port_ = 0;
  std::string password_;
  ServerFd listener_, events_;
  bool ending_ = false, deaf_ = false;  // deaf: there is no descriptor for another connection
  std::map<std::string, Place> places_;
  std::map<int, std::unique_ptr<Connection>> connections_;  // by descriptor
  std::vector<Connection*> ended_;
  std::set<std::pair<std::int64_t, Connection*>> deadlines_;
};

}  // namespace shadowib
