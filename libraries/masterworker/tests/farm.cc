#include "libraries/masterworker/tests/farm.h"

#include <algorithm>
#include <cstring>

#include "libraries/masterworker/guard.h"

namespace shadowib::masterworker {
namespace {

template <typename T>
Payload payload(const T& value) {
  return Payload::copy(&value, sizeof(value));
}
template <typename T>
T value_of(const Payload& bytes) {
  T value{};
  if (bytes.size() == sizeof(value)) std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

}  // namespace

SimulatedFarm::SimulatedFarm(const FarmPlan& plan) : plan_(plan), random_(plan.seed) {
  master_ = std::make_unique<Master>(*this, plan.ahead);
  const auto all = static_cast<std::size_t>(plan.tasks) * static_cast<std::size_t>(plan.phases);
  program_.finished.resize(all);
  program_.redos.resize(all);
  program_.steps.resize(all);
}

void SimulatedFarm::wrong(const std::string& text) {
  if (wrong_.empty()) wrong_ = "seed " + std::to_string(plan_.seed) + ": " + text;
}

std::uint32_t SimulatedFarm::script(std::uint32_t task, std::uint32_t salt) const {
  std::uint64_t x = plan_.seed * 0x9e3779b97f4a7c15 + task * 0xbf58476d1ce4e5b9 + salt * 0x94d049bb133111eb;
  x ^= x >> 31;
  x *= 0xff51afd7ed558ccd;
  return static_cast<std::uint32_t>(x >> 33);
}

Callbacks SimulatedFarm::callbacks() {
  Callbacks all;
  all.generate = [this]() -> std::optional<Payload> {
    if (program_.generated == master_->phase() * static_cast<std::uint64_t>(plan_.tasks)) return std::nullopt;
    return payload(Input{program_.generated++, 0});
  };
  all.check = [this](const Payload& input, const Payload& output) {
    return check(value_of<Input>(input), value_of<Output>(output));
  };
  all.update = [this](const Payload& input, const Payload&) {
    program_.applied.push_back(value_of<Input>(input).task);
  };
  return all;
}

Action SimulatedFarm::check(const Input& input, const Output& output) {
  const std::string name = "task " + std::to_string(input.task) + " step " + std::to_string(input.step) + ": ";
  if (input.task != output.task || input.step != output.step) wrong(name + "the result is of another round");
  if (program_.finished[input.task] != 0) wrong(name + "checked after its end (M1)");
  if (output.round != master_->checked_round()) wrong(name + "master and worker disagree about the round");
  if (output.round == Round::kRedo && !output.has_private) wrong(name + "REDO without its private data (M5)");
  if (master_->up_to_date() != (output.updates == master_->updates().count()))
    wrong(name + "up to date is wrong (M4)");
  if (output.round == Round::kContinuation && input.step != program_.steps[input.task])
    wrong(name + "a step is missing or doubled");
  program_.steps[input.task] = input.step;
  Action action;
  if (plan_.aborts && script(input.task, 5) % 16 == 0) master_->abort_tasks();
  const std::uint32_t kind = script(input.task, 1) % 4;  // 0: REDO, 1: CONTINUATION, 2: each step is done twice
  const std::uint32_t redos = kind == 0 ? script(input.task, 2) % 3 : kind == 2 ? input.step + 1 : 0;
  if (program_.redos[input.task] < redos) {
    if (output.round == Round::kContinuation) ++redos_after_continuations_;
    ++program_.redos[input.task];
    action.kind = ActionKind::kRedo;
  } else if ((kind == 1 || kind == 2) && input.step < script(input.task, 3) % 4) {
    action.kind = ActionKind::kContinuation;
    action.next = payload(Input{input.task, program_.steps[input.task] = input.step + 1});
  } else {
    ++program_.finished[input.task];
    action.kind = script(input.task, 4) % 3 == 0 ? ActionKind::kUpdate : ActionKind::kNoAction;
  }
  return action;
}

SimulatedFarm::Worker* SimulatedFarm::find(WorkerId id) {
  const auto at = workers_.find(id);
  return at == workers_.end() || at->second.dead ? nullptr : &at->second;
}

void SimulatedFarm::send_task(WorkerId to, const Handout& handout, std::uint64_t, const Payload& input) {
  if (Worker* worker = find(to))
    worker->queue.push_back({Message::kTask, handout.id, handout.round, life_, input, {}});
}
void SimulatedFarm::send_update(WorkerId to, std::uint64_t number, const Payload& input, const Payload& output) {
  if (Worker* worker = find(to))
    worker->queue.push_back({Message::kUpdate, number, Round::kFirst, life_, input, output});
}
void SimulatedFarm::send_end(WorkerId to, std::uint64_t phase) {
  if (Worker* worker = find(to)) worker->queue.push_back({Message::kEnd, phase, Round::kFirst, life_, {}, {}});
}

void SimulatedFarm::work_one(Worker& worker) {
  const Message message = worker.queue.front();
  worker.queue.pop_front();
  const Input input = message.input.size() != 0 ? value_of<Input>(message.input) : Input{};
  switch (message.kind) {
    case Message::kTask: {
      const Output output{input.task, input.step, worker.applied.size(), message.round,
                          worker.private_task == input.task + 1};
      worker.private_task = input.task + 1;
      in_flight_.push_back({worker.id, message.life, message.number, payload(output)});
      return;
    }
    case Message::kUpdate:
      switch (worker.replica.next(message.number, message.input, message.output)) {
        case Replica::Verdict::kApply:
          worker.applied.push_back(input.task);
          return;
        case Replica::Verdict::kKnown:
          return;
        case Replica::Verdict::kGap:
          wrong("a worker lacks an update (M2)");
      }
      return;
    case Message::kEnd:
      if (message.number < worker.phase) wrong("a phase ends twice");
      worker.phase = message.number + 1;
  }
}

void SimulatedFarm::bear() {
  Worker worker;
  worker.id = ++next_id_;
  worker.updates_at_birth = master_->bear();
  worker.phase = master_->phase();
  worker.life = life_;
  worker.applied = program_.applied;
  worker.replica = Replica(master_->updates().count(), master_->updates().hash());
  workers_[worker.id] = worker;
}

void SimulatedFarm::kill(Worker& worker) {
  worker.dead = true;
  ++deaths_;
  if (!worker.joined) master_->born(worker.updates_at_birth);
}

void SimulatedFarm::restart() {
  ++restarts_;
  // Late results of the old life may still arrive, and their workers' names are given anew.
  for (auto& [id, worker] : workers_) worker.dead = true;
  master_ = std::make_unique<Master>(*saved_master_);
  program_ = saved_program_;
  workers_.clear();
  next_id_ = 0;
  ++life_;
  master_->restarted();
}

int SimulatedFarm::stopped_now() const {
  return static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(), [](const auto& entry) { return entry.second.for_ever; }));
}

void SimulatedFarm::happen() {
  if (plan_.births && workers_.size() < static_cast<std::size_t>(plan_.workers)) bear();
  for (auto at = workers_.begin(); at != workers_.end();) {
    Worker& worker = at->second;
    if (worker.dead) {  // noticed sooner or later
      if (!chance(4)) {
        ++at;
        continue;
      }
      master_->gone(worker.id);
      at = workers_.erase(at);
      continue;
    }
    if (!worker.joined && chance(3)) {
      worker.joined = true;
      if (!master_->joined(worker.id, worker.updates_at_birth, worker.phase))
        wrong("the log does not reach back to a birth");
      master_->born(worker.updates_at_birth);
    }
    if (plan_.stops && chance(30)) worker.stopped = !worker.stopped || worker.for_ever;
    if (plan_.stops && worker.joined && stopped_now() < plan_.stopped_for_ever && chance(60)) {
      worker.stopped = worker.for_ever = true;
      ++stopped_;
    }
    if (plan_.deaths && !worker.for_ever && chance(60)) kill(worker);
    if (!worker.dead && !worker.stopped && !worker.queue.empty() && chance(2)) work_one(worker);
    ++at;
  }
  if (!in_flight_.empty() && chance(2)) {
    // In order per worker; between workers any.
    std::size_t which = random_() % in_flight_.size();
    for (std::size_t i = 0; i < which; ++i)
      if (in_flight_[i].from == in_flight_[which].from) which = i;
    const InFlight result = in_flight_[which];
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(which));
    if (result.life == life_ || !guarded(Guard::kKnowLife))
      master_->arrived(result.from, result.handout, result.output);
  }
  if (plan_.restarts && chance(100)) {
    saved_master_ = std::make_unique<Master>(*master_);
    saved_program_ = program_;
  } else if (plan_.restarts && saved_master_ && restarts_ < 6 && chance(100)) {
    restart();
  }
  now_ += 50'000'000;
  if (chance(5)) master_->tick(now_);
}

std::string SimulatedFarm::run() {
  for (int phase = 1; phase <= plan_.phases && wrong_.empty(); ++phase) {
    saved_master_.reset();
    master_->begin(callbacks());
    for (int steps = 0; !master_->done() && wrong_.empty(); ++steps) {
      happen();
      for (int i = static_cast<int>(random_() % 4); i > 0; --i) master_->step(now_);
      if (steps == 1'000'000) wrong("the farm does not end");
    }
    master_->end();
  }
  for (auto& [id, worker] : workers_) {
    while (!worker.dead && worker.joined && !worker.queue.empty()) work_one(worker);
    if (worker.dead || !worker.joined) continue;
    if (worker.applied != program_.applied) wrong("a worker's updates are not the master's (M2)");
    if (!(worker.replica.hash() == master_->updates().hash()))
      wrong("a worker's fingerprint is not the master's (M2)");
  }
  for (std::size_t task = 0; task < program_.finished.size(); ++task)
    if (program_.finished[task] != 1)
      wrong("task " + std::to_string(task) + " ended " + std::to_string(program_.finished[task]) + " times");
  return wrong_;
}

}  // namespace shadowib::masterworker
