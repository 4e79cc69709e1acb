#include "hooks/agent/gate.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "hooks/agent/agent_state.h"
#include "hooks/agent/gate_board.h"
#include "hooks/agent/own_cluster.h"
#include "hooks/job/job_directory.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

constexpr std::uint64_t kNothing = GateBoard::kNothing, kUnknown = 0;
constexpr int kLooksMs = 5;
constexpr std::int64_t kBoardNs = 20'000'000;         // a look at the board
constexpr std::int64_t kPatienceNs = 10'000'000'000;  // until somebody is told
constexpr std::int64_t kSilenceNs = 1'000'000'000;    // until it is asked whether a silent member has ended

using Values = GateBoard::Values;

struct Gates {
  std::uint32_t shut = 0;      // a bit for each cluster
  RecoveryPlan plan;           // the latest; number 0: it is not known yet
  bool owes = false;           // this member has not said anything under it
  Values left;                 // what it has said last
  std::vector<Values> others;  // as far as it is known, by place in plan.replaying
  std::int64_t since_ns = 0;   // nothing has changed
  bool on_board = false;       // the last look was at the board, to its end
};
Gates g_gates;

SpinLock g_board_lock;  // of what the participant's threads see
GateBoard* g_board SHADOWIB_GUARDED_BY(g_board_lock) = nullptr;
Values g_awaits SHADOWIB_GUARDED_BY(g_board_lock) = {};  // note_gate_moved()

// While it lives, the participant's threads write on the board.
class Writing {
 public:
  // `left`: of this member.
  Writing(GateBoard& board, const Values& left) {
    SpinGuard guard(g_board_lock);
    g_board = &board;
    for (unsigned i = 0; i < left.size(); ++i) board.write(i, left[i], g_awaits[i]);
  }
  ~Writing() {
    SpinGuard guard(g_board_lock);
    g_board = nullptr;
  }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;
};

bool is_shut(unsigned cluster) { return (g_gates.shut >> cluster & 1) != 0; }

void tell(unsigned cluster, std::uint64_t earliest, bool first) {
  if (g_agent.participant != nullptr) g_agent.participant->set_gate(cluster, earliest, first);
}

// Whether this member says what it has left to send again. Others only listen: what they send must not pass that.
bool replays() {
  const std::vector<std::uint32_t>& members = g_gates.plan.replaying;
  return std::find(members.begin(), members.end(), g_job.info.member) != members.end();
}

// The line by which the clusters that went back live now.
bool find_plan() {
  if (g_gates.plan.number != 0) return true;
  std::vector<RecoveryPlan> plans;
  if (!read_plans(*g_job.exchange, g_job.info.epoch, &plans, nullptr).ok() || plans.empty()) return false;
  const RecoveryPlan& last = plans.back();
  const federation::PerCluster& live = own_cluster().running.incarnations;
  for (unsigned i = 0; i < federation::kMaxClusters; ++i)
    if (is_shut(i) && (i >= last.incarnations.clusters || last.incarnations[i] < live[i])) return false;
  g_gates.plan = last;
  g_gates.owes = replays();
  return true;
}

// Of all clusters: others may still wait for one that this member has no gate of any more.
Values left_here() {
  Values left;
  for (unsigned i = 0; i < left.size(); ++i)
    left[i] = g_agent.participant != nullptr ? g_agent.participant->gate_earliest(i) : kNothing;
  return left;
}

std::string encode(const Values& left) {
  std::string text;
  for (unsigned i = 0; i < left.size(); ++i)
    if (left[i] != kNothing) text += (text.empty() ? "" : ",") + std::to_string(i) + ":" + std::to_string(left[i]);
  return text;
}

Values decode(const std::string& text) {
  Values left;
  left.fill(kNothing);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size()), colon = text.find(':', at);
    const unsigned long cluster = std::strtoul(text.c_str() + at, nullptr, 10);
    if (colon < end && cluster < left.size()) left[cluster] = std::strtoull(text.c_str() + colon + 1, nullptr, 10);
    at = end + 1;
  }
  return left;
}

std::string key_of(std::uint32_t member) {
  return recovery_key(g_job.info.epoch, g_gates.plan.number, "gate/" + std::to_string(member));
}

std::string board_file() {
  return job_paths(g_job.info.directory, g_job.info.job).top + "/" +
         gate_board_name(g_job.info.epoch, g_gates.plan.number);
}

bool say(const Values& left) {
  if (!replays() || (!g_gates.owes && left == g_gates.left)) return true;
  g_gates.owes = true;  // until it is there: the next recovery asks for it, too
  if (!g_job.exchange->publish(key_of(g_job.info.member), encode_fields({{"left", encode(left)}})).ok()) return false;
  g_gates.left = left;
  g_gates.owes = false;
  return true;
}

// What another one has said; false: nothing.
bool hear(std::uint32_t member, Values* left) {
  std::string text;
  bool found = false;
  Fields fields;
  if (!g_job.exchange->get(key_of(member), &text, &found).ok() || !found || !decode_fields(text, &fields))
    return false;
  *left = decode(field_text(fields, "left"));
  return true;
}

// It had nothing to send again, or it would have stayed (must_send_again()).
bool has_ended(std::uint32_t member) {
  const std::int64_t now = monotonic_ns();
  if (g_gates.since_ns == 0) g_gates.since_ns = now;
  if (now - g_gates.since_ns < kSilenceNs) return false;
  std::string text;
  bool found = false;
  return g_job.exchange->get(std::string(g_job.info.epoch) + "/gone/" + std::to_string(member), &text, &found).ok() &&
         found;
}

void warn_of_long_wait(std::uint32_t waits_for) {
  const std::int64_t now = monotonic_ns();
  if (g_gates.since_ns == 0) g_gates.since_ns = now;
  if (now - g_gates.since_ns < kPatienceNs) return;
  g_gates.since_ns = now;
  log_line(
      LogLevel::kWarn,
      "messages to a cluster that went back wait for member %u, which has not sent it all again that it has to: "
      "the cluster may have no receives for it yet, or wait for an answer that waits as well; `restart --job` bounds "
      "that by --patience",
      waits_for);
}

// What is on the board. True: something has changed.
bool hear_and_tell(const GateBoard& board, Values* left) {
  const Values now = left_here();
  bool changed = now != *left;
  *left = now;
  const std::vector<std::uint32_t>& members = g_gates.plan.replaying;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] == g_job.info.member) continue;
    const Values told = board.read(members[i]);
    for (unsigned c = 0; c < told.size(); ++c) {
      changed = changed || told[c] > g_gates.others[i][c];
      g_gates.others[i][c] = std::max(told[c], g_gates.others[i][c]);
    }
  }
  for (unsigned c = 0; c < federation::kMaxClusters; ++c) {
    if (!is_shut(c)) continue;
    std::pair<std::uint64_t, std::uint32_t> least{kNothing, g_job.info.member};
    for (std::size_t i = 0; i < members.size(); ++i)
      if (members[i] != g_job.info.member) least = std::min(least, {g_gates.others[i][c], members[i]});
    tell(c, least.first, g_job.info.member < least.second);
    if (least.first == kNothing && now[c] == kNothing)
      g_gates.shut &= ~(1u << c);
    else
      warn_of_long_wait(least.first != kNothing ? least.second : g_job.info.member);
  }
  return changed;
}

}  // namespace

void shut_gate(unsigned cluster) {
  // A member that was never connected to it has nothing to send again, and may send a datagram, or connect, before
  // others have sent theirs.
  if (g_agent.participant == nullptr) return;
  g_gates.shut |= 1u << cluster;
  g_gates.plan = RecoveryPlan();
  g_gates.others.clear();
  tell(cluster, kUnknown, false);
}

void shut_gates_of(const std::vector<RecoveryPlan>& plans, unsigned own) {
  for (const RecoveryPlan& plan : plans)
    for (const unsigned cluster : plan.back)
      if (cluster != own && !plan.replaying.empty()) g_gates.shut |= 1u << cluster;
  if (plans.empty()) return;
  g_gates.plan = plans.back();
  g_gates.owes = replays();  // one that comes back beside the other cluster
}

void tell_gates() {
  for (unsigned i = 0; i < federation::kMaxClusters; ++i)
    if (is_shut(i)) tell(i, kUnknown, false);
}

void look_at_gates() {
  g_gates.on_board = false;
  if (gates_wait_ms() < 0 || !find_plan()) return;
  Values left = left_here();
  if (!say(left) || g_gates.shut == 0) return;
  const std::vector<std::uint32_t>& members = g_gates.plan.replaying;
  g_gates.others.resize(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] == g_job.info.member || hear(members[i], &g_gates.others[i])) continue;
    if (has_ended(members[i])) {
      g_gates.others[i].fill(kNothing);
      continue;
    }
    warn_of_long_wait(members[i]);
    return;
  }
  const std::uint32_t last = members.empty() ? 0 : *std::max_element(members.begin(), members.end());
  GateBoard board(board_file(), g_job.info.member, last + 1);
  const Writing writing(board, left);
  const std::int64_t end = monotonic_ns() + kBoardNs;
  for (std::int64_t now = end - kBoardNs; now < end; now = monotonic_ns()) {
    const std::uint32_t seen = board.wakings(g_job.info.member);
    if (hear_and_tell(board, &left)) g_gates.since_ns = now;
    if (g_gates.shut == 0 || !board.is_there()) break;
    board.sleep(seen, end - now);
  }
  g_gates.on_board = board.is_there();
  (void)say(left);
}

bool must_send_again() {
  if (g_gates.shut == 0) return false;
  const Values left = left_here();
  for (unsigned c = 0; c < left.size(); ++c)
    if (is_shut(c) &&
        (left[c] != kNothing || (g_gates.plan.number == 0 && g_agent.participant->logged_since(c) != 0)))
      return true;
  return replays() && (g_gates.owes || g_gates.left != left);  // others wait for the word
}

int gates_wait_ms() {
  if (g_gates.shut == 0 && !g_gates.owes) return -1;
  return g_gates.on_board ? 0 : kLooksMs;  // it has waited there
}

void forget_gates() {
  g_gates = Gates();
  SpinGuard guard(g_board_lock);
  g_awaits = {};
}

void gates_reset_after_fork() SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  g_board_lock.reset();
  g_board = nullptr;
}

void note_gate_moved(unsigned cluster, std::uint64_t earliest, std::uint64_t awaits) {
  SpinGuard guard(g_board_lock);
  g_awaits[cluster] = awaits;
  if (g_board != nullptr) g_board->write(cluster, earliest, awaits);
}

}  // namespace shadowib
