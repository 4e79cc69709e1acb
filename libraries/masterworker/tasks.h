// The task table: tasks, their rounds, and who has been handed which. The heart of exactly-once; no I/O.
//
//   task      an input of GenerateTaskInput, until its last action
//   round     from a hand-out to the first result. REDO and CONTINUATION begin another round
//   hand-out  one copy of a round at one worker. It notes the count of updates at its time
//
// A round ends with its first result; results of its other hand-outs are unknown from then on (M1). Everything lies
// in the master's memory, so a checkpoint saves it as it is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "libraries/masterworker/payload.h"

namespace shadowib::masterworker {

// Names a worker for the life of the master; never used twice. 0: none.
using WorkerId = std::uint64_t;

enum class Round : std::uint8_t { kFirst, kRedo, kContinuation };
enum class ActionKind : std::uint8_t { kNoAction, kUpdate, kRedo, kContinuation };

struct Action {
  ActionKind kind = ActionKind::kNoAction;
  Payload next;  // the input of a continuation
};

struct Task {
  std::uint64_t number = 0;  // counts from 1 in order of generation
  Payload original;          // what GenerateTaskInput said
  Payload input;             // of the present round: after a CONTINUATION another one
  Round round = Round::kFirst;
  WorkerId home = 0;             // where the last result came from: REDO and CONTINUATION go there
  std::uint32_t handouts = 0;    // of the present round, outstanding
  std::uint32_t deaths = 0;      // workers that ended with this task
  std::int64_t patience_ns = 0;  // how long a REDO or CONTINUATION may take at least before it is copied
  bool in_use = false;
};

struct Handout {
  std::uint64_t id = 0;         // unique for the life of the job; 0: the slot is free
  std::uint32_t task = 0;       // index
  Round round = Round::kFirst;  // kFirst for a copy that begins a REDO anew
  WorkerId worker = 0;
  std::uint64_t updates = 0;  // the master's count at this hand-out
  std::int64_t begun_ns = 0;
  bool arrived = false;  // its result is here, and waits for its check
};

// A hand-out that takes long.
struct Slow {
  std::uint32_t task = 0;
  Round round = Round::kFirst;
  std::int64_t age_ns = 0;
};

// A result that is the first of its round.
struct Accepted {
  std::uint32_t task = 0;
  Handout handout;
  std::vector<Handout> losers;  // the round's other hand-outs, unknown from now on
};

class TaskTable {
 public:
  // A new task, ready to be handed out. Returns its index.
  std::uint32_t add(Payload input);

  // A task that waits for a worker, or nothing.
  std::optional<std::uint32_t> take_ready();
  bool has_ready() const { return !ready_.empty(); }

  // Notes a hand-out of the task's present round to `worker`.
  Handout hand_out(std::uint32_t task, WorkerId worker, std::uint64_t updates, std::int64_t now_ns);

  // A result has arrived: whatever happens to its worker, the hand-out counts as done, and not as slow.
  void arrived(std::uint64_t handout, WorkerId worker);

  // The first result of a round, or nothing: it is late, of another worker, or of no task.
  std::optional<Accepted> accept(std::uint64_t handout, WorkerId worker);

  // After accept(): ends the task, or begins its next round. The caller hands a next round to task.home.
  void finish(std::uint32_t task);
  void redo(std::uint32_t task);
  void continue_with(std::uint32_t task, Payload next);

  // The worker is gone: its rounds without a result or another hand-out begin anew, with the original input, before
  // all others.
  // Returns the highest number of workers that ended with one of these tasks.
  std::uint32_t worker_gone(WorkerId worker);
  // The task's next round cannot go to its home.
  void begin_anew(std::uint32_t task);
  // After a restart no hand-out has anyone; all rounds without a result begin anew, in order of their numbers.
  void restarted();
  // All tasks are over, without a result. Results that still come are of no task.
  void abandon();

  // A task that is worth a copy at `worker`: of those whose hand-outs all are over `age_ns` old the oldest. One
  // hand-out at most may be at a worker that answers; so a round has two copies that get on, however many are
  // stopped. `peers.since_ns(worker)` gives when a worker was last heard of, `peers.answers(worker)` whether it runs.
  //
  // The copy of a REDO or CONTINUATION begins the task anew, so its first result is soon there, and takes the task
  // back. Each time only after twice the age: else a long round would never come to its end.
  template <typename Peers>
  std::optional<Slow> slowest(WorkerId worker, std::int64_t now_ns, std::int64_t age_ns, const Peers& peers) const {
    std::optional<Slow> found;
    for (const Handout& handout : handouts_) {
      if (handout.id == 0) continue;
      const Task& task = tasks_[handout.task];
      Slow slow{handout.task, handout.round, now_ns};
      int running = 0;
      for (const Handout& other : handouts_of(handout)) {
        if (other.id == 0 || other.task != handout.task) continue;
        slow.age_ns = std::min(slow.age_ns, now_ns - std::max(other.begun_ns, peers.since_ns(other.worker)));
        running += other.worker == worker || other.arrived ? 2 : peers.answers(other.worker) ? 1 : 0;
      }
      if (running > 1 || slow.age_ns < age_ns) continue;
      if (slow.round != Round::kFirst && slow.age_ns < task.patience_ns) continue;
      age_ns = slow.age_ns;
      found = slow;
    }
    return found;
  }
  // Before the copy's hand-out.
  void copying(const Slow& slow) {
    if (slow.round != Round::kFirst) tasks_[slow.task].patience_ns = 2 * slow.age_ns;
  }

  Task& task(std::uint32_t index) { return tasks_[index]; }
  std::size_t unfinished() const { return in_use_; }
  std::uint64_t generated() const { return generated_; }
  std::uint64_t handed_out() const { return serial_; }

 private:
  void release(Handout& handout);
  // All among which the other hand-outs of its task are.
  std::span<const Handout> handouts_of(const Handout& handout) const {
    return tasks_[handout.task].handouts == 1 ? std::span(&handout, 1) : std::span(handouts_);
  }

  std::deque<Task> tasks_;
  std::vector<std::uint32_t> free_tasks_;
  std::deque<std::uint32_t> ready_;
  std::vector<Handout> handouts_;
  std::vector<std::uint32_t> free_handouts_;
  std::uint64_t serial_ = 0;
  std::uint64_t generated_ = 0;
  std::size_t in_use_ = 0;
};

}  // namespace shadowib::masterworker
