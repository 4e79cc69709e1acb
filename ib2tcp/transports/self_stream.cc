// Loopback: two queue pairs of one process talk through a ring in private memory.
#include <cerrno>
#include <memory>

#include "ib2tcp/transport.h"
#include "ib2tcp/transports/byte_ring.h"

namespace shadowib::ib2tcp {
namespace {

constexpr StreamTraits kTraits = {.name = "self", .copy_limit = 512, .read_ahead = false, .memory_readable = true};

class SelfStream final : public Stream {
 public:
  explicit SelfStream(std::size_t ring_bytes) : data_(new char[ring_bytes]) {
    producer_.attach(&control_, data_.get(), ring_bytes);
    consumer_.attach(&control_, data_.get(), ring_bytes);
  }
  const StreamTraits& traits() const override { return kTraits; }
  ssize_t writev(const iovec* parts, int count) override { return producer_.write(parts, count); }
  ssize_t readv(const iovec* parts, int count) override { return consumer_.read(parts, count); }
  bool readable() override { return consumer_.readable(); }
  int fd() const override { return -1; }
  bool prepare_sleep(bool writing) override { return !consumer_.readable() && !(writing && producer_.has_room()); }
  void wake_up() override {}
  void on_fd_ready() override {}
  void close() override {}

 private:
  RingControl control_{};
  std::unique_ptr<char[]> data_;
  RingProducer producer_;
  RingConsumer consumer_;
};

}  // namespace

Stream* make_self_stream(std::size_t ring_bytes) { return new SelfStream(ring_bytes); }

}  // namespace shadowib::ib2tcp
