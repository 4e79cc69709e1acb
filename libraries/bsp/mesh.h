// The connections of a process to all others: words and their barriers, READs, WRITEs, and peers that are gone.
//
// One thread. Words arrive with immediate data, so that a process can sleep for them. The barrier of a superstep is
// the p - 1 words of the peers. Nothing here allocates between connect() and the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "libraries/bsp/adapter.h"
#include "libraries/bsp/word.h"

namespace shadowib::bsp {

class Mesh {
 public:
  // Memory that the adapter can use.
  struct Local {
    const void* memory;
    std::uint32_t key;
  };

  // `spins`: how many polls find nothing before the process sleeps.
  Mesh(int process, int processes, std::uint64_t epoch, int spins);

  // Meets the other processes. Returns when all are connected.
  void connect();

  Adapter& adapter() { return adapter_; }
  // Where peer `from` writes to, for supersteps of that parity.
  Slot& slot(int from, unsigned parity) const { return slots_[2 * from + parity]; }
  // Known from connect() on: whether the peer, or any of them, has another byte order.
  bool is_turned(int peer) const { return peers_[peer].is_turned; }
  bool is_mixed() const { return is_mixed_; }

  // A barrier: begin, send a word to each peer, wait for theirs. The data, up to kSlotBytes, arrives before the word.
  void begin_barrier();
  void begin_last_barrier();  // behind it peers may be gone
  void send_word(int peer, const Word& word, const Local& data, std::size_t bytes);
  void send_signal(int peer);  // a word that says nothing, and leaves the slots alone
  void wait_barrier();

  void read(int peer, void* to, std::uint32_t to_key, std::uint64_t address, std::uint32_t key, std::uint64_t bytes);
  void wait_reads();
  void write(int peer, const Local& from, std::uint64_t address, std::uint32_t key, std::uint64_t bytes);

  // This process has begun that superstep: what others put in the one before is in its place. Peers can read it.
  void begin_superstep(std::uint64_t number) { shown_->superstep.publish(number); }
  // Before memory of `peer` is written or read within a superstep: waits until the peer has begun it, too. Costs a
  // READ for each peer and superstep, or nothing if the peer's word says so already.
  void await_superstep(int peer) {
    if (peers_[peer].superstep != shown_->superstep) ask_superstep(peer);
  }

  // Waits until everything sent was received, or its receiver has sent its last word and is gone.
  void flush();
  // Tells all peers that the job ends, as well as it can: by a process's abort, or because one is gone.
  enum class End { kAbort, kLost };
  void tell(End end);
  // Waits for a peer that tells so, for at most that long. One that tells of an abort ends this process.
  void await_end(int timeout_ms);

 private:
  struct Peer {
    ibv_qp* qp = nullptr;
    ibv_send_wr data{}, word{};
    ibv_sge data_sge{}, word_sge{};
    std::uint64_t slots = 0;        // address of our slots there
    std::uint64_t shown = 0;        // address of its Shown
    std::uint64_t superstep = 0;    // that it is known to have begun
    std::uint32_t arrived = 0;      // words
    std::uint32_t unsignaled = 0;   // requests since the last one that completes
    std::uint32_t outstanding = 0;  // requests that may still take room in the queue
    std::uint32_t reads = 0;
    std::uint32_t key = 0;
    bool is_pinged = false;
    bool is_turned = false;
  };
  struct Shown {  // behind the slots
    alignas(64) Little<std::uint64_t> superstep;
    alignas(64) Little<std::uint64_t> read;  // where a peer's superstep arrives
  };
  enum class Kind : std::uint64_t { kPosted, kRead, kPing };

  void post(int peer, ibv_send_wr* first, ibv_send_wr* last, std::uint32_t count);
  void post_one(int peer, ibv_send_wr* wr, Kind kind);
  void make_room(int peer);
  void ask_superstep(int peer);
  bool may_be_gone(const Peer& peer) const { return is_aborting_ || (is_last_ && peer.arrived == barrier_); }
  bool poll();  // false: nothing was there
  void take(const ibv_wc& completion);
  void take_sent(const ibv_wc& completion);
  void arrive(std::uint32_t immediate);
  void failed(const ibv_wc& completion);
  void repost_receives();
  template <typename Done>
  void wait(Done&& done);
  void sleep();
  void ping_silent_peers();
  [[noreturn]] void lose(int peer, const char* how);

  const int process_, processes_, spins_;
  const std::uint64_t epoch_;
  Adapter adapter_;
  std::vector<Peer> peers_;
  Slot* slots_ = nullptr;
  Shown* shown_ = nullptr;
  ibv_mr* slots_memory_ = nullptr;
  std::uint32_t barrier_ = 0;  // words that each peer has to have sent
  int missing_ = 0;            // peers that have not
  std::uint32_t reads_ = 0;
  std::uint32_t taken_receives_ = 0;
  std::vector<ibv_recv_wr> receives_;  // a chain
  bool is_aborting_ = false, is_last_ = false, is_mixed_ = false;
  bool is_losing_ = false, is_told_ = false;  // a peer is gone; another process has told it
};

}  // namespace shadowib::bsp
