// A farm whose workers, network, deaths and restarts are simulated, by a seed; and a ledger of what must come out. No
// time passes.
//
// Each task has a script: REDOs, CONTINUATIONs, or both in turn, then NO_ACTION or UPDATE. Workers note in each
// output what they saw, so that the ledger can tell a result that is checked twice, an update that is missing, a REDO
// without its private data.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "libraries/masterworker/master.h"
#include "libraries/masterworker/replica.h"

namespace shadowib::masterworker {

struct FarmPlan {
  std::uint64_t seed = 1;
  int tasks = 40;
  int workers = 3;
  std::uint32_t ahead = 1;
  int phases = 1;
  bool deaths = true, stops = true, restarts = true, births = true, aborts = true;
  int stopped_for_ever = 1;  // workers that take nothing any more, in each life of the master; fewer than `workers`
};

class SimulatedFarm : public Courier {
 public:
  explicit SimulatedFarm(const FarmPlan& plan);

  // Runs to the end. Returns "" or the first rule that was broken.
  std::string run();
  const Counts& counts() const { return master_->counts(); }
  int stopped_for_ever() const { return stopped_; }
  int redos_after_continuations() const { return redos_after_continuations_; }

  void send_task(WorkerId to, const Handout& handout, std::uint64_t generation, const Payload& input) override;
  void send_update(WorkerId to, std::uint64_t number, const Payload& input, const Payload& output) override;
  void send_end(WorkerId to, std::uint64_t phase) override;
  void abort_all(WorkerId, std::uint64_t) override { ++aborts_; }
  void abort_one(WorkerId, std::uint64_t) override { ++aborts_; }
  bool answers(WorkerId worker) override { return find(worker) != nullptr && !find(worker)->stopped; }
  std::int64_t time_ns() override { return now_; }

 private:
  struct Input {
    std::uint32_t task, step;
  };
  struct Output {
    std::uint32_t task, step;
    std::uint64_t updates;
    Round round;
    bool has_private;
  };
  struct Message {
    enum { kTask, kUpdate, kEnd } kind;
    std::uint64_t number;
    Round round;
    std::uint64_t life;
    Payload input, output;
  };
  struct Worker {
    WorkerId id = 0;
    bool stopped = false, for_ever = false, dead = false, joined = false;
    std::uint64_t updates_at_birth = 0, phase = 0, life = 0;
    std::uint32_t private_task = 0;
    std::deque<Message> queue;
    Replica replica;
    std::vector<std::uint32_t> applied;  // shared data: tasks of updates, in order
  };
  struct InFlight {
    WorkerId from;
    std::uint64_t life, handout;
    Payload output;
  };
  // The program's data, which a checkpoint saves.
  struct Program {
    std::uint32_t generated = 0;
    std::vector<std::uint32_t> finished;  // times, by task
    std::vector<std::uint32_t> redos, steps;
    std::vector<std::uint32_t> applied;
  };

  void wrong(const std::string& text);
  Callbacks callbacks();
  Action check(const Input& input, const Output& output);
  void work_one(Worker& worker);
  void bear();
  void kill(Worker& worker);
  void restart();
  void happen();
  int stopped_now() const;  // of those that are for ever
  std::uint32_t script(std::uint32_t task, std::uint32_t salt) const;
  Worker* find(WorkerId id);
  bool chance(int of) { return random_() % static_cast<unsigned>(of) == 0; }

  FarmPlan plan_;
  std::mt19937_64 random_;
  std::unique_ptr<Master> master_;
  Program program_;
  std::unique_ptr<Master> saved_master_;
  Program saved_program_;
  std::map<WorkerId, Worker> workers_;
  std::deque<InFlight> in_flight_;
  std::string wrong_;
  WorkerId next_id_ = 0;
  std::uint64_t life_ = 1;
  std::int64_t now_ = 1;
  int aborts_ = 0, deaths_ = 0, restarts_ = 0, stopped_ = 0, redos_after_continuations_ = 0;
};

}  // namespace shadowib::masterworker
