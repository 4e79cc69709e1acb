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

  // An outstanding hand-out, not of `worker`, that is worth a copy: the oldest over `age_ns` whose task has one
  // hand-out only. `since` gives when a worker was last heard of.
  //
  // The copy of a REDO or CONTINUATION begins the task anew, so its first result is soon there, and takes the task
  // back. Each time only after twice the age: else a long round would never come to its end.
  template <typename Since>
  std::optional<Slow> slowest(WorkerId worker, std::int64_t now_ns, std::int64_t age_ns, Since since) const {
    std::optional<Slow> found;
    for (const Handout& handout : handouts_) {
      if (handout.id == 0 || handout.worker == worker || handout.arrived) continue;
      const Task& task = tasks_[handout.task];
      if (task.handouts != 1) continue;
      const std::int64_t age = now_ns - std::max(handout.begun_ns, since(handout.worker));
      if (age < age_ns || (handout.round != Round::kFirst && age < task.patience_ns)) continue;
      age_ns = age;
      found = {handout.task, handout.round, age};
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
