#include "libraries/masterworker/tasks.h"

#include <algorithm>
#include <utility>

#include "libraries/masterworker/guard.h"

namespace shadowib::masterworker {
namespace {

// A hand-out's id has its slot in the low bits, so that a result finds it without a search.
constexpr int kSlotBits = 24;
constexpr std::uint64_t kSlotMask = (std::uint64_t{1} << kSlotBits) - 1;

}  // namespace

std::uint32_t TaskTable::add(Payload input) {
  std::uint32_t index;
  if (free_tasks_.empty()) {
    index = static_cast<std::uint32_t>(tasks_.size());
    tasks_.emplace_back();
  } else {
    index = free_tasks_.back();
    free_tasks_.pop_back();
  }
  Task& task = tasks_[index];
  task = Task{};
  task.number = ++generated_;
  task.input = input;
  task.original = std::move(input);
  task.in_use = true;
  ++in_use_;
  ready_.push_back(index);
  return index;
}

std::optional<std::uint32_t> TaskTable::take_ready() {
  if (ready_.empty()) return std::nullopt;
  const std::uint32_t index = ready_.front();
  ready_.pop_front();
  return index;
}

Handout TaskTable::hand_out(std::uint32_t task, WorkerId worker, std::uint64_t updates, std::int64_t now_ns) {
  std::uint32_t slot;
  if (free_handouts_.empty()) {
    slot = static_cast<std::uint32_t>(handouts_.size());
    handouts_.emplace_back();
  } else {
    slot = free_handouts_.back();
    free_handouts_.pop_back();
  }
  Task& of = tasks_[task];
  Handout& handout = handouts_[slot];
  // A REDO away from home has no private data to build on: it is the task from its beginning (M5).
  const bool at_home = worker == of.home || !guarded(Guard::kRedoAtHome);
  handout = {++serial_ << kSlotBits | slot, task, at_home ? of.round : Round::kFirst, worker, updates, now_ns};
  ++of.handouts;
  return handout;
}

void TaskTable::release(Handout& handout) {
  --tasks_[handout.task].handouts;
  handout.id = 0;
  free_handouts_.push_back(static_cast<std::uint32_t>(&handout - handouts_.data()));
}

void TaskTable::arrived(std::uint64_t id, WorkerId worker) {
  const std::uint64_t slot = id & kSlotMask;
  if (slot < handouts_.size() && handouts_[slot].id == id && handouts_[slot].worker == worker)
    handouts_[slot].arrived = true;
}

std::optional<Accepted> TaskTable::accept(std::uint64_t id, WorkerId worker) {
  const std::uint64_t slot = id & kSlotMask;
  if (slot >= handouts_.size()) return std::nullopt;
  Handout& handout = handouts_[slot];
  if (guarded(Guard::kDropLate) ? handout.id != id || handout.worker != worker : handout.id == 0) return std::nullopt;
  Accepted accepted{handout.task, handout, {}};
  release(handout);
  Task& task = tasks_[accepted.task];
  task.home = worker;
  task.deaths = 0;
  task.round = accepted.handout.round;
  if (task.round == Round::kFirst) task.input = task.original;
  if (task.handouts != 0 && guarded(Guard::kDropLate)) {
    for (Handout& other : handouts_) {
      if (other.id == 0 || other.task != accepted.task) continue;
      accepted.losers.push_back(other);
      release(other);
    }
  }
  return accepted;
}

void TaskTable::finish(std::uint32_t index) {
  Task& task = tasks_[index];
  if (!task.in_use) return;
  task.in_use = false;
  task.input = task.original = Payload();
  --in_use_;
  if (task.handouts == 0) free_tasks_.push_back(index);
}

void TaskTable::redo(std::uint32_t index) { tasks_[index].round = Round::kRedo; }

void TaskTable::continue_with(std::uint32_t index, Payload next) {
  tasks_[index].round = Round::kContinuation;
  tasks_[index].input = std::move(next);
}

void TaskTable::begin_anew(std::uint32_t index) {
  Task& task = tasks_[index];
  task.round = Round::kFirst;
  task.input = task.original;
  task.home = 0;
  ready_.push_front(index);
}

std::uint32_t TaskTable::worker_gone(WorkerId worker) {
  std::uint32_t most = 0;
  std::vector<std::uint32_t> anew;
  for (Handout& handout : handouts_) {
    if (handout.id == 0 || handout.worker != worker || handout.arrived) continue;
    Task& task = tasks_[handout.task];
    most = std::max(most, ++task.deaths);
    const std::uint32_t index = handout.task;
    release(handout);
    if (task.handouts == 0 && task.in_use) anew.push_back(index);
  }
  std::sort(anew.begin(), anew.end(), [this](auto a, auto b) { return tasks_[a].number > tasks_[b].number; });
  for (const std::uint32_t index : anew) begin_anew(index);
  return most;
}

void TaskTable::restarted() {
  std::vector<std::uint32_t> anew;
  for (Handout& handout : handouts_)
    if (handout.id != 0) release(handout);
  ready_.clear();
  for (std::uint32_t index = 0; index < tasks_.size(); ++index)
    if (tasks_[index].in_use) anew.push_back(index);
  std::sort(anew.begin(), anew.end(), [this](auto a, auto b) { return tasks_[a].number > tasks_[b].number; });
  for (const std::uint32_t index : anew) begin_anew(index);
}

void TaskTable::abandon() {
  for (Handout& handout : handouts_)
    if (handout.id != 0) release(handout);
  ready_.clear();
  for (std::uint32_t index = 0; index < tasks_.size(); ++index) finish(index);
}

}  // namespace shadowib::masterworker
