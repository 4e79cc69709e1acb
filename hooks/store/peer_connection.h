// A connection between keepers, or of a command with a keeper: TCP, once both sides have proved the job's key.
//
// Messages are fields (job/protocol.h) with their length before them; after one may follow bytes of a piece. Format:
// KEEPER_PROTOCOL.md. For commands, one thread at a time. Every call ends at the deadline that was set last. A peer
// whose host is lost while bytes are awaited counts as gone after 40 s. A keeper that was asked for something and
// gives no sign of life for 60 s is not waited for: it or its host may be stopped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hooks/job/protocol.h"
#include "shadowib/base/status.h"

namespace shadowib {

// An address and a port, as a keeper publishes it.
struct PeerAddress {
  std::string host;  // a number: 10.0.0.1 or fd00::1
  int port = 0;
};

class PeerConnection {
 public:
  ~PeerConnection();
  PeerConnection(const PeerConnection&) = delete;
  PeerConnection& operator=(const PeerConnection&) = delete;

  // Connects to the first address that answers. kIo names all that was tried. kPermission: the other side does not
  // know the key.
  static Status connect(const std::vector<PeerAddress>& addresses, const std::string& key, std::int64_t deadline_ns,
                        std::unique_ptr<PeerConnection>* connection);
  // Takes the socket, also on failure. kPermission: the other side does not know the key.
  static Status accept(int fd, const std::string& key, std::int64_t deadline_ns,
                       std::unique_ptr<PeerConnection>* connection);

  void set_deadline(std::int64_t monotonic_ns) { deadline_ns_ = monotonic_ns; }
  // How long a call waits while no byte moves. connect() sets 60 s; accept() sets none, since peers may think.
  void set_silence(std::int64_t ns) { silence_ns_ = ns; }
  Status send(const Fields& fields);
  // A message without content: what was asked for is being done.
  Status send_sign();
  // The next message that has content. kIo: the other side has gone. kVersion: no fields. kTimeout: the deadline, or
  // silence.
  Status receive(Fields* fields);
  // `bytes` of a file, from `offset` on.
  Status send_file(int file, std::uint64_t offset, std::uint64_t bytes);
  Status receive_bytes(void* to, std::size_t bytes);

 private:
  static constexpr std::int64_t kNever = std::int64_t{1} << 60;

  explicit PeerConnection(int fd);
  Status wait(short events);
  Status send_bytes(const void* from, std::size_t bytes);
  Status prove(const std::string& key);
  Status demand_proof(const std::string& key);

  int fd_;
  std::int64_t deadline_ns_ = 0;
  std::int64_t silence_ns_ = kNever;
};

}  // namespace shadowib
