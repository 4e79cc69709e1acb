// The contract of a transport: an ordered, reliable byte stream between two processes, and no more.
//
// Its own notion of completion means nothing to verbs: acknowledgement, retry, flow control by receives and access
// checks live above (link, requester, responder). A new transport is one file that makes Streams and, if others
// must reach it, something to listen on. All calls are made under the engine's lock.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "ib2tcp/wire.h"

namespace shadowib::ib2tcp {

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
  virtual void wake_up() = 0;

  // fd() or end_fd() was reported ready: clear a doorbell, notice an end. Data is read by readv.
  virtual void on_fd_ready() = 0;
  virtual void on_end_ready() {}

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

}  // namespace shadowib::ib2tcp
