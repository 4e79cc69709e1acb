#include "shadowib/cr/peer_counts.h"

#include <algorithm>
#include <cstring>

#include "hooks/job/protocol.h"
#include "hooks/threads/stop.h"
#include "shadowib/cr/frontier.h"
#include "shadowib/cr/peers.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/objects/backend.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

// An XRC shared receive queue has a row too, behind those of queue pairs: many initiators may name it, one initiator
// many, and only the requests that do wait for it.
constexpr std::uint32_t kSrqRow = 1u << 31;  // in qp_num; such a row says of it how many are outstanding

// The first row that has this number or a later one, or the end.
const QpCounts* find_row(const std::vector<QpCounts>& counts, std::uint32_t qp_num) {
  const auto it = std::lower_bound(counts.begin(), counts.end(), qp_num,
                                   [](const QpCounts& c, std::uint32_t n) { return c.qp_num < n; });
  return counts.data() + (it - counts.begin());
}

// For late receives, which nobody needs where an acknowledgement means that the receive is completed.
std::uint32_t delivered_by(ShadowQp& qp) {
  return g_backend.needs_signals && qp.is_reliable() ? messages_before(qp, executed_frontier(qp)) : 0;
}

bool has_address(const ShadowContext& context, const QpCounts& row) {
  const auto is_gid = [&row](const RecordedGid& known) {
    return std::memcmp(&known.gid, &row.remote_gid, sizeof(ibv_gid)) == 0;
  };
  return std::any_of(context.ports.begin(), context.ports.end(), [&](const ShadowPort& port) {
    return row.remote_lid != 0 ? port.lid.value == row.remote_lid
                               : std::any_of(port.gids.begin(), port.gids.end(), is_gid);
  });
}

// The row's peer is at an address of another adapter of this process, where a queue pair may have the same number.
bool is_of_another_adapter(const ShadowQp& qp, const QpCounts& row) {
  for (const ShadowContext& other : registry().contexts)
    if (other.device != qp.context->device && has_address(other, row)) return !has_address(*qp.context, row);
  return false;
}

}  // namespace

Status still_stopped() { return stop_lasts() ? Status() : Status(Code::kRefused, 0, kStopEndedText); }

void PeerCounts::note() {
  std::vector<QpCounts> mine;
  mine.reserve(registry().qps.size() + registry().srqs.size());
  for (ShadowQp& qp : registry().qps) {
    note_state(qp);
    const auto [consumed, outstanding] = receive_counts(qp);
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
  due_.push_back({key(context_.job->member), std::move(text), is_empty});
  noted_ = true;
  changed_ns_ = monotonic_ns();
}

void PeerCounts::are_published() {
  if (!due_.empty()) last_published_ = std::move(due_[0].value);
  due_.clear();
}

Status PeerCounts::publish() {
  SHADOWIB_TRY(context_.exchange->publish_all(due_));
  are_published();
  return {};
}

Status PeerCounts::read(const std::function<bool(ShadowQp&)>& matters) {
  std::vector<std::string> keys, values;
  std::vector<std::uint32_t> members;
  std::vector<bool> found;
  for (ShadowQp& qp : registry().qps) {
    if (!matters(qp)) continue;
    for (std::uint32_t member : candidates_at(qp.remote).members) {
      if (member == context_.job->member) continue;
      if (std::find(members.begin(), members.end(), member) == members.end()) members.push_back(member);
    }
  }
  SHADOWIB_TRY(failure_);
  SHADOWIB_TRY(still_stopped());
  for (std::uint32_t member : members) keys.push_back(key(member));
  if (keys.empty()) return {};
  SHADOWIB_TRY(publish());
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

std::uint64_t PeerCounts::progress() const {
  std::uint64_t sum = 0;
  for (const auto& [member, counts] : counts_)
    for (const QpCounts& row : counts) sum += row.consumed + row.delivered;
  return sum;
}

std::pair<std::uint32_t, std::uint32_t> receive_counts(ShadowQp& qp) {
  if (qp.is_target()) return {qp.shared_consumed.load(), 0};  // what is left has rows of its own
  if (qp.srq != nullptr) return {qp.shared_consumed.load(), qp.srq->log.pending_count()};
  WorkQueue<RecvSlot>& receives = qp.receive;
  const std::uint64_t retired = receives.retired();
  return {static_cast<std::uint32_t>(retired), static_cast<std::uint32_t>(receives.head - retired)};
}

std::uint32_t messages_before(ShadowQp& qp, std::uint64_t sequence) {
  std::uint32_t messages = qp.send.messages;
  for (std::uint64_t s = sequence; s < qp.send.head; ++s) messages -= consumes_receive(qp.send.slot(s).wr.opcode);
  return messages;
}

PeerCounts::Peer PeerCounts::find_peer(const ShadowQp& qp) {
  Peer found;
  for (std::uint32_t member : candidates_at(qp.remote).members) {
    auto counts = counts_.find(member);
    if (counts == counts_.end()) {
      found.may_come = true;
      continue;
    }
    for (const QpCounts* row = find_row(counts->second, qp.remote.qp_num.value);
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

const QpCounts* PeerCounts::find_queue(const std::vector<QpCounts>& counts, std::uint32_t number,
                                       std::uint32_t adapter) {
  const QpCounts* const end = counts.data() + counts.size();
  for (const QpCounts* row = find_row(counts, number | kSrqRow); row != end && row->qp_num == (number | kSrqRow);
       ++row)
    if (row->adapter == adapter) return row;
  return nullptr;
}

const PeerCounts::Candidates& PeerCounts::candidates_at(const RemoteEnd& remote) {
  const auto key =
      std::pair{remote.lid.value, std::string(reinterpret_cast<const char*>(remote.gid.raw), sizeof(remote.gid.raw))};
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

bool PeerCounts::is_in_checkpoint(std::uint32_t member) const {
  return std::find(context_.members, context_.members + context_.member_count, member) !=
         context_.members + context_.member_count;
}

bool PeerCounts::is_of_another_cluster(std::uint32_t member) {
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

void PeerCounts::note_failure(const Status& status) {
  if (failure_.ok()) failure_ = status;
}

std::string PeerCounts::key(std::uint32_t member) const {
  return std::string(context_.prefix) + "/counts/" + std::to_string(member);
}

}  // namespace shadowib
