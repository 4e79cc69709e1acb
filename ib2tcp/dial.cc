#include "ib2tcp/dial.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "ib2tcp/host.h"
#include "ib2tcp/socket_address.h"

namespace shadowib::ib2tcp {

Dial::Dial(std::vector<WayToPeer> ways, std::uint16_t port, Told told, void* owner)
    : ways_(std::move(ways)), port_(port), told_(told), owner_(owner) {
  next_.fire = [](void* self) { static_cast<Dial*>(self)->go_on(); };
  next_.owner = this;
}

Dial* Dial::start(std::vector<WayToPeer> ways, std::uint16_t port, Told told, void* owner) {
  auto* dial = new Dial(std::move(ways), port, told, owner);
  if (dial->begin_next()) return dial;
  errno = dial->last_error_;
  delete dial;
  return nullptr;
}

// False if no attempt is left.
bool Dial::begin_next() {
  while (begun_ < ways_.size())
    if (begin(ways_[begun_++])) break;
  if (begun_ < ways_.size()) g_engine->arm(next_, monotonic_ns() + kStaggerNs);
  return !attempts_.empty();
}

bool Dial::begin(const WayToPeer& way) {
  UnownedDescriptors unowned;
  const SocketAddress to(way.to, port_);
  const int low = ::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int fd = low < 0 ? -1 : unowned.own(low);
  if (fd < 0) {
    last_error_ = low >= 0 ? EMFILE : errno;  // the shim had no room for it
    if (low >= 0) ::close(low);
    return false;
  }
  if ((!way.has_source || bind_to(fd, way.from, 0)) &&
      (::connect(fd, to.get(), to.bytes()) == 0 || errno == EINPROGRESS)) {
    auto attempt = std::make_unique<Attempt>(Attempt{this, fd, way.number, {}});
    attempt->watch = {[](void* owner, std::uint32_t) {
                        auto* ready = static_cast<Attempt*>(owner);
                        ready->dial->on_ready(*ready);
                      },
                      attempt.get()};
    g_engine->watch(attempt->watch, fd, EPOLLOUT, true);
    attempts_.push_back(std::move(attempt));
    return true;
  }
  last_error_ = errno;
  g_host->close_descriptor(fd);
  return false;
}

void Dial::on_ready(Attempt& attempt) {
  int error = 0;
  socklen_t length = sizeof(error);
  ::getsockopt(attempt.fd, SOL_SOCKET, SO_ERROR, &error, &length);
  g_engine->unwatch(attempt.watch);
  if (error == 0) {
    finish(std::exchange(attempt.fd, -1), attempt.way, nullptr);
    return;
  }
  last_error_ = error;
  g_host->close_descriptor(attempt.fd);
  auto it = std::find_if(attempts_.begin(), attempts_.end(), [&](const auto& a) { return a.get() == &attempt; });
  g_engine->bury(it->release());  // an event of the same batch may name its watch
  attempts_.erase(it);
  go_on();
}

void Dial::go_on() {
  g_engine->disarm(next_);
  if (!begin_next()) finish(-1, 0, strerrordesc_np(last_error_));
}

void Dial::finish(int fd, std::size_t way, const char* reason) {
  const Told told = told_;
  void* const owner = owner_;
  abandon();
  told(owner, fd, way, reason);
}

void Dial::abandon() {
  g_engine->disarm(next_);
  for (auto& attempt : attempts_) {
    g_engine->unwatch(attempt->watch);
    if (attempt->fd >= 0) g_host->close_descriptor(attempt->fd);
  }
  g_engine->bury(this);
}

}  // namespace shadowib::ib2tcp
