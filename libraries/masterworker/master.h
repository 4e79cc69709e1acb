// The master of a farm: hands out tasks, checks results, broadcasts updates. Decides everything and does no I/O:
// messages go to a Courier, time comes in. So its rules are tested with simulated workers (tests/farm.h).
//
// Not thread-safe. Callbacks are called from step() and submit() alone.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <unordered_map>

#include "libraries/masterworker/tasks.h"
#include "libraries/masterworker/updates.h"

namespace shadowib::masterworker {

struct Callbacks {
  std::function<std::optional<Payload>()> generate;                          // nothing: NOTASK
  std::function<Payload(void* input)> work;                                  // worker
  std::function<Action(const Payload& input, const Payload& output)> check;  // master
  std::function<void(const Payload& input, const Payload& output)> update;   // everywhere; may be empty
};

// The master's messages to workers. A message to a worker arrives behind all earlier ones to it, or the worker is
// gone.
class Courier {
 public:
  virtual ~Courier() = default;
  // Aborts up to `generation` do not concern the task.
  virtual void send_task(WorkerId to, const Handout& handout, std::uint64_t generation, const Payload& input) = 0;
  virtual void send_update(WorkerId to, std::uint64_t number, const Payload& input, const Payload& output) = 0;
  virtual void send_end(WorkerId to, std::uint64_t phase) = 0;
  // Overtakes messages: tasks handed out before `generation` are asked to end soon.
  virtual void abort_all(WorkerId to, std::uint64_t generation) = 0;
  virtual void abort_one(WorkerId to, std::uint64_t handout) = 0;
  // False: the worker has given no sign of life for a while, whatever it has to do. It is stopped, or overloaded.
  virtual bool answers(WorkerId worker) = 0;
  // The time now, in that of step() and tick(): a callback of the program may have taken long since.
  virtual std::int64_t time_ns() = 0;
};

// When a worker counts as slow. Ratios, not times: what is long for one program is short for another.
struct Patience {
  double means = 3;                       // of the tasks' mean duration
  std::int64_t least_ns = 1'000'000'000;  // and no less than this
  std::int64_t idle_ns = 250'000'000;     // where workers have nothing else to do: one mean, and no less than this
};

struct Counts {
  std::uint64_t tasks = 0, checks = 0, redos = 0, continuations = 0, updates = 0, copies = 0, late = 0, deaths = 0;
  std::uint64_t buffer_bytes = 0;  // of the wire, in the master
  std::uint64_t spins_alone = 0;   // rounds of the idle master without a worker that did not sleep
};

class Master {
 public:
  // Posts up to `ahead` tasks to each worker. `courier` outlives the master.
  Master(Courier& courier, std::uint32_t ahead, Patience patience = {});

  // Keeps so many bytes of updates, for workers that are no forks. Call it before the first phase.
  void keep_updates(std::uint64_t most_bytes) { log_.keep_all(most_bytes); }

  // A phase: one call of TOPC_master_slave. Workers that end() does not reach any more end it when they join the
  // next.
  // Gives up if tasks of the phase before are not over: an exception has left it.
  void begin(Callbacks callbacks);
  void end();
  // The phase is over at once: no callback is called any more. Call end() behind it. May be called in callbacks.
  void abandon();
  std::uint64_t phase() const { return phase_; }

  // Does one thing: checks a result or hands out a task. False: there is nothing to do before something arrives.
  bool step(std::int64_t now_ns);
  // No task is left, and none will come.
  bool done() const { return abandoned_ || (dry_ && tasks_.unfinished() == 0 && results_.empty()); }
  // Raw interface: a task from outside of generate().
  void submit(Payload input);
  bool all_handed_out() const { return abandoned_ || !tasks_.has_ready(); }
  std::size_t unfinished() const { return abandoned_ ? 0 : tasks_.unfinished(); }

  // A worker that has `updates` updates and is in `phase` joins: it gets what it lacks. False: the log does not reach
  // back so far.
  bool joined(WorkerId worker, std::uint64_t updates, std::uint64_t phase);
  void gone(WorkerId worker, bool told = false);
  // The result of a hand-out, in order of arrival.
  void arrived(WorkerId worker, std::uint64_t handout, Payload output);
  // Every worker is gone: this is a restarted process.
  void restarted();
  // A worker is forked now; born() when it has joined or will not.
  std::uint64_t bear();
  // A worker with so many updates is on its way. False: the log does not reach back so far, and there is no birth.
  bool bear_with(std::uint64_t updates);
  void born(std::uint64_t updates) { log_.release(updates); }

  // Now and then (Patience::idle_ns): copies of slow tasks.
  void tick(std::int64_t now_ns);
  void abort_tasks();

  bool up_to_date() const;
  Round checked_round() const { return checked_ ? checked_->round : Round::kFirst; }
  std::size_t workers() const { return peers_.size(); }
  std::size_t idle_workers() const;
  // It has something to do, as far as its results tell.
  bool has_tasks(WorkerId worker) const;
  std::int64_t last_heard_ns(WorkerId worker) const;
  // Deaths with tasks, or of workers that had just joined, without a result between them.
  std::uint32_t deaths_in_a_row() const { return deaths_in_a_row_; }
  const Counts& counts() const { return counts_; }
  const UpdateLog& updates() const { return log_; }

 private:
  struct Peer {
    std::uint32_t outstanding = 0;  // tasks without a check
    std::uint32_t arrived = 0;      // results that wait for theirs
    bool hungry = false;
    std::int64_t heard_ns = 0;
    std::int64_t joined_ns = 0;
  };
  struct Result {
    WorkerId worker;
    std::uint64_t handout;
    Payload output;
  };

  bool check_one(std::int64_t now_ns);
  bool feed_one(std::int64_t now_ns);
  void act(std::uint32_t task, Action action, const Payload& input, const Payload& output);
  void hand_out(std::uint32_t task, WorkerId worker, Peer& peer);
  void broadcast(const Payload& input, const Payload& output);
  // A copy of the task that takes longest, if one takes `age_ns`.
  std::optional<std::uint32_t> copy_for(WorkerId worker, std::int64_t now_ns, std::int64_t age_ns);
  void want_more(WorkerId worker, Peer& peer);
  std::int64_t mean_ns() const { return finished_ == 0 ? 0 : busy_ns_ / finished_; }

  Courier& courier_;
  std::uint32_t ahead_;
  Patience patience_;
  Callbacks callbacks_;
  TaskTable tasks_;
  UpdateLog log_;
  std::unordered_map<WorkerId, Peer> peers_;
  std::deque<WorkerId> hungry_;
  std::deque<Result> results_;
  std::optional<Handout> checked_;
  std::uint64_t phase_ = 0;
  std::uint64_t generation_ = 0;
  bool dry_ = true;
  bool abandoned_ = false;
  std::int64_t busy_ns_ = 0, finished_ = 0;
  std::int64_t slow_ns_ = 0;  // not 0: the next worker that has room looks for a task that takes longer
  std::uint32_t deaths_in_a_row_ = 0;
  Counts counts_;
};

}  // namespace shadowib::masterworker
