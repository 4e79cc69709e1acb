#include "libraries/masterworker/master.h"

#include <algorithm>
#include <utility>

#include "libraries/masterworker/guard.h"
#include "libraries/masterworker/messages.h"

namespace shadowib::masterworker {
namespace {

// A worker that ends so soon is ended by what all do when they begin, and the next one is, too.
constexpr std::int64_t kJustJoinedNs = 10'000'000'000;

}  // namespace

Master::Master(Courier& courier, std::uint32_t ahead, Patience patience)
    : courier_(courier), ahead_(std::max(ahead, 1u)), patience_(patience) {}

void Master::begin(Callbacks callbacks) {
  if (tasks_.unfinished() != 0)
    give_up("a farm begins while %zu tasks of the one before are not over: did an exception leave a callback?",
            tasks_.unfinished());
  callbacks_ = std::move(callbacks);
  ++phase_;
  dry_ = !callbacks_.generate;
}

void Master::end() {
  if (std::exchange(abandoned_, false)) tasks_.abandon();
  for (auto& [worker, peer] : peers_) courier_.send_end(worker, phase_);
}

void Master::abandon() { abandoned_ = true; }

bool Master::step(std::int64_t now_ns) { return !abandoned_ && (check_one(now_ns) || feed_one(now_ns)); }

void Master::submit(Payload input) {
  if (abandoned_) return;
  ++counts_.tasks;
  tasks_.add(std::move(input));
}

bool Master::check_one(std::int64_t now_ns) {
  if (results_.empty()) return false;
  Result result = std::move(results_.front());
  results_.pop_front();
  const auto peer = peers_.find(result.worker);
  if (peer != peers_.end()) {
    if (peer->second.outstanding != 0) --peer->second.outstanding;
    if (peer->second.arrived != 0) --peer->second.arrived;
    want_more(result.worker, peer->second);
  }
  std::optional<Accepted> accepted = tasks_.accept(result.handout, result.worker);
  if (!accepted) {
    ++counts_.late;
    return true;
  }
  deaths_in_a_row_ = 0;
  const std::int64_t since = peer != peers_.end() ? peer->second.heard_ns : 0;
  busy_ns_ += now_ns - std::max(accepted->handout.begun_ns, since);
  ++finished_;
  if (peer != peers_.end()) peer->second.heard_ns = now_ns;
  for (const Handout& loser : accepted->losers) courier_.abort_one(loser.worker, loser.id);
  // By value: the callback may submit tasks, and so move the table.
  const Payload input = tasks_.task(accepted->task).input;
  checked_ = accepted->handout;
  ++counts_.checks;
  Action action = callbacks_.check(input, result.output);
  act(accepted->task, std::move(action), input, result.output);
  checked_.reset();
  dry_ = !callbacks_.generate;
  return true;
}

void Master::act(std::uint32_t task, Action action, const Payload& input, const Payload& output) {
  switch (action.kind) {
    case ActionKind::kUpdate:
      broadcast(input, output);
      [[fallthrough]];
    case ActionKind::kNoAction:
      tasks_.finish(task);
      return;
    case ActionKind::kRedo:
      ++counts_.redos;
      tasks_.redo(task);
      break;
    case ActionKind::kContinuation:
      ++counts_.continuations;
      tasks_.continue_with(task, std::move(action.next));
      break;
  }
  const WorkerId home = tasks_.task(task).home;
  if (const auto peer = peers_.find(home); peer != peers_.end())
    hand_out(task, home, peer->second);
  else
    tasks_.begin_anew(task);
}

void Master::broadcast(const Payload& input, const Payload& output) {
  ++counts_.updates;
  if (callbacks_.update) callbacks_.update(input, output);
  const std::uint64_t number = log_.append(phase_, input, output);
  if (log_.has_let_go())
    warn(
        "the first %llu updates take more memory than --TOPC-keep-updates allows, so they are kept no more: workers "
        "from elsewhere that come from now on are refused",
        static_cast<unsigned long long>(number));
  for (auto& [worker, peer] : peers_) courier_.send_update(worker, number, input, output);
}

bool Master::feed_one(std::int64_t now_ns) {
  while (!hungry_.empty()) {
    const WorkerId worker = hungry_.front();
    const auto peer = peers_.find(worker);
    if (peer == peers_.end() || peer->second.outstanding >= ahead_) {  // gone, or a REDO has come between
      if (peer != peers_.end()) peer->second.hungry = false;
      hungry_.pop_front();
      continue;
    }
    std::optional<std::uint32_t> task = tasks_.take_ready();
    if (!task && slow_ns_ != 0) {
      task = copy_for(worker, now_ns, slow_ns_);
      slow_ns_ = 0;
    }
    if (!task && !dry_) {
      if (std::optional<Payload> input = callbacks_.generate()) {
        ++counts_.tasks;
        tasks_.add(std::move(*input));
        task = tasks_.take_ready();
      } else {
        dry_ = true;
      }
    }
    if (!task) return false;
    peer->second.hungry = false;
    hungry_.pop_front();
    hand_out(*task, worker, peer->second);
    want_more(worker, peer->second);
    return true;
  }
  return false;
}

void Master::hand_out(std::uint32_t task, WorkerId worker, Peer& peer) {
  const Handout handout = tasks_.hand_out(task, worker, log_.count(), courier_.time_ns());
  ++peer.outstanding;
  const Task& of = tasks_.task(task);
  courier_.send_task(worker, handout, generation_, handout.round == Round::kFirst ? of.original : of.input);
}

std::optional<std::uint32_t> Master::copy_for(WorkerId worker, std::int64_t now_ns, std::int64_t age_ns) {
  struct Peers {
    const Master& master;
    std::int64_t since_ns(WorkerId peer) const { return master.last_heard_ns(peer); }
    bool answers(WorkerId peer) const { return master.courier_.answers(peer); }
  };
  const std::optional<Slow> slow = tasks_.slowest(worker, now_ns, age_ns, Peers{*this});
  if (!slow) return std::nullopt;
  tasks_.copying(*slow);
  ++counts_.copies;
  return slow->task;
}

void Master::want_more(WorkerId worker, Peer& peer) {
  if (peer.hungry || peer.outstanding >= ahead_) return;
  peer.hungry = true;
  hungry_.push_back(worker);
}

bool Master::joined(WorkerId worker, std::uint64_t updates, std::uint64_t phase) {
  if (!log_.reaches(updates)) return false;
  Peer& peer = peers_[worker];
  peer.joined_ns = courier_.time_ns();
  // In order: the updates of a phase, its end, those of the next.
  std::uint64_t at = phase;
  if (guarded(Guard::kCatchUp)) {
    for (std::uint64_t number = updates + 1; number <= log_.count(); ++number) {
      const Update* update = log_.find(number);
      for (; at < update->phase; ++at)
        if (at != 0) courier_.send_end(worker, at);
      courier_.send_update(worker, number, update->input, update->output);
    }
  }
  for (; at < phase_; ++at)
    if (at != 0) courier_.send_end(worker, at);
  want_more(worker, peer);
  return true;
}

void Master::gone(WorkerId worker, bool told) {
  const auto peer = peers_.find(worker);
  if (peer == peers_.end()) return;
  const bool just_joined = courier_.time_ns() - peer->second.joined_ns < kJustJoinedNs;
  peers_.erase(peer);
  std::erase(hungry_, worker);
  const std::uint32_t deaths = tasks_.worker_gone(worker);
  if (told) return;
  ++counts_.deaths;
  if (deaths != 0 || just_joined) ++deaths_in_a_row_;
}

void Master::arrived(WorkerId worker, std::uint64_t handout, Payload output) {
  tasks_.arrived(handout, worker);
  if (const auto peer = peers_.find(worker); peer != peers_.end()) ++peer->second.arrived;
  results_.push_back({worker, handout, std::move(output)});
}

void Master::restarted() {
  peers_.clear();
  hungry_.clear();
  results_.clear();
  tasks_.restarted();
  deaths_in_a_row_ = 0;
}

std::uint64_t Master::bear() {
  log_.pin(log_.count());
  return log_.count();
}

bool Master::bear_with(std::uint64_t updates) {
  if (!log_.reaches(updates)) return false;
  log_.pin(updates);
  return true;
}

void Master::tick(std::int64_t now_ns) {
  const std::int64_t slow_ns =
      std::max(static_cast<std::int64_t>(patience_.means * static_cast<double>(mean_ns())), patience_.least_ns);
  const std::int64_t idle_ns = std::max(mean_ns(), patience_.idle_ns);
  for (std::size_t left = hungry_.size(); left != 0; --left) {
    const WorkerId worker = hungry_.front();
    hungry_.pop_front();
    const auto peer = peers_.find(worker);
    if (peer == peers_.end()) continue;
    peer->second.hungry = false;
    if (peer->second.outstanding >= ahead_) continue;  // a REDO has come between
    const bool nothing_else = dry_ && !tasks_.has_ready() && peer->second.outstanding == 0;
    if (const auto task = copy_for(worker, now_ns, nothing_else ? idle_ns : slow_ns))
      hand_out(*task, worker, peer->second);
    want_more(worker, peer->second);
  }
  slow_ns_ = slow_ns;  // where all are busy, the next that is not looks for one
}

void Master::abort_tasks() {
  ++generation_;
  for (auto& [worker, peer] : peers_)
    if (peer.outstanding != 0) courier_.abort_all(worker, generation_);
}

bool Master::up_to_date() const {
  if (!checked_) return true;
  return !guarded(Guard::kJudgeHandout) || checked_->updates == log_.count();
}

std::size_t Master::idle_workers() const {
  return static_cast<std::size_t>(
      std::count_if(peers_.begin(), peers_.end(), [](const auto& entry) { return entry.second.outstanding == 0; }));
}

bool Master::has_tasks(WorkerId worker) const {
  const auto peer = peers_.find(worker);
  return peer != peers_.end() && peer->second.outstanding > peer->second.arrived;
}

std::int64_t Master::last_heard_ns(WorkerId worker) const {
  const auto peer = peers_.find(worker);
  return peer == peers_.end() ? 0 : peer->second.heard_ns;
}

}  // namespace shadowib::masterworker
