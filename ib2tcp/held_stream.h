// A stream whose link waits for a CLC: it can be written, and tells of nothing that has arrived.
//
// So code that reads needs no look at whether the link is held, and the helper sleeps although bytes are there.
#pragma once

#include <memory>

#include "ib2tcp/transport.h"

namespace shadowib::ib2tcp {

class HeldStream final : public Stream {
 public:
  explicit HeldStream(Stream* held) : held_(held) {}

  const StreamTraits& traits() const override { return held_->traits(); }
  ssize_t writev(const iovec* parts, int count) override { return held_->writev(parts, count); }
  ssize_t readv(const iovec*, int) override { return 0; }
  char* reserve(std::size_t bytes) override { return held_->reserve(bytes); }
  void commit(std::size_t bytes) override { held_->commit(bytes); }
  // Gives back bytes that were read before the hold.
  void consume(std::size_t bytes) override { held_->consume(bytes); }
  bool readable() override { return false; }
  int fd() const override { return held_->fd(); }
  int end_fd() const override { return held_->end_fd(); }
  bool poll_writes() const override { return held_->poll_writes(); }
  bool prepare_sleep(bool writing) override { return !writing || held_->prepare_sleep_to_write(); }
  bool prepare_sleep_to_write() override { return held_->prepare_sleep_to_write(); }
  void wake_up() override { held_->wake_up(); }
  void on_fd_ready() override { held_->on_fd_ready(); }
  void on_end_ready() override { held_->on_end_ready(); }
  bool has_lost_peer(std::uint32_t patience_ms) override { return held_->has_lost_peer(patience_ms); }
  void close() override { held_->close(); }

  // Ends the hold: the stream itself, which is the caller's.
  Stream* release() { return held_.release(); }

 private:
  std::unique_ptr<Stream> held_;
};

}  // namespace shadowib::ib2tcp
