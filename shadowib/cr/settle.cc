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
#include <map>
#include <optional>
#include <vector>

#include "hooks/job/protocol.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/arena.h"
#include "shadowib/base/guard.h"
#include "shadowib/base/log.h"
#include "shadowib/base/mappings.h"
#include "shadowib/cr/judge.h"
#include "shadowib/cr/participant.h"
#include "shadowib/cr/patience.h"
#include "shadowib/cr/peers.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/event_delivery.h"
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

// An XRC shared receive queue has a row too, behind those of queue pairs: many initiators may name it, one initiator
// many, and only the requests that do wait for it.
constexpr std::uint32_t kSrqRow = 1u << 31;  // in qp_num; such a row says of it how many are outstanding

void poll_everything() {
  Registry& r = registry();
  for (ShadowCq& cq : r.cqs) drain_completions(cq);
  for (ShadowChannel& channel : r.channels) drain_events(channel);
  for (ShadowContext& c : r.contexts) drain_async_events(c);
}

void note_state(ShadowQp& qp) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  qp.settled_state = g_backend.query_qp(qp.real, &attr, IBV_QP_STATE, &init) == 0 ? attr.qp_state : qp.state();
  qp.draining = qp.settled_state == IBV_QPS_SQD && attr.sq_draining != 0;
}

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
      note_counts();
      SHADOWIB_TRY(still_stopped());
      if (!settled_) {
        SHADOWIB_TRY(read_peers([this](ShadowQp& qp) { return waits_for_peer(qp) || may_lead_to_guest(qp); }));
        const ShadowQp* moving = first_moving();
        SHADOWIB_TRY(failure_);
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
      const std::int64_t pause_ns = std::max(now - began, due_after(now - changed_ns_));
      bool all = false;
      SHADOWIB_TRY(settled_ ? await_settled(pause_ns, &all) : publish_counts());
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

  // The exchange may hang for so long that parked threads have gone on: the registry is the program's again. Asked
  // after each of its answers, before the registry is looked at.
  static Status still_stopped() { return stop_lasts() ? Status() : Status(Code::kRefused, 0, kStopEndedText); }

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
    for (ShadowQp& qp : registry().qps) sum += executed_frontier(qp) + receives_of(qp).first;
    for (const auto& [member, counts] : counts_)
      for (const QpCounts& row : counts) sum += row.consumed + row.delivered;
    return sum;
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

  std::string key(const char* what, std::uint32_t member) const {
    return std::string(context_.prefix) + "/" + what + "/" + std::to_string(member);
  }

  void note_counts() {
    std::vector<QpCounts> mine;
    mine.reserve(registry().qps.size() + registry().srqs.size());
    for (ShadowQp& qp : registry().qps) {
      note_state(qp);
      const auto [consumed, outstanding] = receives_of(qp);
      mine.push_back({.qp_num = qp.qp_num.value,
                      .remote_qp_num = qp.remote.qp_num.value,
                      .consumed = consumed,
                      .outstanding = outstanding,
                      .delivered = delivered_by(qp),
                      .state = static_cast<std::uint32_t>(qp.settled_state),
                      .adapter = qp.context->adapter(),
                      .remote_lid = qp.remote.lid.value,
                      .remote_gid = qp.remote.gid});
    }
    for (ShadowSrq& srq : registry().srqs)
      if (srq.xrcd != nullptr)
        mine.push_back({.qp_num = srq.number.value | kSrqRow,
                        .outstanding = srq.log.pending_count(),
                        .adapter = srq.context->adapter()});
    std::sort(mine.begin(), mine.end(), [](const QpCounts& a, const QpCounts& b) { return a.qp_num < b.qp_num; });
    std::string text(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(QpCounts));
    counts_[context_.job->member] = std::move(mine);
    if (noted_ && text == (due_.empty() ? last_published_ : due_[0].value)) return;
    const bool is_empty = text.empty();
    due_.clear();
    due_.push_back({key("counts", context_.job->member), std::move(text), is_empty});
    noted_ = true;
    changed_ns_ = monotonic_ns();
  }

  // They are long with many queue pairs, so nothing is copied.
  void are_published() {
    if (!due_.empty()) last_published_ = std::move(due_[0].value);
    due_.clear();
  }

  // Counts that have changed: before those of others are read, and with the entry of a member that has settled.
  Status publish_counts() {
    SHADOWIB_TRY(context_.exchange->publish_all(due_));
    are_published();
    return {};
  }

  // Receives completed since the connection began, and those left.
  static std::pair<std::uint32_t, std::uint32_t> receives_of(ShadowQp& qp) {
    if (qp.is_target()) return {qp.shared_consumed.load(), 0};  // what is left has rows of its own
    if (qp.srq != nullptr) return {qp.shared_consumed.load(), qp.srq->log.pending_count()};
    WorkQueue<RecvSlot>& receives = qp.receive;
    const std::uint64_t retired = receives.retired();
    return {static_cast<std::uint32_t>(retired), static_cast<std::uint32_t>(receives.head - retired)};
  }

  bool is_in_checkpoint(std::uint32_t member) const {
    return std::find(context_.members, context_.members + context_.member_count, member) !=
           context_.members + context_.member_count;
  }

  // For take_late_receives, which nobody needs where an acknowledgement means that the receive is completed.
  static std::uint32_t delivered_by(ShadowQp& qp) {
    return g_backend.needs_signals && qp.is_reliable() ? messages_before(qp, executed_frontier(qp)) : 0;
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
    SHADOWIB_TRY(read_peers(can_receive));
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
      const Peer peer = find_peer(qp);
      if (!peer.connected || (peer.row->state != IBV_QPS_RTS && peer.row->state != IBV_QPS_SQD)) continue;
      const std::uint32_t missing = peer.row->delivered - receives_of(qp).first;
      if (static_cast<std::int32_t>(missing) > 0) return &qp;
    }
    return nullptr;
  }

  // The counts of those members that a queue pair of ours that `matters` is connected to. A member that has not
  // published yet is left out, and the queue pairs to it keep moving.
  template <typename Predicate>
  Status read_peers(Predicate matters) {
    std::vector<std::string> keys, values;
    std::vector<std::uint32_t> members;
    std::vector<bool> found;
    for (ShadowQp& qp : registry().qps) {
      if (!matters(qp)) continue;
      for (std::uint32_t member : candidates(qp)) {
        if (member == context_.job->member) continue;
        if (std::find(members.begin(), members.end(), member) == members.end()) members.push_back(member);
      }
    }
    SHADOWIB_TRY(failure_);
    SHADOWIB_TRY(still_stopped());
    for (std::uint32_t member : members) keys.push_back(key("counts", member));
    if (keys.empty()) return {};
    SHADOWIB_TRY(publish_counts());
    SHADOWIB_TRY(still_stopped());
    SHADOWIB_TRY(context_.exchange->lookup(keys, &values, &found));
    SHADOWIB_TRY(still_stopped());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!found[i]) continue;
      std::vector<QpCounts> counts(values[i].size() / sizeof(QpCounts));
      std::memcpy(static_cast<void*>(counts.data()), values[i].data(), counts.size() * sizeof(QpCounts));
      std::vector<QpCounts>& known = counts_[members[i]];
      const bool same =
          known.size() == counts.size() &&
          (counts.empty() || std::memcmp(known.data(), counts.data(), counts.size() * sizeof(QpCounts)) == 0);
      if (!same) changed_ns_ = monotonic_ns();
      known = std::move(counts);
    }
    return {};
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
           qp.settled_state != IBV_QPS_INIT && has_guests(qp);
  }

  // Whether a queue pair leads to a guest. Nothing: it is not known yet.
  std::optional<bool> leads_to_guest(ShadowQp& qp) {
    if (qp.is_datagram()) return has_datagram_to_guest(qp);
    if (qp.remote.is_guest || !may_lead_to_guest(qp)) return qp.remote.is_guest;
    const Peer found = find_peer(qp);
    if (found.may_come) return std::nullopt;
    return found.row == nullptr;
  }

  // A CLC leaves requests to other clusters as they are: their connections stand still until the program goes on.
  // Flushes of a queue pair in error come from this process.
  bool moves_over_border(ShadowQp& qp, const SendFacts& send) {
    if (send.all_executed || send.state == IBV_QPS_ERR) return false;
    if (!qp.is_datagram()) return candidates_at(qp.remote).elsewhere;
    const ibv_ah* ah = qp.send.slot(qp.frontier).wr.wr.ud.ah;
    return ah != nullptr && candidates_at(ShadowAh::of(const_cast<ibv_ah*>(ah))->remote).elsewhere;
  }

  // Whether a member that takes no part in this CLC is in another cluster, rather than one that came too late, or
  // died.
  bool is_of_another_cluster(std::uint32_t member) {
    const auto field_of = [this](std::uint32_t index, std::string* cluster) {
      std::string text;
      bool found = false;
      Fields fields;
      note_failure(context_.exchange->get(member_key(context_.job->epoch, index), &text, &found));
      if (!found || !decode_fields(text, &fields)) return false;
      *cluster = field_text(fields, "cluster");
      return !cluster->empty();
    };
    std::string own, other;
    return field_of(context_.job->member, &own) && field_of(member, &other) && own != other;
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
    const Peer found = find_peer(qp);
    lacks_counts_ = found.may_come;
    PeerFacts peer{.row = found.row, .connected = found.connected, .may_come = found.may_come};
    const QpCounts* receives = found.row;
    if (receives != nullptr && qp.is_initiator() && guarded(Guard::kCountSharedXrc))
      receives = find_queue(*found.counts, oldest.wr.qp_type.xrc.remote_srqn, found.row->adapter);
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
    const Peer peer = find_peer(qp);
    if (!peer.connected || !has_peer(peer.row->state)) return;
    auto more = static_cast<std::int32_t>(peer.row->consumed - messages_before(qp, executed));
    for (std::uint64_t s = executed; more > 0 && s < qp.send.head; ++s, --more) {
      if (!consumes_receive(qp.send.slot(s).wr.opcode)) return;
      qp.sparing.proven = s + 1;
    }
  }

  struct Peer {
    const QpCounts* row = nullptr;
    const std::vector<QpCounts>* counts = nullptr;  // all of its member
    bool connected = false;                         // it says so, too
    bool may_come = false;                          // not known yet: a member at the address has not published
  };

  // Several members may be at an address, and each of a member's adapters may have the number. One says that it is
  // connected to this queue pair; else any that has the number will do, to see that it is not.
  Peer find_peer(const ShadowQp& qp) {
    Peer found;
    for (std::uint32_t member : candidates(qp)) {
      auto counts = counts_.find(member);
      if (counts == counts_.end()) {
        found.may_come = true;
        continue;
      }
      for (const QpCounts* row = find(counts->second, qp.remote.qp_num.value);
           row != counts->second.data() + counts->second.size() && row->qp_num == qp.remote.qp_num.value; ++row) {
        found.row = row;
        found.counts = &counts->second;
        found.connected = row->remote_qp_num == qp.qp_num.value && !is_of_another_adapter(qp, *row);
        if (!found.connected) continue;
        found.may_come = false;
        return found;
      }
    }
    return found;
  }

  static bool has_address(const ShadowContext& context, const QpCounts& row) {
    const auto is_gid = [&row](const RecordedGid& known) {
      return std::memcmp(&known.gid, &row.remote_gid, sizeof(ibv_gid)) == 0;
    };
    return std::any_of(context.ports.begin(), context.ports.end(), [&](const ShadowPort& port) {
      return row.remote_lid != 0 ? port.lid.value == row.remote_lid
                                 : std::any_of(port.gids.begin(), port.gids.end(), is_gid);
    });
  }

  // The row's peer is at an address of another adapter of this process, where a queue pair may have the same number.
  static bool is_of_another_adapter(const ShadowQp& qp, const QpCounts& row) {
    for (const ShadowContext& other : registry().contexts)
      if (other.device != qp.context->device && has_address(other, row)) return !has_address(*qp.context, row);
    return false;
  }

  struct Candidates {
    std::vector<std::uint32_t> members;  // of this checkpoint
    bool guests = false;
    bool elsewhere = false;  // of a CLC: it is a member of another cluster
  };

  // Where qp's peer may be. No member opens a device while we are settling.
  const Candidates& candidates_at(const RemoteEnd& remote) {
    const auto key = std::pair{remote.lid.value,
                               std::string(reinterpret_cast<const char*>(remote.gid.raw), sizeof(remote.gid.raw))};
    auto [it, is_new] = candidates_.try_emplace(key);
    if (!is_new) return it->second;
    std::vector<std::uint32_t> members;
    note_failure(members_at(remote, &members));
    for (std::uint32_t member : members) {
      it->second.guests = it->second.guests || is_guest_index(member);
      if (is_in_checkpoint(member))
        it->second.members.push_back(member);
      else if (context_.one_cluster && !is_guest_index(member))
        it->second.elsewhere = it->second.elsewhere || is_of_another_cluster(member);
    }
    it->second.elsewhere = it->second.elsewhere && it->second.members.empty();
    return it->second;
  }
  // A peer that the exchange does not tell of may be there all the same: its queue pairs must not be given up.
  void note_failure(const Status& status) {
    if (failure_.ok()) failure_ = status;
  }
  const std::vector<std::uint32_t>& candidates(const ShadowQp& qp) { return candidates_at(qp.remote).members; }
  bool has_guests(const ShadowQp& qp) { return candidates_at(qp.remote).guests; }

  // Receive-consuming messages posted before `sequence` since the connection began; wraps.
  static std::uint32_t messages_before(ShadowQp& qp, std::uint64_t sequence) {
    std::uint32_t messages = qp.send.messages;
    for (std::uint64_t s = sequence; s < qp.send.head; ++s) messages -= consumes_receive(qp.send.slot(s).wr.opcode);
    return messages;
  }

  // True if a request before `executed` is signaled and its completion was not polled yet.
  static bool owes_completion(ShadowQp& qp, std::uint64_t executed) {
    for (std::uint64_t s = std::max(qp.send.tail(), qp.send.retired()); s < executed; ++s)
      if (qp.send.slot(s).signaled() && !qp.send.slot(s).done()) return true;
    return false;
  }

  // The first row that has this number or a later one, or the end.
  static const QpCounts* find(const std::vector<QpCounts>& counts, std::uint32_t qp_num) {
    const auto it = std::lower_bound(counts.begin(), counts.end(), qp_num,
                                     [](const QpCounts& c, std::uint32_t n) { return c.qp_num < n; });
    return counts.data() + (it - counts.begin());
  }

  static const QpCounts* find_queue(const std::vector<QpCounts>& counts, std::uint32_t number,
                                    std::uint32_t adapter) {
    const QpCounts* const end = counts.data() + counts.size();
    for (const QpCounts* row = find(counts, number | kSrqRow); row != end && row->qp_num == (number | kSrqRow); ++row)
      if (row->adapter == adapter) return row;
    return nullptr;
  }

  // Comes to the barrier of those that have settled, and sleeps there as long as no look at the queues is due.
  Status await_settled(std::int64_t pause_ns, bool* all) {
    const auto pause_ms = static_cast<int>(std::min(pause_ns, kLongestPauseNs) / kMillisecondNs);
    const Status status = context_.exchange->barrier_beside(
        due_, std::string(context_.prefix) + "/settled", std::to_string(context_.job->member),
        static_cast<int>(context_.member_count), pause_ms, context_.abort_key, nullptr);
    are_published();
    *all = status.ok();
    if (status.code() == Code::kAborted) return Status(Code::kAborted, 0, kOthersGaveUp);
    return status.code() == Code::kTimeout ? Status() : status;
  }

  Status timed_out(const ShadowQp& qp) {
    auto& moving = const_cast<ShadowQp&>(qp);
    const std::uint64_t executed = executed_frontier(moving);
    char next[200] = "";
    if (executed != moving.send.head) {
      const QpCounts* peer = find_peer(qp).row;
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
  std::map<std::uint32_t, std::vector<QpCounts>> counts_;                   // by member, sorted by qp_num
  std::map<std::pair<std::uint32_t, std::string>, Candidates> candidates_;  // by LID and GID
  Status failure_;           // the first of the exchange's in a place that cannot return it
  bool has_guests_ = false;  // the job has had some, and they may have a member's address
  std::string last_published_;
  bool noted_ = false, settled_ = false;
  std::vector<Exchange::Value> due_;  // counts that have yet to be published
  bool gives_up_tails_ = false;       // of queue pairs whose peers are gone: nothing tells any more what has run
  bool may_be_doomed_ = false;        // Judgement's, of the queue pair judged last
  bool lacks_counts_ = false;         // the queue pair judged last waits for a member that has not published
  const std::int64_t began_ns_ = monotonic_ns();
  std::int64_t others_check_ = began_ns_ + kOthersCheckNs;
  std::int64_t changed_ns_ = began_ns_;  // when counts were last seen to change
  Patience patience_{monotonic_ns()};
  std::uint64_t rounds_ = 1;
  const std::uint64_t operations_ = context_.exchange->operations();  // before
  const std::size_t requested_ = arena_requested_bytes();
};

}  // namespace

namespace {

// What is mapped, neighbours joined, by address.
std::vector<std::pair<std::uint64_t, std::uint64_t>> mapped_ranges() {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for_each_mapping([&](const Mapping& m) {
    if (!ranges.empty() && ranges.back().second == m.start)
      ranges.back().second = m.end;
    else
      ranges.emplace_back(m.start, m.end);
    return true;
  });
  return ranges;
}

void note_unmapped_regions() {
  if (registry().mrs.empty()) return;
  const auto ranges = mapped_ranges();
  if (ranges.empty()) return;
  for (ShadowMr& mr : registry().mrs) {
    const auto from = reinterpret_cast<std::uint64_t>(mr.mr.addr), to = from + mr.mr.length;
    auto it = std::upper_bound(ranges.begin(), ranges.end(), std::pair{from, ~std::uint64_t{0}});
    mr.unmapped = mr.mr.length != 0 && (it == ranges.begin() || (it - 1)->second < to);
  }
}

}  // namespace

Status settle_queues(const SettleContext& context) { return Settler(context).run(); }

void note_frontier() {
  // A limit is asked for before its event is: one that fires in between is armed again and told too often, not never.
  for (ShadowSrq& srq : registry().srqs) {
    ibv_srq_attr attr{};
    srq.armed_limit = g_backend.query_srq(srq.real, &attr) == 0 ? attr.srq_limit : 0;
  }
  poll_everything();
  begin_anew_what_ran_out();
  note_unmapped_regions();
  for (ShadowQp& qp : registry().qps) {
    note_state(qp);
    note_fences(qp);
    retire_executed(qp);
    qp.frontier = executed_frontier(qp);
    // What became of requests to a peer that is gone has been said, if the error came meanwhile.
    qp.doomed = qp.doomed && qp.settled_state != IBV_QPS_ERR;
  }
  for (ShadowMw& mw : registry().mws) ShadowContext::of(mw.mw.context)->windows.settle(mw);
}

}  // namespace shadowib
