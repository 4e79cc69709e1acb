// Making one connection, up to the point where both sides have proved the job's key. Under the engine's lock.
#pragma once

#include <cstdint>
#include <cstring>

#include "ib2tcp/dial.h"
#include "ib2tcp/engine.h"
#include "ib2tcp/wire.h"

namespace shadowib::ib2tcp {

inline constexpr std::int64_t kHandshakeTimeoutNs = 5'000'000'000;
inline constexpr std::size_t kMaxHalfOpen = 64;

class FabricStream;
class Stream;

class Handshake {
 public:
  // Begins to connect to the link's peer; the result goes to the link. nullptr if not even a socket was to be had
  // (the link has been told).
  static Handshake* connect(Link& link);
  // Takes a socket (owned, non-blocking) that was accepted.
  static void accept(int fd, StreamKind kind);

  // Whether the peer has said anything: its process is there and runs.
  bool answered() const { return step_ > Step::kAwaitChallenge; }
  // Somebody listens at the peer's address, and may be about to answer. For the connecting side. On this host an
  // address where nobody listens refuses at once; one that says nothing has a full queue.
  bool is_listened_for() const;
  // Whether some of its addresses have hardly been tried.
  bool has_more_addresses() const { return dial_ != nullptr && dial_->has_more(); }

  // On the accepting side: whether the other one has this uuid, as it says.
  bool is_from(const std::uint8_t uuid[16]) const {
    return step_ == Step::kAwaitProof && std::memcmp(greeting_.from, uuid, sizeof(greeting_.from)) == 0;
  }

  // Gives up without telling anybody; deletes itself.
  void abandon();

 private:
  enum class Step { kConnecting, kAwaitGreeting, kAwaitChallenge, kAwaitProof, kAwaitAnswer, kAwaitFabric };

  Handshake(int fd, StreamKind kind, Link* link);
  ~Handshake();
  friend class Engine;

  bool dial_peer();
  void on_dialed(int fd, std::size_t way, const char* reason);
  void start_watching(std::uint32_t events);
  void watch_fd(std::uint32_t events);
  void start_timer();
  void on_ready(std::uint32_t events);
  bool advance();
  bool read_exactly(void* to, std::size_t bytes, bool* failed);
  bool send_all(const void* from, std::size_t bytes);
  void greet();
  bool on_greeting();
  bool on_challenge();
  bool on_proof();
  bool on_answer();
  bool send_answer(Verdict verdict, Link* link);
  // The stream that both sides have agreed on, over fd_, which it takes; nullptr if it cannot be had.
  Stream* make_stream(const Link& link, bool connecting);
  bool await_fabric(FabricStream* stream);
  void on_fabric();
  bool is_of_dead_incarnation() const;
  void mac(char role, const Answer* answer, std::uint8_t out[32]) const;
  void fail(const char* reason);
  void end_in_silence();
  void finish();

  int fd_;
  StreamKind kind_;
  Link* link_;  // of the connecting side, else nullptr
  Step step_;
  Watch watch_;
  Timer timeout_;
  Greeting greeting_{};
  Challenge challenge_{};
  Proof proof_{};
  Answer answer_{};
  char input_[128];
  std::size_t have_ = 0;
  int passed_[3] = {-1, -1, -1};
  bool has_been_silent_ = false;
  std::size_t way_ = 0;             // that was connected
  Dial* dial_ = nullptr;            // while a connection over TCP is being made
  FabricStream* stream_ = nullptr;  // while its connection is being made
};

}  // namespace shadowib::ib2tcp
