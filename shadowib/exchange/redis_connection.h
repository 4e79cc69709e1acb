// A connection to a Redis server by bare system calls, with or without TLS. It uses no resolver, no heap of the
// program's and raises no SIGPIPE, and every wait is bounded. Its descriptor is owned (base/descriptors.h).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shadowib/exchange/raw_files.h"
#include "shadowib/exchange/redis_place.h"
#include "shadowib/exchange/redis_replies.h"

namespace shadowib {

using RedisAnswers = std::vector<std::unique_ptr<RedisReply>>;

// Used by one thread at a time. After a failure it is good for nothing more.
class RedisConnection {
 public:
  // How long a server may say nothing that owes an answer, and take to be connected to.
  static constexpr int kPatienceMs = 10000;

  // Connects, is let in and chooses the database. kIo; kPermission if the password is wrong or missing, or the
  // server's certificate or ours is not believed; kUsage if the host is a name.
  static Status open(const RedisPlace& place, int patience_ms, std::unique_ptr<RedisConnection>* connection);

  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // Adds a command to what the next exchange() sends.
  void append(std::initializer_list<std::string_view> words);
  void append(const std::vector<std::string_view>& words);

  // Sends what was appended and takes `count` answers, in order. A server that sends nothing of an answer for
  // patience_ms has failed (kIo). cancel_fd, if >= 0 and readable, ends it: *cancelled, and the connection is over,
  // too.
  Status exchange(std::size_t count, int patience_ms, RedisAnswers* answers, int cancel_fd = -1,
                  bool* cancelled = nullptr);

  // True if the server has hung up meanwhile, or said something nobody asked for, or if it is an image's.
  bool stale() const;

 private:
  struct Bound;
  explicit RedisConnection(const RedisPlace& place);
  // Whether it is an image's: by its number the socket is somebody else's by now.
  bool gone() const;
  Status connect(const RedisPlace& place, int patience_ms);
  Status secure(const RedisPlace& place, int patience_ms);
  Status send_password(const RedisPlace& place);
  Status let_in(const RedisPlace& place, int patience_ms);
  Status failed(int err, const char* what) const;
  // As send(2) and recv(2), in TLS if there is some. Where they say EAGAIN, `*events` of poll(2) are to be waited
  // for.
  long send_some(std::string_view bytes, short* events);
  long receive_some(char* to, std::size_t bytes, short* events);
  Status lost(const char* what) const;  // by errno
  // Waits for `events`, or *cancelled; else silent().
  Status wait(short events, const Bound& bound, int cancel_fd, bool* cancelled);
  Status silent(const Bound& bound) const;  // ETIMEDOUT
  Status send_all(int patience_ms, int cancel_fd, bool* cancelled);

  const std::string shown_;
  const bool launched_;       // by a job's launcher, with which the server ends
  const unsigned forgotten_;  // arena_secrets_forgotten() when it was made: a restart forgets descriptors, too
  OwnedFd socket_;
  std::unique_ptr<TlsSession> tls_;
  bool answered_ = false;
  std::string output_;
  RedisReplies replies_;
};

// The error of a server, as a Status with what to do about it. `what` was tried, on `key`.
Status redis_error(const std::string& shown, std::string_view error, const char* what, std::string_view key);

}  // namespace shadowib
