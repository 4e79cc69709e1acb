// Two byte rings in one memfd, a doorbell (eventfd) for a side that sleeps, and the Unix socket of the handshake,
// which tells when the peer has gone. The memory has no name and nothing is left behind.
#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ib2tcp/host.h"
#include "ib2tcp/transport.h"
#include "ib2tcp/transports/byte_ring.h"

namespace shadowib::ib2tcp {
namespace {

constexpr StreamTraits kTraits = {
    .name = "shm", .copy_limit = 512, .read_ahead = false, .memory_readable = true, .in_place = true};
constexpr std::size_t kControlBytes = 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct Control {
  RingControl to_accepting;
  RingControl to_connecting;
};
static_assert(sizeof(Control) <= kControlBytes);

class ShmStream final : public Stream {
 public:
  ShmStream(void* memory, std::size_t mapped, std::size_t ring_bytes, bool accepting, int socket, int own_bell,
            int peer_bell)
      : memory_(memory), mapped_(mapped), socket_(socket), own_bell_(own_bell), peer_bell_(peer_bell) {
    auto* control = static_cast<Control*>(memory);
    char* to_accepting = static_cast<char*>(memory) + kControlBytes;
    char* to_connecting = to_accepting + ring_bytes;
    if (accepting) {
      producer_.attach(&control->to_connecting, to_connecting, ring_bytes);
      consumer_.attach(&control->to_accepting, to_accepting, ring_bytes);
    } else {
      producer_.attach(&control->to_accepting, to_accepting, ring_bytes);
      consumer_.attach(&control->to_connecting, to_connecting, ring_bytes);
    }
  }
  ~ShmStream() override { close(); }

  const StreamTraits& traits() const override { return kTraits; }

  ssize_t writev(const iovec* parts, int count) override {
    if (ended_) return broken();
    ssize_t n = producer_.write(parts, count);
    if (n < 0) return broken();
    if (n > 0) ring_if(producer_.control()->consumer_sleeps);
    return n;
  }

  ssize_t readv(const iovec* parts, int count) override {
    ssize_t n = consumer_.read(parts, count);
    if (n < 0 || (n == 0 && ended_ && !consumer_.readable())) return broken();
    if (n > 0) ring_if(consumer_.control()->producer_waits);
    return n;
  }

  char* reserve(std::size_t bytes) override { return ended_ ? nullptr : producer_.reserve(bytes); }
  void commit(std::size_t bytes) override {
    producer_.commit(bytes);
    ring_if(producer_.control()->consumer_sleeps);
  }
  const char* peek(std::size_t* bytes) override { return consumer_.peek(bytes); }
  void consume(std::size_t bytes) override {
    if (consumer_.consume(bytes)) ring_if(consumer_.control()->producer_waits);
  }

  bool readable() override { return ended_ || consumer_.readable(); }
  int fd() const override { return own_bell_; }
  int end_fd() const override { return socket_; }

  bool prepare_sleep(bool writing) override {
    // Sequentially consistent, as the counters: either the peer sees the flag or we see its bytes.
    consumer_.control()->consumer_sleeps.store(1, std::memory_order_seq_cst);
    if (writing) producer_.control()->producer_waits.store(1, std::memory_order_seq_cst);
    if (!readable() && !(writing && producer_.has_room())) return true;
    wake_up();
    return false;
  }
  bool prepare_sleep_to_write() override {
    producer_.control()->producer_waits.store(1, std::memory_order_seq_cst);
    if (!producer_.has_room()) return true;
    producer_.control()->producer_waits.store(0, std::memory_order_relaxed);
    return false;
  }
  void wake_up() override {
    consumer_.control()->consumer_sleeps.store(0, std::memory_order_relaxed);
    producer_.control()->producer_waits.store(0, std::memory_order_relaxed);
  }

  void on_fd_ready() override {
    std::uint64_t count;
    [[maybe_unused]] auto n = ::read(own_bell_, &count, sizeof(count));
  }
  void on_end_ready() override {
    char byte;
    ssize_t n = ::recv(socket_, &byte, 1, MSG_DONTWAIT);
    // Nothing is ever sent on the socket after the handshake: a byte is as bad as the end.
    if (n >= 0 || (errno != EAGAIN && errno != EINTR)) ended_ = true;
  }

  void close() override {
    if (memory_ == nullptr) return;
    g_host->disown_mapping(memory_);
    ::munmap(memory_, mapped_);
    memory_ = nullptr;
    for (int fd : {socket_, own_bell_, peer_bell_}) g_host->close_descriptor(fd);
  }

 private:
  ssize_t broken() {
    errno = EPIPE;
    return -1;
  }
  void ring_if(std::atomic<std::uint32_t>& flag) {
    if (__builtin_expect(flag.load(std::memory_order_seq_cst) == 0, 1)) return;
    flag.store(0, std::memory_order_relaxed);
    std::uint64_t one = 1;
    [[maybe_unused]] auto n = ::write(peer_bell_, &one, sizeof(one));
  }

  void* memory_;
  std::size_t mapped_;
  int socket_, own_bell_, peer_bell_;
  bool ended_ = false;
  RingProducer producer_;
  RingConsumer consumer_;
};

void* map_rings(int memory, std::size_t mapped) {
  void* p = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (p == MAP_FAILED) return nullptr;
  g_host->own_mapping(p, mapped);
  return p;
}

void close_all(const ShmDescriptors& d) {
  for (int fd : {d.memory, d.connecting_bell, d.accepting_bell})
    if (fd >= 0) g_host->close_descriptor(fd);
}

}  // namespace

Stream* make_shm_stream_local(int socket, std::size_t ring_bytes, ShmDescriptors* descriptors) {
  std::size_t mapped = kControlBytes + 2 * ring_bytes;
  ShmDescriptors d;
  void* memory = nullptr;
  UnownedDescriptors unowned;
  d.memory = unowned.own(::memfd_create("ib2tcp", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (d.memory >= 0 && ::ftruncate(d.memory, static_cast<off_t>(mapped)) == 0 &&
      ::fcntl(d.memory, F_ADD_SEALS, kSeals) == 0)
    memory = map_rings(d.memory, mapped);
  d.connecting_bell = unowned.own(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  d.accepting_bell = unowned.own(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (memory == nullptr || d.connecting_bell < 0 || d.accepting_bell < 0) {
    if (memory != nullptr) {
      g_host->disown_mapping(memory);
      ::munmap(memory, mapped);
    }
    close_all(d);
    errno = EMFILE;
    return nullptr;
  }
  *descriptors = d;
  return new ShmStream(memory, mapped, ring_bytes, true, socket, d.accepting_bell, d.connecting_bell);
}

Stream* make_shm_stream_remote(int socket, std::size_t ring_bytes, const ShmDescriptors& d) {
  std::size_t mapped = kControlBytes + 2 * ring_bytes;
  struct stat st {};
  bool sound = ring_bytes >= 4096 && ring_bytes <= (std::size_t{1} << 30) && (ring_bytes & (ring_bytes - 1)) == 0 &&
               ::fstat(d.memory, &st) == 0 && st.st_size == static_cast<off_t>(mapped) &&
               (::fcntl(d.memory, F_GET_SEALS) & kSeals) == kSeals;
  void* memory = sound ? map_rings(d.memory, mapped) : nullptr;
  if (memory == nullptr) {
    close_all(d);
    errno = EPROTO;
    return nullptr;
  }
  g_host->close_descriptor(d.memory);
  return new ShmStream(memory, mapped, ring_bytes, false, socket, d.connecting_bell, d.accepting_bell);
}

}  // namespace shadowib::ib2tcp
