#include "ib2tcp/transports/ofi_stream.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ib2tcp/as_adapter.h"
#include "ib2tcp/copy_in_order.h"
#include "ib2tcp/host.h"
#include "ib2tcp/transports/ofi_library.h"
#include "shadowib/base/lock.h"

namespace shadowib::ib2tcp {
namespace {

constexpr StreamTraits kTraits = {.name = "ofi", .copy_limit = 512, .read_ahead = false, .memory_readable = true};
constexpr int kSends = 16, kReceives = 8;
// What the peer sent before its end may still be on its way when the socket of the handshake tells of it. A
// connection tells its own end behind the last message; for others there is only time.
constexpr std::int64_t kConnectedGraceNs = 1'000'000'000, kGraceNs = 200'000'000;

ssize_t broken() {
  errno = EPIPE;
  return -1;
}

}  // namespace

FabricStream* OfiFabric::make_stream(const FabricPeer& peer) {
  set_up_thread();
  auto stream = std::make_unique<OfiStream>(*this, peer);
  if (stream->start(peer)) {
    stream->socket_ = peer.socket;
    driver_.watch(stream->socket_watch_, peer.socket, EPOLLIN | EPOLLRDHUP, true);
    return stream.release();
  }
  stream.reset();
  errno = EIO;
  return nullptr;
}

OfiStream::OfiStream(OfiFabric& fabric, const FabricPeer& peer) : fabric_(fabric), own_(peer.own), peer_(peer.end) {
  socket_watch_ = {[](void* self, std::uint32_t) { static_cast<OfiStream*>(self)->on_socket_ready(); }, this};
  grace_.fire = [](void* self) { static_cast<OfiStream*>(self)->end(); };
  grace_.owner = this;
  fabric_.enter(own_.slot, this);
  ++fabric_.opening_;
}

bool OfiStream::start(const FabricPeer& peer) {
  sends_ = OfiBuffers::make(fabric_, kSends);
  if (sends_ == nullptr) return false;
  for (OfiBuffer& buffer : sends_->all) {
    buffer.sending = true;
    buffer.stream = this;
    buffer.next = std::exchange(free_, &buffer);
  }
  if (!fabric_.connected()) {
    endpoint_ = fabric_.endpoint_;
    early_.resize(kWindow);
    if (::fi_av_insert(fabric_.addresses_, peer.name, 1, &address_, 0, nullptr) != 1) return false;
    opened();
    return true;
  }
  if (!peer.connecting) return true;  // until the peer's request comes
  fi_info* info = fabric_.library_.dupinfo(fabric_.info_);
  bool good = info != nullptr && attach(info);
  if (info != nullptr) fabric_.library_.freeinfo(info);
  const OfiHeader wanted{peer_.slot, 0, peer_.secret};
  return good && fabric_.check(::fi_connect(endpoint_, peer.name, &wanted, sizeof(wanted)), "connect");
}

bool OfiStream::attach(fi_info* info) {
  receives_ = OfiBuffers::make(fabric_, kReceives);
  if (receives_ == nullptr) return false;
  fid_ep* endpoint = nullptr;
  if (!fabric_.check(::fi_endpoint(fabric_.domain_, info, &endpoint, this), "make an endpoint")) return false;
  endpoint_ = endpoint;
  if (!fabric_.check(::fi_ep_bind(endpoint, &fabric_.events_->fid, 0), "bind its events") ||
      !fabric_.check(::fi_ep_bind(endpoint, &fabric_.completions_->fid, FI_SEND | FI_RECV), "bind its completions") ||
      !fabric_.check(::fi_enable(endpoint), "enable its endpoint"))
    return false;
  for (OfiBuffer& buffer : receives_->all) {
    buffer.stream = this;
    fabric_.receive(buffer);
  }
  return !ended_;
}

bool OfiStream::accept(fi_info* info) {
  if (attach(info) && fabric_.check(::fi_accept(endpoint_, nullptr, 0), "accept a connection")) return true;
  end();
  return false;
}

const StreamTraits& OfiStream::traits() const { return kTraits; }

void OfiStream::when_open(void (*told)(void* owner), void* owner) {
  told_ = told;
  told_owner_ = owner;
}

void OfiStream::opened() {
  if (open_ || ended_) return;
  open_ = true;
  --fabric_.opening_;
  if (auto* told = std::exchange(told_, nullptr)) told(told_owner_);
}

void OfiStream::end() {
  if (ended_) return;
  ended_ = true;
  if (!open_) --fabric_.opening_;
  fabric_.driver_.disarm(grace_);
  fabric_.driver_.want_turn();
  if (auto* told = std::exchange(told_, nullptr)) told(told_owner_);
}

void OfiStream::on_socket_ready() {
  char byte;
  const ssize_t n = ::recv(socket_, &byte, 1, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  // Nothing is ever sent on the socket after the handshake: a byte is as bad as the end.
  fabric_.driver_.unwatch(socket_watch_);
  if (ended_) return;
  if (n > 0 || !open_)
    end();
  else
    fabric_.driver_.arm(grace_, monotonic_ns() + (fabric_.connected() ? kConnectedGraceNs : kGraceNs));
}

int OfiStream::send(OfiBuffer& buffer, std::size_t bytes) {
  void* description = sends_->registration != nullptr ? ::fi_mr_desc(sends_->registration) : nullptr;
  return static_cast<int>(::fi_send(endpoint_, buffer.data, bytes, description, address_, &buffer.context));
}

ssize_t OfiStream::writev(const iovec* parts, int count) {
  if (ended_) return broken();
  if (!open_) return 0;
  set_up_thread();
  std::size_t total = 0, offset = 0;
  int at = 0;
  while (free_ != nullptr) {
    OfiBuffer& buffer = *free_;
    std::size_t filled = sizeof(OfiHeader), from_offset = offset;
    int from = at;
    while (from < count && filled < kOfiMessageBytes) {
      const std::size_t n = std::min(parts[from].iov_len - from_offset, kOfiMessageBytes - filled);
      const AsAdapter unseen;
      std::memcpy(buffer.data + filled, static_cast<const char*>(parts[from].iov_base) + from_offset, n);
      filled += n;
      from_offset += n;
      if (from_offset == parts[from].iov_len) {
        ++from;
        from_offset = 0;
      }
    }
    if (filled == sizeof(OfiHeader)) return static_cast<ssize_t>(total);
    *buffer.header() = {peer_.slot, sent_, peer_.secret};
    const int rc = send(buffer, filled);
    if (rc == -FI_EAGAIN) break;
    if (rc != 0) {
      log_message(LogLevel::kInfo, "%s takes no message: %s", fabric_.provider(), fabric_.library_.strerror(-rc));
      end();
      return total > 0 ? static_cast<ssize_t>(total) : broken();
    }
    free_ = buffer.next;
    ++sends_->at_provider;
    ++sent_;
    total += filled - sizeof(OfiHeader);
    at = from;
    offset = from_offset;
  }
  full_ = true;
  return static_cast<ssize_t>(total);
}

void OfiStream::on_sent(OfiBuffer& buffer) {
  sends_->take_back();
  buffer.next = std::exchange(free_, &buffer);
  full_ = false;
}

void OfiStream::on_message(OfiBuffer& buffer) {
  const std::uint32_t ahead = buffer.header()->sequence - expected_;
  if (ahead == 0) {
    append(buffer);
    while (!early_.empty() && early_[expected_ % kWindow] != nullptr)
      append(*std::exchange(early_[expected_ % kWindow], nullptr));
    return;
  }
  if (ahead < kWindow && !early_.empty() && early_[buffer.header()->sequence % kWindow] == nullptr) {
    early_[buffer.header()->sequence % kWindow] = &buffer;
    return;
  }
  log_message(LogLevel::kWarn, "%s lost or doubled a message: %u for %u; the connection is closed",
              fabric_.provider(), buffer.header()->sequence, expected_);
  give_back(buffer);
  end();
}

void OfiStream::append(OfiBuffer& buffer) {
  buffer.next = nullptr;
  (first_ == nullptr ? first_ : last_->next) = &buffer;
  last_ = &buffer;
  ++expected_;
}

void OfiStream::give_back(OfiBuffer& buffer) {
  if (!ended_ || !fabric_.connected()) fabric_.receive(buffer);
}

ssize_t OfiStream::readv(const iovec* parts, int count) {
  if (first_ == nullptr) return ended_ ? broken() : 0;
  set_up_thread();
  std::size_t total = 0;
  for (int i = 0; i < count; ++i) {
    auto* to = static_cast<char*>(parts[i].iov_base);
    std::size_t left = parts[i].iov_len;
    while (left > 0 && first_ != nullptr) {
      OfiBuffer& buffer = *first_;
      const std::size_t n = std::min<std::size_t>(left, buffer.end - buffer.begin);
      copy_in_order(to, buffer.data + buffer.begin, n);
      to += n;
      left -= n;
      total += n;
      buffer.begin += static_cast<std::uint32_t>(n);
      if (buffer.begin != buffer.end) continue;
      first_ = buffer.next;
      give_back(buffer);
    }
    if (first_ == nullptr) break;
  }
  return static_cast<ssize_t>(total);
}

bool OfiStream::prepare_sleep(bool writing) { return !readable() && (!writing || prepare_sleep_to_write()); }

// Room comes with a completion, or when the connection is made; both wake the helper.
bool OfiStream::prepare_sleep_to_write() { return !open_ || (full_ && sends_->at_provider > 0); }

void OfiStream::close() {
  if (closed_) return;
  closed_ = true;
  set_up_thread();
  if (!open_ && !ended_) --fabric_.opening_;
  ended_ = true;
  told_ = nullptr;
  fabric_.driver_.disarm(grace_);
  fabric_.driver_.unwatch(socket_watch_);
  if (socket_ >= 0) g_host->close_descriptor(socket_);
  socket_ = -1;
  fabric_.leave(own_.slot, this);
  for (OfiBuffer* buffer = first_; buffer != nullptr;) give_back(*std::exchange(buffer, buffer->next));
  for (OfiBuffer* buffer : early_)
    if (buffer != nullptr) give_back(*buffer);
  first_ = nullptr;
  early_.clear();
  if (fabric_.connected()) {
    if (endpoint_ != nullptr) ::fi_close(&endpoint_->fid);
  } else if (address_ != FI_ADDR_UNSPEC) {
    ::fi_av_remove(fabric_.addresses_, &address_, 1, 0);
  }
  endpoint_ = nullptr;
  if (sends_ != nullptr) sends_->abandon();
  if (receives_ != nullptr) receives_->abandon();
  sends_ = receives_ = nullptr;
}

}  // namespace shadowib::ib2tcp
