// A byte ring with one producer and one consumer, in memory shared with a peer that is not trusted: each side keeps
// its own position privately and believes the other's only after a bounds check.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ib2tcp/as_adapter.h"
#include "ib2tcp/copy_in_order.h"

namespace shadowib::ib2tcp {

// Lies at the start of the shared memory, one per direction. Counts grow for ever; a position is count % bytes.
struct RingControl {
  alignas(64) std::atomic<std::uint64_t> produced;
  alignas(64) std::atomic<std::uint64_t> consumed;
  alignas(64) std::atomic<std::uint32_t> consumer_sleeps;  // the producer must ring
  std::atomic<std::uint32_t> producer_waits;               // the consumer must ring when it has made room
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Counters are published every so many bytes of a long copy, so that both sides copy at the same time. Measured over
// 4 to 32 KiB: less makes a message of 128 KiB and more slower, more one of 32 KiB.
inline constexpr std::size_t kRingStepBytes = 16 << 10;

class RingProducer {
 public:
  void attach(RingControl* control, char* data, std::size_t bytes) {
    control_ = control;
    data_ = data;
    bytes_ = bytes;
  }
  // Bytes taken, or -1 if the peer's count is impossible.
  ssize_t write(const iovec* parts, int count) {
    std::size_t total = 0;
    for (int i = 0; i < count; ++i) {
      const char* from = static_cast<const char*>(parts[i].iov_base);
      std::size_t left = parts[i].iov_len;
      while (left > 0) {
        std::size_t room = bytes_ - static_cast<std::size_t>(produced_ - consumed_);
        if (room < left && room < kRingStepBytes) {
          if (!look(std::memory_order_acquire)) return -1;
          room = bytes_ - static_cast<std::size_t>(produced_ - consumed_);
        }
        if (room == 0) return publish(total);
        std::size_t at = static_cast<std::size_t>(produced_ & (bytes_ - 1));
        std::size_t n = std::min({left, room, bytes_ - at, kRingStepBytes});
        const AsAdapter unseen;
        std::memcpy(data_ + at, from, n);
        produced_ += n;
        from += n;
        left -= n;
        total += n;
        if (left > 0) control_->produced.store(produced_, std::memory_order_release);
      }
    }
    return publish(total);
  }
  // An impossible count counts as room: the next write() ends it.
  bool has_room() { return !look(std::memory_order_seq_cst) || produced_ - consumed_ < bytes_; }
  // Room in one piece; nullptr if there is less.
  char* reserve(std::size_t bytes) {
    const std::size_t at = static_cast<std::size_t>(produced_ & (bytes_ - 1));
    if (bytes_ - at < bytes) return nullptr;
    if (bytes_ - static_cast<std::size_t>(produced_ - consumed_) < bytes &&
        (!look(std::memory_order_acquire) || bytes_ - static_cast<std::size_t>(produced_ - consumed_) < bytes))
      return nullptr;
    return data_ + at;
  }
  void commit(std::size_t bytes) {
    produced_ += bytes;
    publish(bytes);
  }
  RingControl* control() { return control_; }

 private:
  // False: the peer's count is impossible, and the one before stays.
  bool look(std::memory_order order) {
    const std::uint64_t consumed = control_->consumed.load(order);
    if (produced_ - consumed > bytes_) return false;
    consumed_ = consumed;
    return true;
  }
  // Sequentially consistent, as is prepare_sleep's side: either the sleeper sees the bytes or we see its flag.
  ssize_t publish(std::size_t total) {
    if (total > 0) control_->produced.store(produced_, std::memory_order_seq_cst);
    return static_cast<ssize_t>(total);
  }
  RingControl* control_ = nullptr;
  char* data_ = nullptr;
  std::size_t bytes_ = 0;  // a power of two
  std::uint64_t produced_ = 0, consumed_ = 0;
};

class RingConsumer {
 public:
  void attach(RingControl* control, const char* data, std::size_t bytes) {
    control_ = control;
    data_ = data;
    bytes_ = bytes;
  }
  bool readable() const { return control_->produced.load(std::memory_order_seq_cst) != consumed_; }
  // Bytes moved, or -1 if the peer's count is impossible.
  ssize_t read(const iovec* parts, int count) {
    std::size_t total = 0;
    for (int i = 0; i < count; ++i) {
      char* to = static_cast<char*>(parts[i].iov_base);
      std::size_t left = parts[i].iov_len;
      while (left > 0) {
        std::size_t there = static_cast<std::size_t>(produced_ - consumed_);
        if (there < left && there < kRingStepBytes) {
          if (!look()) return -1;
          there = static_cast<std::size_t>(produced_ - consumed_);
        }
        if (there == 0) return publish(total);
        std::size_t at = static_cast<std::size_t>(consumed_ & (bytes_ - 1));
        std::size_t n = std::min({left, there, bytes_ - at, kRingStepBytes});
        copy_in_order(to, data_ + at, n);
        consumed_ += n;
        to += n;
        left -= n;
        total += n;
        if (left > 0) control_->consumed.store(consumed_, std::memory_order_release);
      }
    }
    return publish(total);
  }
  // The bytes that lie in one piece, at most a step of them.
  const char* peek(std::size_t* bytes) {
    if (produced_ == consumed_) (void)look();
    const std::size_t at = static_cast<std::size_t>(consumed_ & (bytes_ - 1));
    *bytes = std::min({static_cast<std::size_t>(produced_ - consumed_), bytes_ - at, kRingStepBytes});
    return data_ + at;
  }
  // True: the producer may be waiting for room, look at its flag. It waits on a full ring only, so that a consumer of
  // the first half needs no fence: then as much again is left, and the next half is consumed with one.
  bool consume(std::size_t bytes) {
    const bool may_wait = control_->produced.load(std::memory_order_relaxed) - consumed_ >= bytes_ / 2;
    consumed_ += bytes;
    control_->consumed.store(consumed_, may_wait ? std::memory_order_seq_cst : std::memory_order_release);
    return may_wait;
  }
  RingControl* control() { return control_; }

 private:
  // False: the peer's count is impossible, and the one before stays.
  bool look() {
    const std::uint64_t produced = control_->produced.load(std::memory_order_acquire);
    if (produced - consumed_ > bytes_) return false;
    produced_ = produced;
    return true;
  }
  ssize_t publish(std::size_t total) {
    if (total > 0) control_->consumed.store(consumed_, std::memory_order_seq_cst);
    return static_cast<ssize_t>(total);
  }
  RingControl* control_ = nullptr;
  const char* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint64_t consumed_ = 0, produced_ = 0;
};

}  // namespace shadowib::ib2tcp
