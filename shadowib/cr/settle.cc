// Settling: every send queue brought to a frontier where each request is known to have run or known not to have.
//
// With all threads of all members stopped, each member polls its completion queues into the refill queues and
// publishes, per queue pair, how many receives were consumed and how many are left. A send queue is settled when it
// is empty, blocked, held or doomed (judge.h).
// All figures only grow while nobody runs, so what is settled stays settled. When everybody is, a receiver waits for
// the completions of all messages that senders have had acknowledged.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <vector>

#include "shadowib/base/arena.h"
#include "shadowib/base/guard.h"
#include "shadowib/base/log.h"
#include "shadowib/cr/frontier.h"
#include "shadowib/cr/judge.h"
#include "shadowib/cr/participant.h"
#include "shadowib/cr/patience.h"
#include "shadowib/cr/peer_counts.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/objects/address_handle.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

// Between rounds. As long as a round's own work, so that those who wait leave the processors to what they wait for.
// And a part of the time in which nothing has changed, so that many who wait for long do not keep them busy: a
// quarter before this member has settled, three times that afterwards, and long where there are no queues. Requests
// that only the backend moves are looked at each millisecond, as long as they take.
constexpr std::int64_t kRoundNs = 20000, kMovingNs = 1000000, kLongestPauseNs = 250000000;
constexpr std::int64_t kOthersCheckNs = 10000000;  // before the first look at whether others have given up
// Without any progress. Longer where an adapter may have lost a packet and asks for it again only later.
constexpr std::int64_t kQuietNs = 2000000000;
constexpr char kOthersGaveUp[] = "another member gave up";
constexpr int kAckTimeouts = 4;  // an adapter may take up to four times what was asked for (InfiniBand, 9.7.6.1.3)

class Settler {
 public:
  explicit Settler(const SettleContext& context) : context_(context) {}

  Status run() {
    SHADOWIB_TRY(ask_for_guests());
    for (;; ++rounds_) {
      const std::int64_t began = monotonic_ns();
      SHADOWIB_TRY(still_stopped());
      if (context_.let_held != nullptr) context_.let_held();
      poll_everything();
      counts_.note();
      SHADOWIB_TRY(still_stopped());
      if (!settled_) {
        SHADOWIB_TRY(counts_.read([this](ShadowQp& qp) { return waits_for_peer(qp) || may_lead_to_guest(qp); }));
        const ShadowQp* moving = first_moving();
        SHADOWIB_TRY(counts_.failure());
        settled_ = moving == nullptr;
        if (!settled_ && stands_still(*moving)) {
          if (!may_be_doomed_ || gives_up_tails_) return timed_out(*moving);
          gives_up_tails_ = true;
        }
      }
      if (g_backend.progress != nullptr) g_backend.progress(0);
      SHADOWIB_TRY(look_at_others());
      SHADOWIB_TRY(still_stopped());
      const std::int64_t now = monotonic_ns();
      const std::int64_t pause_ns = std::max(now - began, due_after(now - counts_.changed_ns()));
      bool all = false;
      SHADOWIB_TRY(settled_ ? await_settled(pause_ns, &all) : counts_.publish());
      if (all) break;
      if (!settled_ || pause_ns < kMillisecondNs) pause(pause_ns);
    }
    SHADOWIB_TRY(still_stopped());
    if (g_backend.needs_signals && guarded(Guard::kAwaitLate)) SHADOWIB_TRY(take_late_receives());
    SHADOWIB_TRY(refuse_writing_guests());
    log_line(LogLevel::kInfo,
             "settling took %llu rounds; %zu queue pairs, %llu exchange operations, %zu bytes allocated",
             static_cast<unsigned long long>(rounds_), registry().qps.size(),
             static_cast<unsigned long long>(context_.exchange->operations() - operations_),
             arena_requested_bytes() - requested_);
    tell_spared();
    return {};
  }

 private:
  static constexpr std::int64_t kMillisecondNs = 1000000;

  static void tell_spared() {
    std::uint64_t forced = 0, posted = 0;
    for (const ShadowQp& qp : registry().qps) {
      forced += qp.sparing.forced;
      if (qp.sparing.forced != 0) posted += qp.send.head;
    }
    if (forced != 0)
      log_line(LogLevel::kInfo, "of %llu send requests %llu have been signaled for shadowib alone",
               static_cast<unsigned long long>(posted), static_cast<unsigned long long>(forced));
  }

  Status ask_for_guests() {
    if (!g_backend.needs_signals || registry().qps.empty()) return {};
    std::string text;
    return context_.exchange->get(std::string(context_.job->epoch) + "/guests", &text, &has_guests_);
  }

  // An adapter serves guests while memory is saved. What they send goes into receives and READs that have yet to
  // complete, whose memory is undefined until then. What they may write is anybody's guess.
  Status refuse_writing_guests() {
    if (!g_backend.needs_signals) return {};
    for (ShadowQp& qp : registry().qps) {
      if (!qp.doomed || !qp.remote.is_guest || !lets_peer_write(qp)) continue;
      return Status::of(
          Code::kRefused, 0,
          "queue pair 0x%x lets a guest (its queue pair 0x%x) write into this process, on a device that "
          "goes on while memory is saved; leave IBV_ACCESS_REMOTE_WRITE and IBV_ACCESS_REMOTE_ATOMIC "
          "out of its access, or run the client as a member",
          qp.qp_num.value, qp.remote.qp_num.value);
    }
    return {};
  }

  static bool lets_peer_write(const ShadowQp& qp) {
    constexpr unsigned kWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    unsigned access = 0;
    for (const RecordedModify& m : qp.modifies)
      if ((m.mask & IBV_QP_ACCESS_FLAGS) != 0) access = m.attr.qp_access_flags;
    const auto is_open = [&qp](const ShadowMr& mr) {
      return (qp.is_target() || mr.mr.pd == qp.qp.qp_base.pd) && (static_cast<unsigned>(mr.access) & kWrites) != 0;
    };
    const auto& regions = registry().mrs;
    return (access & kWrites) != 0 &&
           (std::any_of(regions.begin(), regions.end(), is_open) || !registry().mws.empty());
  }

  std::int64_t due_after(std::int64_t still_ns) const {
    if (registry().qps.empty() && registry().srqs.empty()) return kLongestPauseNs;
    if (settled_) return 3 * still_ns;
    return lacks_counts_ ? still_ns / 4 : std::min(still_ns / 4, kMovingNs);
  }

  static void pause(std::int64_t pause_ns) {
    const timespec time{0, std::clamp(pause_ns, kRoundNs, kLongestPauseNs)};
    ::nanosleep(&time, nullptr);
  }

  // Now and then: nobody waits for those who have given up. The longer it lasts, the more seldom. A settled member
  // learns of an abort at the barrier.
  Status look_at_others() {
    const std::int64_t now = monotonic_ns();
    if (now < others_check_) return {};
    others_check_ =
        now + (settled_ ? kLongestPauseNs : std::max(kOthersCheckNs, std::min(now - began_ns_, kLongestPauseNs)));
    std::vector<std::string> values;
    std::vector<bool> found;
    SHADOWIB_TRY(context_.exchange->lookup({context_.abort_key, context_.again_key}, &values, &found));
    if (found[0]) return Status(Code::kAborted, 0, kOthersGaveUp);
    if (found[1] || now > context_.deadline_ns) return Status(Code::kTimeout, 0, "another member does not settle");
    return {};
  }

  // Grows as long as requests are executed, here and as far as we see elsewhere.
  std::uint64_t progress() {
    std::uint64_t sum = 0;
    for (ShadowQp& qp : registry().qps) sum += executed_frontier(qp) + receive_counts(qp).first;
    return sum + counts_.progress();
  }

  // True if nothing has been executed for so long that nothing will be.
  bool stands_still(const ShadowQp& moving) {
    const std::int64_t now = monotonic_ns();
    return now > context_.deadline_ns || patience_.is_lost(
                                             now, [this] { return progress(); }, [&] { return quiet_ns(moving); });
  }

  static std::int64_t quiet_ns(const ShadowQp& moving) {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    if (!g_backend.needs_signals || !moving.is_reliable() ||
        g_backend.query_qp(moving.real, &attr, IBV_QP_TIMEOUT, &init) != 0 || attr.timeout == 0)
      return kQuietNs;
    return std::max(kQuietNs, kAckTimeouts * (std::int64_t{4096} << (attr.timeout & 31)));
  }

  // Not for a guest, which publishes no counts.
  static bool waits_for_peer(ShadowQp& qp) {
    return !qp.remote.is_guest && qp.is_reliable() && qp.send.head != qp.send.retired();
  }
  static bool has_peer(std::uint32_t state) {
    return state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD;
  }
  static bool can_receive(const ShadowQp& qp) { return qp.is_reliable() && has_peer(qp.settled_state); }

  // An adapter may acknowledge a message before the program can see its receive's completion. Its sender counts it as
  // run, so it has to be seen before memory is read, or nobody would ever tell of it. When all have settled, what has
  // been delivered is final.
  Status take_late_receives() {
    SHADOWIB_TRY(counts_.read(can_receive));
    for (const ShadowQp* late = first_late(); late != nullptr; late = first_late()) {
      if (stands_still(*late))
        return Status::of(Code::kTimeout, 0,
                          "queue pair 0x%x has completed fewer receives than its peer 0x%x has had acknowledged",
                          late->qp_num.value, late->remote.qp_num.value);
      pause(0);
      SHADOWIB_TRY(still_stopped());
      poll_everything();
      ++rounds_;
    }
    return {};
  }

  const ShadowQp* first_late() {
    for (ShadowQp& qp : registry().qps) {
      if (!can_receive(qp)) continue;
      const PeerCounts::Peer peer = counts_.find_peer(qp);
      if (!peer.connected || (peer.row->state != IBV_QPS_RTS && peer.row->state != IBV_QPS_SQD)) continue;
      const std::uint32_t missing = peer.row->delivered - receive_counts(qp).first;
      if (static_cast<std::int32_t>(missing) > 0) return &qp;
    }
    return nullptr;
  }

  // Behind it only those are looked at that need a fence, so that all have theirs at once.
  const ShadowQp* first_moving() {
    const ShadowQp* first = nullptr;
    bool lacks_counts = false, may_be_doomed = false;
    for (ShadowQp& qp : registry().qps) {
      if (first != nullptr && !is_spared(qp, executed_frontier(qp))) continue;
      const Verdict verdict = judge(qp);
      qp.doomed = verdict == Verdict::kDoomed;
      if (first != nullptr) continue;
      lacks_counts = lacks_counts_;
      may_be_doomed = may_be_doomed_;
      if (verdict == Verdict::kMoving) first = &qp;
    }
    lacks_counts_ = lacks_counts;
    may_be_doomed_ = may_be_doomed;
    return first;
  }

  // On an adapter guests have addresses in common with members. There who is no member's queue pair is a guest's, or
  // gone, which comes to the same.
  bool may_lead_to_guest(const ShadowQp& qp) {
    return has_guests_ && !qp.is_datagram() && qp.settled_state != IBV_QPS_RESET &&
           qp.settled_state != IBV_QPS_INIT && counts_.candidates_at(qp.remote).guests;
  }

  // Whether a queue pair leads to a guest. Nothing: it is not known yet.
  std::optional<bool> leads_to_guest(ShadowQp& qp) {
    if (qp.is_datagram()) return has_datagram_to_guest(qp);
    if (qp.remote.is_guest || !may_lead_to_guest(qp)) return qp.remote.is_guest;
    const PeerCounts::Peer found = counts_.find_peer(qp);
    if (found.may_come) return std::nullopt;
    return found.row == nullptr;
  }

  // A CLC leaves requests to other clusters as they are: their connections stand still until the program goes on.
  // Flushes of a queue pair in error come from this process.
  bool moves_over_border(ShadowQp& qp, const SendFacts& send) {
    if (send.all_executed || send.state == IBV_QPS_ERR) return false;
    if (!qp.is_datagram()) return counts_.candidates_at(qp.remote).elsewhere;
    const ibv_ah* ah = qp.send.slot(qp.frontier).wr.wr.ud.ah;
    return ah != nullptr && counts_.candidates_at(ShadowAh::of(const_cast<ibv_ah*>(ah))->remote).elsewhere;
  }

  static bool has_datagram_to_guest(ShadowQp& qp) {
    if (qp.frontier == qp.send.head) return false;
    const ibv_ah* ah = qp.send.slot(qp.frontier).wr.wr.ud.ah;
    return ah != nullptr && ShadowAh::of(const_cast<ibv_ah*>(ah))->remote.is_guest;
  }

  Verdict judge(ShadowQp& qp) {
    qp.awaits_peer = qp.forgoes_sends = lacks_counts_ = false;
    may_be_doomed_ = false;
    note_fences(qp);
    note_consumed(qp);
    retire_executed(qp);
    const std::uint64_t executed = qp.frontier = executed_frontier(qp);
    SendFacts send{.state = static_cast<std::uint32_t>(qp.settled_state),
                   .draining = qp.draining,
                   .reliable = qp.is_reliable(),
                   .datagrams = qp.is_datagram(),
                   .all_executed = executed == qp.send.head,
                   .owes_completion = owes_completion(qp, executed),
                   .unproven = is_spared(qp, executed)};
    if (send.unproven && !guarded(Guard::kProveTails)) return Verdict::kHeld;
    if (context_.one_cluster && moves_over_border(qp, send)) return Verdict::kHeld;
    const std::optional<bool> to_guest = leads_to_guest(qp);
    lacks_counts_ = !to_guest.has_value();
    if (lacks_counts_) return Verdict::kMoving;
    send.to_guest = *to_guest;
    if (!send.datagrams) qp.remote.is_guest = *to_guest;
    if (const std::optional<Verdict> verdict = judge_alone(send); verdict) {
      if (send.unproven && send.state == IBV_QPS_ERR) prove(qp);
      qp.forgoes_sends = send.datagrams && send.to_guest && *verdict == Verdict::kHeld;
      return *verdict;
    }
    const SendSlot& oldest = qp.send.slot(executed);
    send.oldest = oldest.wr.opcode;
    send.messages_before = messages_before(qp, executed);
    const PeerCounts::Peer found = counts_.find_peer(qp);
    lacks_counts_ = found.may_come;
    PeerFacts peer{.row = found.row, .connected = found.connected, .may_come = found.may_come};
    const QpCounts* receives = found.row;
    if (receives != nullptr && qp.is_initiator() && guarded(Guard::kCountSharedXrc))
      receives = PeerCounts::find_queue(*found.counts, oldest.wr.qp_type.xrc.remote_srqn, found.row->adapter);
    if (receives != nullptr) peer.receives_left = receives->outstanding;
    const Judgement judgement = judge_by_peer(send, peer);
    qp.awaits_peer = judgement.awaits_peer;
    may_be_doomed_ = judgement.may_be_doomed;
    if (may_be_doomed_ && gives_up_tails_) return Verdict::kDoomed;
    if (send.unproven && judgement.verdict == Verdict::kMoving && !found.may_come && send.state == IBV_QPS_RTS)
      prove(qp);
    return judgement.verdict;
  }

  // Has a fence tell of requests that have no signal. One that is refused may be taken in a later round.
  static void prove(ShadowQp& qp) {
    SpinGuard guard(qp.send.lock);
    (void)post_fence(qp, qp.sparing.of_checkpoint);
  }

  // Messages that were spared have run if the peer has consumed them. Not what is one-sided between them: the answer
  // to a read may be under way.
  void note_consumed(ShadowQp& qp) {
    const std::uint64_t executed = executed_frontier(qp);
    if (!is_spared(qp, executed)) return;
    const PeerCounts::Peer peer = counts_.find_peer(qp);
    if (!peer.connected || !has_peer(peer.row->state)) return;
    auto more = static_cast<std::int32_t>(peer.row->consumed - messages_before(qp, executed));
    for (std::uint64_t s = executed; more > 0 && s < qp.send.head; ++s, --more) {
      if (!consumes_receive(qp.send.slot(s).wr.opcode)) return;
      qp.sparing.proven = s + 1;
    }
  }

  // True if a request before `executed` is signaled and its completion was not polled yet.
  static bool owes_completion(ShadowQp& qp, std::uint64_t executed) {
    for (std::uint64_t s = std::max(qp.send.tail(), qp.send.retired()); s < executed; ++s)
      if (qp.send.slot(s).signaled() && !qp.send.slot(s).done()) return true;
    return false;
  }

  // Comes to the barrier of those that have settled, and sleeps there as long as no look at the queues is due.
  Status await_settled(std::int64_t pause_ns, bool* all) {
    const auto pause_ms = static_cast<int>(std::min(pause_ns, kLongestPauseNs) / kMillisecondNs);
    const Status status = context_.exchange->barrier_beside(
        counts_.due(), std::string(context_.prefix) + "/settled", std::to_string(context_.job->member),
        static_cast<int>(context_.member_count), pause_ms, context_.abort_key, nullptr);
    counts_.are_published();
    *all = status.ok();
    if (status.code() == Code::kAborted) return Status(Code::kAborted, 0, kOthersGaveUp);
    return status.code() == Code::kTimeout ? Status() : status;
  }

  Status timed_out(const ShadowQp& qp) {
    auto& moving = const_cast<ShadowQp&>(qp);
    const std::uint64_t executed = executed_frontier(moving);
    char next[200] = "";
    if (executed != moving.send.head) {
      const QpCounts* peer = counts_.find_peer(qp).row;
      std::snprintf(next, sizeof(next), "; the next (opcode %d) neither runs nor is refused by its peer 0x%x",
                    static_cast<int>(moving.send.slot(executed).wr.opcode), qp.remote.qp_num.value);
      const std::size_t length = std::strlen(next);
      if (peer != nullptr)
        std::snprintf(next + length, sizeof(next) - length, " (state %u, %u of %u messages before it, %u receives)",
                      peer->state, peer->consumed, messages_before(moving, executed), peer->outstanding);
    }
    return Status::of(Code::kTimeout, 0,
                      "queue pair 0x%x (state %d) does not settle: %llu requests posted, %llu known to have run%s",
                      qp.qp_num.value, static_cast<int>(qp.settled_state),
                      static_cast<unsigned long long>(moving.send.head), static_cast<unsigned long long>(executed),
                      next);
  }

  const SettleContext& context_;
  PeerCounts counts_{context_};
  bool has_guests_ = false;  // the job has had some, and they may have a member's address
  bool settled_ = false;
  bool gives_up_tails_ = false;  // of queue pairs whose peers are gone: nothing tells any more what has run
  bool may_be_doomed_ = false;   // Judgement's, of the queue pair judged last
  bool lacks_counts_ = false;    // the queue pair judged last waits for a member that has not published
  const std::int64_t began_ns_ = monotonic_ns();
  std::int64_t others_check_ = began_ns_ + kOthersCheckNs;
  Patience patience_{monotonic_ns()};
  std::uint64_t rounds_ = 1;
  const std::uint64_t operations_ = context_.exchange->operations();  // before
  const std::size_t requested_ = arena_requested_bytes();
};

}  // namespace

Status settle_queues(const SettleContext& context) { return Settler(context).run(); }

}  // namespace shadowib
