#include "shadowib/exchange/exchange_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>

#include "shadowib/base/lock.h"
#include "shadowib/exchange/raw_files.h"

namespace shadowib {
namespace {

constexpr std::size_t kMaxBeforePassword = 1024;
constexpr std::size_t kReadBytes = 256u << 10;

Status failed(const char* what) {
  const int err = errno;
  return Status::of(Code::kIo, err, "the exchange's server: %s: %s", what, error_text(err));
}

// As long whatever is right in it.
bool same_word(std::string_view given, std::string_view word) {
  unsigned char different = given.size() == word.size() ? 0 : 1;
  for (std::size_t i = 0; i < word.size(); ++i)
    different |= static_cast<unsigned char>(word[i] ^ (i < given.size() ? given[i] : 0));
  return different == 0;
}

std::int64_t number_in(const std::string& text) {
  std::int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// A member has some connections, and each waiter one.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void set_option(int fd, int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof(value)); }

}  // namespace

struct ExchangeServer::Connection {
  ServerFd socket;
  RedisReplies requests;
  std::string output;
  std::size_t sent = 0, fed = 0;
  bool let_in = false, over = false, wants_room = false;

  // What it waits for, if place is not null: a barrier, or else a change.
  Place* place = nullptr;
  std::string barrier, abort_key, directory;
  std::size_t wanted = 0;
  std::int64_t deadline = -1;
};

ServerFd::~ServerFd() {
  if (fd_ >= 0) ::close(fd_);
}

ExchangeServer::~ExchangeServer() = default;

Status ExchangeServer::listen_on(bool loopback) {
  sockaddr_in6 v6{};
  sockaddr_in v4{};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_any;
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
  int bound = -1;
  if (!loopback) {
    listener_ = ServerFd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    set_option(listener_.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    bound = ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&v6), sizeof(v6));
  }
  if (bound != 0) {
    listener_ = ServerFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    bound = ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&v4), sizeof(v4));
  }
  if (bound != 0 || ::listen(listener_.get(), SOMAXCONN) != 0) return failed("cannot listen");
  socklen_t length = sizeof(v6);
  if (::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&v6), &length) != 0) return failed("has no port");
  port_ = ntohs(v6.sin6_port);  // which is where IPv4 has it
  return {};
}

Status ExchangeServer::open(bool loopback, std::unique_ptr<ExchangeServer>* server) {
  std::unique_ptr<ExchangeServer> made(new ExchangeServer);
  unsigned char random[16];
  if (::getrandom(random, sizeof(random), 0) != sizeof(random)) return failed("no random numbers");
  for (const unsigned char byte : random)
    made->password_ += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
  SHADOWIB_TRY(made->listen_on(loopback));
  made->events_ = ServerFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!made->listen_for(made->listener_.get(), true)) return failed("cannot wait");
  *server = std::move(made);
  return {};
}

bool ExchangeServer::listen_for(int fd, bool on) {
  epoll_event event{EPOLLIN, {.fd = fd}};
  return ::epoll_ctl(events_.get(), on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &event) == 0;
}

void ExchangeServer::close_others(int kept) const {
  unsigned next = 3;
  std::set<int> stay{kept, listener_.get(), events_.get()};
  for (const int fd : stay) {
    const auto at = static_cast<unsigned>(fd);
    if (at > next) ::close_range(next, at - 1, 0);
    next = std::max(next, at + 1);
  }
  ::close_range(next, ~0u, 0);
}

void ExchangeServer::serve(int end_fd) {
  raise_descriptor_limit();
  ending_ = !listen_for(end_fd, true);
  while (!ending_ || !connections_.empty()) {
    int timeout_ms = -1;
    if (!deadlines_.empty()) {
      const std::int64_t left_ns = std::max<std::int64_t>(deadlines_.begin()->first - monotonic_ns(), 0);
      timeout_ms = static_cast<int>(std::min<std::int64_t>(left_ns / 1000000 + 1, INT_MAX));
    }
    epoll_event events[64];
    const int ready = ::epoll_wait(events_.get(), events, 64, timeout_ms);
    for (int i = 0; i < ready; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listener_.get()) accept_all();
      if (fd == end_fd) {
        ending_ = true;
        listen_for(fd, false);
      }
      const auto at = connections_.find(fd);
      if (at == connections_.end()) continue;
      Connection& connection = *at->second;
      if ((events[i].events & EPOLLOUT) != 0) send(connection);
      if ((events[i].events & ~EPOLLOUT) != 0 && !connection.over) receive(connection);
    }
    wake_late();
    hang_up_on_ended();
  }
}

void ExchangeServer::accept_all() {
  for (;;) {
    const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      // Whoever wants to come waits in the listener's queue, until somebody goes.
      if ((errno == EMFILE || errno == ENFILE) && !connections_.empty()) deaf_ = listen_for(listener_.get(), false);
      return;
    }
    auto connection = std::make_unique<Connection>();
    connection->socket = ServerFd(fd);
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    // Whose machine is gone says nothing.
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    if (listen_for(fd, true)) connections_[fd] = std::move(connection);
  }
}

void ExchangeServer::give_up(Connection& connection) {
  if (!connection.over) ended_.push_back(&connection);
  connection.over = true;
}

void ExchangeServer::hang_up_on_ended() {
  for (Connection* const connection : ended_) {
    forget_wait(*connection);
    connections_.erase(connection->socket.get());
    if (deaf_) deaf_ = !listen_for(listener_.get(), true);
  }
  ended_.clear();
}

void ExchangeServer::receive(Connection& connection) {
  static thread_local char buffer[kReadBytes];
  const ssize_t got = ::recv(connection.socket.get(), buffer, sizeof(buffer), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  connection.fed += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  const bool much = !connection.let_in && connection.fed > kMaxBeforePassword;
  if (got <= 0 || much || !connection.requests.feed({buffer, static_cast<std::size_t>(got)}))
    give_up(connection);
  else
    answer_requests(connection);
}

void ExchangeServer::answer_requests(Connection& connection) {
  while (!connection.over && connection.place == nullptr) {
    std::unique_ptr<RedisReply> request;
    if (!connection.requests.next(&request)) {
      give_up(connection);
      return;
    }
    if (request == nullptr) break;
    const auto is_text = [](const auto& word) { return word->kind == RedisReply::Kind::kText; };
    if (request->kind != RedisReply::Kind::kList || request->items.empty() ||
        !std::all_of(request->items.begin(), request->items.end(), is_text)) {
      give_up(connection);
      return;
    }
    answer(connection, request->items);
  }
  send(connection);
}

void ExchangeServer::let_in(Connection& connection, const Words& words) {
  connection.let_in = words.size() == 2 && words[0]->text == "AUTH" && same_word(words[1]->text, password_);
  if (connection.let_in) return reply(connection, "+OK\r\n");
  reply(connection,
        words[0]->text == "AUTH" ? "-WRONGPASS another server's\r\n" : "-NOAUTH a password is needed\r\n");
  send(connection);
  give_up(connection);
}

const std::map<std::string, ExchangeServer::Known>& ExchangeServer::operations() {
  static const std::map<std::string, Known> known = {{"OPEN", {3, 3, &ExchangeServer::open_place}},
                                                     {"PUBLISH", {4, 4, &ExchangeServer::publish}},
                                                     {"CLAIM", {4, 4, &ExchangeServer::claim}},
                                                     {"REMOVE", {3, 3, &ExchangeServer::remove}},
                                                     {"LOOKUP", {3, SIZE_MAX, &ExchangeServer::lookup}},
                                                     {"LIST", {3, 3, &ExchangeServer::list}},
                                                     {"DROP", {3, 3, &ExchangeServer::drop}},
                                                     {"BARRIER", {7, 7, &ExchangeServer::barrier}},
                                                     {"ENTERED", {3, 3, &ExchangeServer::entered}},
                                                     {"WATCH", {5, 5, &ExchangeServer::watch}}};
  return known;
}

void ExchangeServer::answer(Connection& connection, const Words& words) {
  if (!connection.let_in) return let_in(connection, words);
  const auto known = operations().find(words[0]->text);
  if (known == operations().end() || words.size() < known->second.least || words.size() > known->second.most)
    return reply(connection, "-ERR unknown command\r\n");
  const std::string& prefix = words[1]->text;
  if (words[0]->text == "OPEN" && words[2]->text != "1" && !places_.contains(prefix))
    return reply_number(connection, 0);
  if (words[0]->text != "OPEN" && !places_.contains(prefix))
    return reply(connection, "-ERR nobody has opened it\r\n");
  (this->*known->second.run)(connection, places_[prefix], words);
}

void ExchangeServer::reply(Connection& connection, std::string_view text) { connection.output += text; }

void ExchangeServer::reply_number(Connection& connection, std::int64_t number) {
  reply(connection, ":" + std::to_string(number) + "\r\n");
}

void ExchangeServer::reply_names(Connection& connection, const std::vector<std::string>& names) {
  reply(connection, "*" + std::to_string(names.size()) + "\r\n");
  for (const std::string& name : names) reply(connection, "$" + std::to_string(name.size()) + "\r\n" + name + "\r\n");
}

void ExchangeServer::send(Connection& connection) {
  while (connection.sent < connection.output.size()) {
    const ssize_t sent = ::send(connection.socket.get(), connection.output.data() + connection.sent,
                                connection.output.size() - connection.sent, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) give_up(connection);
    if (sent < 0) break;
    connection.sent += static_cast<std::size_t>(sent);
  }
  const bool all = connection.sent == connection.output.size();
  if (all) connection.output = std::string(), connection.sent = 0;
  if (connection.wants_room == !all) return;
  connection.wants_room = !all;
  epoll_event event{EPOLLIN | (all ? 0u : EPOLLOUT), {.fd = connection.socket.get()}};
  ::epoll_ctl(events_.get(), EPOLL_CTL_MOD, connection.socket.get(), &event);
}

void ExchangeServer::wait(Connection& connection, Place& place, std::int64_t timeout_ms) {
  connection.place = &place;
  connection.deadline = monotonic_ns() + timeout_ms * 1000000;
  deadlines_.insert({connection.deadline, &connection});
}

void ExchangeServer::forget_wait(Connection& connection) {
  Place* const place = std::exchange(connection.place, nullptr);
  if (place == nullptr) return;
  deadlines_.erase({connection.deadline, &connection});
  const auto forget = [&](auto* waiting, const std::string& where) {
    const auto at = waiting->find(where);
    if (at == waiting->end()) return;
    at->second.erase(&connection);
    if (at->second.empty()) waiting->erase(at);
  };
  if (connection.barrier.empty()) return forget(&place->for_change, connection.directory);
  forget(&place->for_abort, connection.abort_key);
  const auto barrier = place->at_barrier.find(connection.barrier);
  auto [at, end] = barrier->second.equal_range(connection.wanted);
  while (at != end && at->second != &connection) ++at;
  if (at != end) barrier->second.erase(at);
  if (barrier->second.empty()) place->at_barrier.erase(barrier);
}

void ExchangeServer::wake(Connection* connection, std::int64_t number) {
  forget_wait(*connection);
  reply_number(*connection, number);
  answer_requests(*connection);
}

void ExchangeServer::wake_late() {
  const std::int64_t now = monotonic_ns();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) wake(deadlines_.begin()->second, -1);
}

// Of those who wait for it; who is woken may ask for something else at once, and wait again.
void ExchangeServer::tell_change(Place& place, const std::string& key, bool there) {
  const std::string directory(directory_of(key));
  const std::int64_t token = static_cast<std::int64_t>(place.keys.changed(directory));
  std::set<Connection*> woken;
  if (const auto at = place.for_change.find(directory); at != place.for_change.end()) woken = at->second;
  for (Connection* connection : woken) wake(connection, token);
  if (!there) return;
  woken.clear();
  if (const auto at = place.for_abort.find(key); at != place.for_abort.end()) woken = at->second;
  for (Connection* connection : woken) wake(connection, 0);
}

void ExchangeServer::open_place(Connection& connection, Place&, const Words&) { reply_number(connection, 1); }

void ExchangeServer::publish(Connection& connection, Place& place, const Words& words) {
  place.keys.publish(words[2]->text, std::move(words[3]->text));
  reply_number(connection, 1);
  tell_change(place, words[2]->text, true);
}

void ExchangeServer::claim(Connection& connection, Place& place, const Words& words) {
  const bool claimed = place.keys.claim(words[2]->text, std::move(words[3]->text));
  reply_number(connection, claimed ? 1 : 0);
  if (claimed) tell_change(place, words[2]->text, true);
}

void ExchangeServer::remove(Connection& connection, Place& place, const Words& words) {
  const bool removed = place.keys.remove(words[2]->text);
  reply_number(connection, 1);
  if (removed) tell_change(place, words[2]->text, false);
}

void ExchangeServer::lookup(Connection& connection, Place& place, const Words& words) {
  std::string& output = connection.output;
  output += "*" + std::to_string(words.size() - 2) + "\r\n";
  for (std::size_t i = 2; i < words.size(); ++i) {
    const std::string* value = place.keys.find(words[i]->text);
    if (value == nullptr)
      output += "$-1\r\n";
    else
      output.append("$" + std::to_string(value->size()) + "\r\n").append(*value).append("\r\n");
  }
}

void ExchangeServer::list(Connection& connection, Place& place, const Words& words) {
  reply_names(connection, place.keys.list(words[2]->text));
}

void ExchangeServer::entered(Connection& connection, Place& place, const Words& words) {
  reply_names(connection, place.keys.entered(words[2]->text));
}

void ExchangeServer::drop(Connection& connection, Place& place, const Words& words) {
  place.keys.drop(words[2]->text);
  reply_number(connection, 1);
}

void ExchangeServer::barrier(Connection& connection, Place& place, const Words& words) {
  const std::string &name = words[2]->text, &abort_key = words[6]->text;
  const std::int64_t wanted = number_in(words[4]->text);
  const std::size_t entered = place.keys.enter(name, words[3]->text);
  // All whom this one lets through, and first of all itself: who finds everybody there passes, abort key or not.
  const bool complete = static_cast<std::int64_t>(entered) >= wanted;
  const bool aborted = !abort_key.empty() && place.keys.find(abort_key) != nullptr;
  if (complete || aborted) {
    reply_number(connection, complete ? 1 : 0);
  } else {
    connection.barrier = name;
    connection.abort_key = abort_key;
    connection.wanted = static_cast<std::size_t>(wanted);
    place.at_barrier[name].emplace(connection.wanted, &connection);
    if (!abort_key.empty()) place.for_abort[abort_key].insert(&connection);
    wait(connection, place, number_in(words[5]->text));
  }
  for (;;) {
    const auto at = place.at_barrier.find(name);
    if (at == place.at_barrier.end() || at->second.begin()->first > entered) return;
    wake(at->second.begin()->second, 1);
  }
}

void ExchangeServer::watch(Connection& connection, Place& place, const Words& words) {
  const std::int64_t token = static_cast<std::int64_t>(place.keys.changed(words[2]->text));
  if (token != number_in(words[3]->text)) return reply_number(connection, token);
  connection.barrier.clear();
  connection.directory = words[2]->text;
  place.for_change[connection.directory].insert(&connection);
  wait(connection, place, number_in(words[4]->text));
}

}  // namespace shadowib
