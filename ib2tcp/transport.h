// The contract of a transport: an ordered, reliable byte stream between two processes, and no more.
//
// Its own notion of completion means nothing to verbs: acknowledgement, retry, flow control by receives and access
// checks live above (link, requester, responder). A new transport is one file that makes Streams and, if others
// must reach it, something to listen on. All calls are made under the engine's lock.
#pragma once

#include <sys/uio.h>

#include <boost/intrusive/set.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "ib2tcp/wire.h"

namespace shadowib::ib2tcp {

// Something that is due at a moment of CLOCK_MONOTONIC. fire() runs under the engine's lock, disarmed.
struct Timer {
  void (*fire)(void* owner) = nullptr;
  void* owner = nullptr;
  std::int64_t deadline_ns = 0;
  using SetHook = boost::intrusive::set_member_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>>;
  SetHook hook;
  bool operator<(const Timer& other) const { return deadline_ns < other.deadline_ns; }
};
// Something behind a descriptor in epoll. ready() runs under the engine's lock.
struct Watch {
  void (*ready)(void* owner, std::uint32_t events) = nullptr;
  void* owner = nullptr;
  int fd = -1;
  bool in_control = false;
};

// A transport that brings the data of many streams at once and has to be asked for it. Under the engine's lock.
class Poller {
 public:
  virtual ~Poller() = default;
  // Takes what has come; never blocks. True if anything had.
  virtual bool poll() = 0;
  // As Stream::prepare_sleep, before the streams are asked: false if there is something to do already.
  virtual bool prepare_sleep() = 0;
};

// The engine, as transports see it. All calls are made under its lock.
class Driver {
 public:
  // fire() is called at that moment of CLOCK_MONOTONIC, once.
  virtual void arm(Timer& timer, std::int64_t deadline_ns) = 0;
  virtual void disarm(Timer& timer) = 0;
  // ready() is called when the descriptor has one of these events of epoll. `control`: looked at less often.
  virtual void watch(Watch& watch, int fd, std::uint32_t events, bool control) = 0;
  virtual void unwatch(Watch& watch) = 0;
  // Only a later turn can do what was left behind: a helper that sleeps must look.
  virtual void want_turn() = 0;
  enum class Refused : std::uint8_t { kFrame, kConnection };
  virtual void count_refused(Refused what) = 0;

 protected:
  ~Driver() = default;
};

// Limits the code above adapts to.
struct StreamTraits {
  const char* name;
  // Frames with a payload up to this many bytes are gathered in one buffer and written together.
  std::uint32_t copy_limit;
  // A read costs a system call, so read ahead; otherwise headers are read alone and payloads go straight to their
  // place.
  bool read_ahead;
  // readable() knows by looking at memory. If not, it must be asked by reading, or by epoll when there are many.
  bool memory_readable;
  // Has reserve() and peek().
  bool in_place = false;
};

class Stream {
 public:
  virtual ~Stream() = default;

  virtual const StreamTraits& traits() const = 0;

  // Takes as many bytes from parts[0..count) as fit now. Returns that number (0: none, try when writable), or -1 when
  // the stream has ended, with errno: EPIPE peer gone, EFAULT a part is not readable memory. Never blocks. Bytes
  // taken reach the peer in order unless the stream ends; the caller may reuse the memory at once.
  virtual ssize_t writev(const iovec* parts, int count) = 0;

  // Moves bytes that have arrived into parts[0..count). Returns how many (0: none now), or -1 when the stream has
  // ended and everything that arrived before has been read (errno EPIPE), or a part is not writable memory (EFAULT,
  // nothing lost). Never blocks.
  virtual ssize_t readv(const iovec* parts, int count) = 0;

  // In place: frames are built where they travel, and read where they arrive. Both may end early for any reason;
  // writev and readv then go on, and tell an end. Memory in between belongs to the peer as well: write it without
  // reading it, and copy what is to be checked.
  // Room of `bytes` in one piece, or nullptr. commit() sends the first bytes of it.
  virtual char* reserve(std::size_t) { return nullptr; }
  virtual void commit(std::size_t) {}
  // The bytes that have arrived and lie in one piece: *bytes, perhaps 0. consume() gives the first of them back.
  virtual const char* peek(std::size_t* bytes) {
    *bytes = 0;
    return nullptr;
  }
  virtual void consume(std::size_t) {}

  // False only if readv would surely return 0. Reads memory only.
  virtual bool readable() = 0;

  // Descriptor whose readiness (EPOLLIN; EPOLLOUT if poll_writes()) says "try again" to a sleeper, and one more
  // that only tells the peer's end (-1: none).
  virtual int fd() const = 0;
  virtual int end_fd() const { return -1; }
  virtual bool poll_writes() const { return false; }

  // Called before the helper sleeps on fd(): from now on the peer must ring. `writing`: something waits for
  // room. Returns false, and stays awake, if there is something to do already. wake_up() undoes it.
  virtual bool prepare_sleep(bool writing) = 0;
  // As prepare_sleep(true), but what has arrived keeps nobody awake, and more of it rings for nobody.
  virtual bool prepare_sleep_to_write() { return prepare_sleep(true); }
  virtual void wake_up() = 0;

  // fd() or end_fd() was reported ready, the first to who has slept: clear a doorbell, notice an end. Data is read by
  // readv.
  virtual void on_fd_ready() = 0;
  virtual void on_end_ready() {}

  // Whether the peer's host, not its process, has said nothing for `patience_ms`, in spite of several tries. Asked
  // every few seconds. False for a stream that tells such an end by itself.
  virtual bool has_lost_peer(std::uint32_t) { return false; }

  // Ends the stream and frees its descriptors and mappings. The destructor calls it.
  virtual void close() = 0;
};

// A TCP socket past its handshake. Takes the (owned, non-blocking) descriptor.
Stream* make_tcp_stream(int fd);

// Loopback inside one process: what is written is read back.
Stream* make_self_stream(std::size_t ring_bytes);

// Shared-memory rings. The accepting side makes them (make_shm_stream_local) and passes `descriptors` (the memfd, the
// doorbell of the connecting side, its own doorbell) over the authenticated Unix socket; the connecting side takes
// those over (make_shm_stream_remote, always consumes them). nullptr with errno on failure or if the memfd could
// change its size under us. `socket` (owned) stays open to tell the peer's end; taken only on success.
struct ShmDescriptors {
  int memory = -1;
  int connecting_bell = -1;
  int accepting_bell = -1;
};
Stream* make_shm_stream_local(int socket, std::size_t ring_bytes, ShmDescriptors* descriptors);
Stream* make_shm_stream_remote(int socket, std::size_t ring_bytes, const ShmDescriptors& descriptors);

inline constexpr std::size_t kShmRingBytes = 512 << 10;

// --- libfabric: this process's end of a provider, and the streams over it.

inline constexpr std::size_t kMaxProviderName = 32, kMaxFabricName = 64;

// One end of a stream as the other end names it.
struct FabricEnd {
  std::uint32_t slot = 0;
  std::uint64_t secret = 0;
};

// A stream to a peer that has proved the key over `socket`. `connecting`: this side asked for it.
struct FabricPeer {
  const std::uint8_t* name;
  std::size_t name_bytes;
  FabricEnd own, end;
  bool connecting;
  int socket;
};

class FabricStream : public Stream {
 public:
  virtual bool open() const = 0;
  // Called once, when open() has become true, or the stream ended before.
  virtual void when_open(void (*told)(void* owner), void* owner) = 0;
};

class Fabric : public Poller {
 public:
  virtual const char* provider() const = 0;
  // Its address, for peers.
  virtual const std::uint8_t* name() const = 0;
  virtual std::size_t name_bytes() const = 0;
  // Each stream has a connection of its own, so that one that is not read keeps nothing from the others.
  virtual bool has_connections() const = 0;
  // Takes the socket. nullptr with errno; the socket is the caller's then.
  virtual FabricStream* make_stream(const FabricPeer& peer) = 0;
};

// "ofi:" in SHADOWIB_IB2TCP_TRANSPORT: the provider behind it, or nullptr.
const char* ofi_provider(const char* transport);
// Loads libfabric and asks it for `provider` as fi_info -p names it ("tcp", "tcp;ofi_rxm", "efa"). Takes a few tenths
// of a second. Called once, when the library is loaded, since it takes the loader's lock. 0, or an errno after a
// message: ENOENT no libfabric, ENODEV no such provider here.
int load_ofi(const char* provider);
// With the provider that was loaded. nullptr with errno after a message: EINVAL none was.
std::unique_ptr<Fabric> open_ofi_fabric(Driver& driver);

}  // namespace shadowib::ib2tcp
