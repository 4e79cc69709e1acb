// A worker's end of the wire: hellos until the master answers, then messages in order.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "libraries/masterworker/adapter.h"
#include "libraries/masterworker/master_link.h"
#include "libraries/masterworker/protocol.h"
#include "libraries/masterworker/spin.h"
#include "libraries/masterworker/updates.h"

namespace shadowib::masterworker {

// A worker is born with copies of the master's facts at the fork.
struct BirthFacts {
  Door door;
  std::uint64_t token = 0;
  std::uint64_t updates = 0, phase = 0;
  ChainHash chain;
  int master_pid = 0;
  bool elsewhere = false;  // no fork, and there may be no such process here
  int wait_s = 0;          // it sleeps first, for a debugger to attach
};

struct Message {
  Header header;
  void* task = nullptr;   // a task's input, until the next message; null if it has no bytes
  Payload input, output;  // of an update
};

class WorkerLink {
 public:
  // Opens the device and waits until the master has answered. Ends the process if it is a stranger, the master is
  // gone, or `*leave` became true.
  explicit WorkerLink(const BirthFacts& facts, const volatile bool* leave = nullptr);

  // The next message. False: the master is gone, or `*leave` became true.
  bool next(Message* message, const volatile bool* leave);
  void send_result(std::uint64_t handout, const Payload& output);
  // Says that it takes no more, once the master has read its results. `told`: by SIGTERM. Waits `timeout_ms` at most
  // for each (-1: until the master is gone).
  void send_leave(bool told, int timeout_ms);

  std::uint32_t rank() const { return rank_; }
  std::uint32_t workers() const { return workers_; }
  const AbortWords& aborts() const { return *aborts_; }

 private:
  static constexpr int kReceives = 64, kSends = 16;
  static_assert(kReceives % Emptied::kMost == 0);

  void say_hello();
  void ask_for_life();
  bool progress();
  void completed(const ibv_wc& wc);
  bool wait_for(bool (WorkerLink::*ready)() const, const volatile bool* leave, int timeout_ms);
  // True: it is so, at the latest after a few looks at the device.
  bool look_for(bool (WorkerLink::*ready)() const);
  bool has_message() const { return !inbox_.empty() || broken_; }
  bool answered() const { return answered_ || broken_; }
  bool read_done() const { return read_done_ || broken_; }
  bool can_send() const { return in_flight_ < kSends || broken_; }
  bool all_read() const { return lent_ == 0 || broken_; }
  bool all_sent() const { return in_flight_ == 0 || broken_; }
  void post_send(ibv_send_wr& request);
  void send(Header header, const Payload& output);
  Payload fetch(const Header& header);
  void return_receive(std::uint32_t index);
  void post_welcome();
  void heard_welcome(const ibv_wc& wc);

  Adapter adapter_;
  BirthFacts facts_;
  int master_watch_ = -1;
  ibv_qp* datagrams_ = nullptr;
  ibv_qp* connection_ = nullptr;
  ibv_ah* route_ = nullptr;
  Buffer receives_, sends_, hellos_;
  Emptied emptied_;  // slots of receives_
  Spin spin_;
  AbortWords* aborts_ = nullptr;
  Buffer abort_page_;
  std::deque<std::uint32_t> inbox_;
  std::optional<std::uint32_t> task_slot_;  // of the last message's task
  std::vector<std::uint32_t> free_sends_;
  std::uint32_t inline_bytes_ = 0;  // messages up to this length go inline
  std::uint32_t in_flight_ = 0;     // messages
  std::uint32_t unasked_ = 0;       // of these the last ones, which ask for no completion
  std::uint32_t lent_ = 0;          // large results that the master has not read yet
  std::uint32_t first_packet_ = 0, rank_ = 0, workers_ = 0;
  bool answered_ = false, broken_ = false, read_done_ = false, master_gone_ = false;
  bool asked_ = false;         // for a sign of life, without an answer so far
  std::int64_t asked_ns_ = 0;  // when
  bool leaving_ = false;       // what still comes is for nobody, but the release of a result may stand behind it
};

}  // namespace shadowib::masterworker
