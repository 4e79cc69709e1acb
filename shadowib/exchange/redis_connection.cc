#include "shadowib/exchange/redis_connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "shadowib/base/arena.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/secret_scope.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

constexpr std::size_t kMaxPassword = 512;
constexpr std::size_t kReadBytes = 32u << 10;  // on the stack of an agent thread, among others
constexpr std::size_t kKeptOutput = 64u << 10;

// Not by snprintf, which would be a third of what a member's exchanges cost it.
void append_number(std::string* to, char mark, std::size_t number) {
  char text[32] = {mark};
  char* const end = std::to_chars(text + 1, text + 24, number).ptr;
  end[0] = '\r', end[1] = '\n';
  to->append(text, static_cast<std::size_t>(end + 2 - text));
}

template <typename Words>
void append_command(std::string* to, const Words& words) {
  append_number(to, '*', words.size());
  for (const std::string_view word : words) {
    append_number(to, '$', word.size());
    to->append(word).append("\r\n");
  }
}

// A secret on the stack, which is wiped: the heap may go into an image.
class Secret {
 public:
  Secret() = default;
  ~Secret() { explicit_bzero(text_, sizeof(text_)); }
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;

  // The URI's, or the file's first line.
  Status read(const RedisPlace& place) {
    if (place.password_file.empty()) {
      size_ = std::min(place.password.size(), sizeof(text_));
      std::memcpy(text_, place.password.data(), size_);
      return {};
    }
    const OwnedFd fd = open_owned(AT_FDCWD, place.password_file.c_str(), O_RDONLY | O_NOFOLLOW);
    const long got = fd ? ::syscall(SYS_read, fd.get(), text_, sizeof(text_)) : -1;
    if (got < 0)
      return Status::of(Code::kPermission, errno, "exchange: the password cannot be read from %.200s: %s",
                        place.password_file.c_str(), error_text(errno));
    size_ = static_cast<std::size_t>(got);
    const void* end = std::memchr(text_, '\n', size_);
    if (end != nullptr) size_ = static_cast<std::size_t>(static_cast<const char*>(end) - text_);
    return {};
  }
  std::string_view text() const { return {text_, size_}; }

 private:
  char text_[kMaxPassword];
  std::size_t size_ = 0;
};

// "AUTH [user] password", written where it can be wiped.
class Credentials {
 public:
  ~Credentials() { explicit_bzero(text_, sizeof(text_)); }
  std::string_view write(std::string_view user, std::string_view password) {
    add("*%zu\r\n$4\r\nAUTH\r\n", user.empty() ? 2 : 3);
    if (!user.empty()) word(user);
    word(password);
    return {text_, size_};
  }

 private:
  void add(const char* format, std::size_t number) {
    size_ += static_cast<std::size_t>(std::snprintf(text_ + size_, sizeof(text_) - size_, format, number));
  }
  void word(std::string_view bytes) {
    add("$%zu\r\n", bytes.size());
    std::memcpy(text_ + size_, bytes.data(), bytes.size());
    size_ += bytes.size();
    std::memcpy(text_ + size_, "\r\n", 2);
    size_ += 2;
  }
  char text_[2 * kMaxPassword + 64];
  std::size_t size_ = 0;
};

// 0 if the host is no number.
socklen_t address_of(const RedisPlace& place, sockaddr_storage* storage) {
  *storage = {};
  auto* v4 = reinterpret_cast<sockaddr_in*>(storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(storage);
  const char* host = place.host == "localhost" ? "127.0.0.1" : place.host.c_str();
  if (::inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(place.port);
    return sizeof(*v4);
  }
  if (::inet_pton(AF_INET6, host, &v6->sin6_addr) != 1) return 0;
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(place.port);
  return sizeof(*v6);
}

bool has_password(const RedisPlace& place) { return !place.password.empty() || !place.password_file.empty(); }

void set_option(int fd, int level, int name, int value) {
  ::syscall(SYS_setsockopt, fd, level, name, &value, sizeof(value));
}

}  // namespace

Status redis_error(const std::string& shown, std::string_view error, const char* what, std::string_view key) {
  struct Known {
    std::string_view prefix;
    Code code;
    int err;
    const char* remedy;
  };
  static constexpr Known kKnown[] = {
      {"NOAUTH", Code::kPermission, EACCES, "; give its password by SHADOWIB_REDIS_PASSWORD"},
      {"WRONGPASS", Code::kPermission, EACCES, "; give its password by SHADOWIB_REDIS_PASSWORD"},
      {"ERR AUTH", Code::kPermission, EACCES, "; it has no password of that kind: leave it out"},
      {"ERR Client sent AUTH", Code::kPermission, EACCES, "; it has no password: leave it out"},
      {"NOPERM", Code::kPermission, EACCES, "; its user needs more rights (shadowib-environment(7))"},
      {"OOM", Code::kIo, ENOSPC, "; free memory there, or raise its maxmemory"},
      {"MISCONF", Code::kIo, ENOSPC, "; it cannot save to its disk"},
      {"READONLY", Code::kIo, EROFS, "; name the server this one is a copy of"},
      {"MOVED", Code::kUsage, EINVAL, "; it is one of a cluster: name a server that stands alone"},
      {"LOADING", Code::kIo, EAGAIN, "; it has just begun: try again"},
      {"NOREPLICAS", Code::kIo, EAGAIN, "; too few of its copies are there"},
  };
  // A command's error begins with the word, one of a script may have it further in.
  for (const Known& known : kKnown) {
    const std::size_t at = error.find(known.prefix);
    if (at == 0 || (at != std::string_view::npos && (error[at - 1] == ' ' || error[at - 1] == '-')))
      return Status::of(known.code, known.err, "exchange %.100s: cannot %s %.60s: %.110s%s", shown.c_str(), what,
                        std::string(key).c_str(), std::string(error).c_str(), known.remedy);
  }
  return Status::of(Code::kIo, EIO, "exchange %.100s: cannot %s %.80s: the server says: %.150s", shown.c_str(), what,
                    std::string(key).c_str(), std::string(error).c_str());
}

// How long to wait for the server, and until when.
struct RedisConnection::Bound {
  explicit Bound(int bound_ms) : ms(bound_ms), deadline(Deadline::in_ms(bound_ms)) {}

  int ms;
  Deadline deadline;
};

RedisConnection::RedisConnection(const RedisPlace& place)
    : shown_(place.shown()), launched_(place.scheme == "pmix"), forgotten_(arena_secrets_forgotten()) {}

RedisConnection::~RedisConnection() {
  if (gone()) (void)socket_.release();
}

bool RedisConnection::gone() const { return forgotten_ != arena_secrets_forgotten(); }

Status RedisConnection::failed(int err, const char* what) const {
  return Status::of(Code::kIo, err,
                    launched_
                        ? "exchange %.150s: %s: %s; it ends with the launcher it belongs to: does that still run?"
                        : "exchange %.150s: %s: %s; is the server running, and does a firewall let it be reached?",
                    shown_.c_str(), what, error_text(err));
}

Status RedisConnection::open(const RedisPlace& place, int patience_ms, std::unique_ptr<RedisConnection>* connection) {
  if (place.has_tls() || has_password(place)) SecretScope::note_processor();
  std::unique_ptr<RedisConnection> made(new RedisConnection(place));
  SHADOWIB_TRY(made->connect(place, patience_ms));
  if (place.has_tls()) SHADOWIB_TRY(made->secure(place, patience_ms));
  SHADOWIB_TRY(made->let_in(place, patience_ms));
  *connection = std::move(made);
  return {};
}

Status RedisConnection::connect(const RedisPlace& place, int patience_ms) {
  sockaddr_storage storage;
  const socklen_t length = address_of(place, &storage);
  if (length == 0)
    return Status::of(Code::kUsage, EINVAL,
                      "exchange %.150s: '%.80s' is a name, which a member of a job cannot have resolved; start it by "
                      "shadowib run, which resolves it, or name a numeric address",
                      shown_.c_str(), place.host.c_str());
  {
    UnownedDescriptors unowned;
    const long fd = ::syscall(SYS_socket, storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    if (fd < 0) return failed(errno, "no socket");
    socket_ = adopt_owned(unowned, static_cast<int>(fd));
  }
  if (!socket_) return failed(errno, "no descriptor");
  set_option(socket_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  // A watcher sleeps for hours: it has to notice that its server's machine is gone.
  set_option(socket_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket_.get(), IPPROTO_TCP, TCP_KEEPIDLE, 60);
  set_option(socket_.get(), IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(socket_.get(), IPPROTO_TCP, TCP_KEEPCNT, 3);
  if (::syscall(SYS_connect, socket_.get(), &storage, length) == 0) return {};
  if (errno != EINPROGRESS && errno != EINTR) return failed(errno, "cannot connect");
  SHADOWIB_TRY(wait(POLLOUT, Bound(patience_ms), -1, nullptr));
  int err = 0;
  socklen_t size = sizeof(err);
  ::syscall(SYS_getsockopt, socket_.get(), SOL_SOCKET, SO_ERROR, &err, &size);
  return err == 0 ? Status() : failed(err, "cannot connect");
}

Status RedisConnection::secure(const RedisPlace& place, int patience_ms) {
  TlsPlace tls = place.tls;
  if (tls.server_name.empty()) tls.server_name = place.host;
  SHADOWIB_TRY(TlsSession::begin(tls, shown_, socket_.get(), &tls_));
  // One bound for all of it: who answers may be anybody yet.
  const Bound bound(patience_ms);
  while (tls_->shake_hands() != 0) {
    if (errno != EAGAIN) return lost("the server ends the handshake of TLS");
    // Of one that always has something to say a wait would find no end.
    const Status waited = bound.deadline.has_passed() ? silent(bound) : wait(tls_->waits_for(), bound, -1, nullptr);
    if (waited.error() == ETIMEDOUT)
      return Status::of(Code::kIo, ETIMEDOUT,
                        "exchange %.150s: no answer to the handshake of TLS for %d ms; does the server run? If it is "
                        "one without TLS, then redis://",
                        shown_.c_str(), patience_ms);
    SHADOWIB_TRY(waited);
  }
  return {};
}

Status RedisConnection::send_password(const RedisPlace& place) {
  const SecretScope scope;
  Secret secret;
  Credentials credentials;
  SHADOWIB_TRY(secret.read(place));
  if (secret.text().size() >= kMaxPassword || place.user.size() >= kMaxPassword)
    return Status::of(Code::kUsage, EINVAL, "exchange %.150s: its user or password is longer than %zu bytes",
                      shown_.c_str(), kMaxPassword - 1);
  const std::string_view command = credentials.write(place.user, secret.text());
  short events = 0;
  const long sent = send_some(command, &events);
  if (sent == static_cast<long>(command.size())) return {};
  return sent < 0 ? lost("cannot log in") : failed(EIO, "cannot log in");
}

Status RedisConnection::let_in(const RedisPlace& place, int patience_ms) {
  RedisAnswers answers;
  if (has_password(place)) {
    SHADOWIB_TRY(send_password(place));
    SHADOWIB_TRY(exchange(1, patience_ms, &answers));
    if (answers[0]->is_error())
      return redis_error(shown_, answers[0]->text, "log in as", place.user.empty() ? "the default user" : place.user);
  }
  if (place.database == 0) return {};
  append({"SELECT", std::to_string(place.database)});
  SHADOWIB_TRY(exchange(1, patience_ms, &answers));
  if (answers[0]->is_error())
    return redis_error(shown_, answers[0]->text, "choose database", std::to_string(place.database));
  return {};
}

void RedisConnection::append(std::initializer_list<std::string_view> words) { append_command(&output_, words); }
void RedisConnection::append(const std::vector<std::string_view>& words) { append_command(&output_, words); }

long RedisConnection::send_some(std::string_view bytes, short* events) {
  *events = POLLOUT;
  if (tls_ == nullptr)
    return ::syscall(SYS_sendto, socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL, nullptr, 0);
  const long sent = tls_->send(bytes);
  if (sent < 0) *events = tls_->waits_for();
  return sent;
}

long RedisConnection::receive_some(char* to, std::size_t bytes, short* events) {
  *events = POLLIN;
  if (tls_ == nullptr) return ::syscall(SYS_recvfrom, socket_.get(), to, bytes, 0, nullptr, nullptr);
  const long got = tls_->receive(to, bytes);
  if (got < 0) *events = tls_->waits_for();
  return got;
}

Status RedisConnection::lost(const char* what) const {
  return tls_ != nullptr && errno == EPROTO ? tls_->trouble() : failed(errno, what);
}

bool RedisConnection::stale() const {
  if (gone()) return true;
  pollfd fd{socket_.get(), POLLIN, 0};
  timespec none{};
  return ::syscall(SYS_ppoll, &fd, 1, &none, nullptr, _NSIG / 8) != 0;
}

Status RedisConnection::silent(const Bound& bound) const {
  return Status::of(Code::kIo, ETIMEDOUT,
                    "exchange %.150s: the server has not answered for %d ms; does it run, and "
                    "is the network there?",
                    shown_.c_str(), bound.ms);
}

Status RedisConnection::wait(short events, const Bound& bound, int cancel_fd, bool* cancelled) {
  for (;;) {
    const std::int64_t left = bound.deadline.left_ns();
    pollfd fds[2] = {{socket_.get(), events, 0}, {cancel_fd, POLLIN, 0}};
    timespec limit{left / 1000000000, left % 1000000000};
    const long ready = ::syscall(SYS_ppoll, fds, 2, &limit, nullptr, _NSIG / 8);
    if (cancel_fd >= 0 && fds[1].revents != 0) *cancelled = true;
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return failed(errno, "cannot wait for it");
    if (ready == 0 && left == 0) return silent(bound);
  }
}

Status RedisConnection::send_all(int patience_ms, int cancel_fd, bool* cancelled) {
  short events = 0;
  for (std::size_t at = 0; at < output_.size();) {
    const long sent = send_some(std::string_view(output_).substr(at), &events);
    if (sent > 0) {
      at += static_cast<std::size_t>(sent);
      continue;
    }
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) return lost("the connection is lost");
    SHADOWIB_TRY(wait(events, Bound(patience_ms), cancel_fd, cancelled));
    if (cancelled != nullptr && *cancelled) return {};
  }
  if (output_.capacity() > kKeptOutput) output_ = std::string();
  output_.clear();
  return {};
}

Status RedisConnection::exchange(std::size_t count, int patience_ms, RedisAnswers* answers, int cancel_fd,
                                 bool* cancelled) {
  answers->clear();
  if (cancelled != nullptr) *cancelled = false;
  SHADOWIB_TRY(send_all(std::max(patience_ms, 1), cancel_fd, cancelled));
  char buffer[kReadBytes];
  bool more = false;  // an answer is hardly ever there at once, and the rest of one mostly is
  short events = POLLIN;
  Bound bound(patience_ms);
  while (cancelled == nullptr || !*cancelled) {
    for (std::unique_ptr<RedisReply> reply; answers->size() < count; answers->push_back(std::move(reply))) {
      if (!replies_.next(&reply))
        return failed(EPROTO, launched_ ? "what answers is another server" : "what answers is no Redis server");
      if (reply == nullptr) break;
    }
    if (answers->size() == count) return {};
    if (!more) SHADOWIB_TRY(wait(events, bound, cancel_fd, cancelled));
    if (cancelled != nullptr && *cancelled) break;
    const long got = receive_some(buffer, sizeof(buffer), &events);
    more = got > 0;
    answered_ = answered_ || more;
    if (got > 0 && !replies_.feed({buffer, static_cast<std::size_t>(got)}))
      return failed(EPROTO, launched_ ? "what answers is another server" : "what answers is no Redis server");
    if (more) bound = Bound(patience_ms);
    if (more || (got < 0 && errno == EINTR)) continue;
    if (got < 0 && errno == EAGAIN) {
      // TLS has words that are no answer, and a wait for those would find no end.
      if (bound.deadline.has_passed()) return silent(bound);
      continue;
    }
    const int err = got == 0 ? ECONNRESET : errno;
    if (err == ECONNRESET && !answered_ && tls_ == nullptr && !launched_)
      return failed(err, "the server has hung up at once, as one does that wants TLS (rediss://)");
    errno = err;
    return lost(got == 0 ? "the server has hung up" : "the connection is lost");
  }
  return {};
}

}  // namespace shadowib
