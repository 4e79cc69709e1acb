// Queue pairs whose peers are of other clusters: which number a message carries, and how they go on after their
// connection broke.
#include <algorithm>
#include <utility>

#include "ib2tcp/border.h"
#include "ib2tcp/gate.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/memory_window.h"
#include "ib2tcp/queue_pair.h"
#include "ib2tcp/rendezvous.h"

namespace shadowib::ib2tcp {

bool Qp::is_at_border() const { return link_ != nullptr && link_->is_border(); }

// --- numbers ---

// Requests in the queue keep the number of their posting. Posting itself writes none down.
void Qp::on_new_sn(federation::Sn before, federation::Sn now) {
  if (has_peer() && link_ != nullptr && !link_->is_border()) return;
  if (before == 0) before = now;  // nothing left under 0
  if (marks_.empty()) marks_.push_back({0, before});
  const auto past = std::find_if(marks_.begin(), marks_.end(), [this](const Mark& m) { return m.from > sq_.head; });
  if (past - marks_.begin() > 1) marks_.erase(marks_.begin(), past - 1);
  const std::uint64_t from = g_engine->border->is_behind_clc() ? behind_clc_ : sq_.tail;
  if (marks_.back().from >= from)
    marks_.back().sn = now;
  else
    marks_.push_back({from, now});
  // Of answers, the results of atomics are made; READs are answered with the memory of the time they leave.
  for (std::uint32_t i = answers_begin_; i != answers_end_; ++i)
    if (FrameHeader& answer = answers_[i % kAnswers]; answer.opcode == Opcode::kAtomicResponse && answer.sn == 0)
      answer.sn = before;
  if (nak_ != Syndrome::kNone && nak_sn_ == 0) nak_sn_ = before;
}

federation::Sn Qp::sn_of(std::uint64_t index) const {
  const auto past = std::find_if(marks_.begin(), marks_.end(), [index](const Mark& m) { return m.from > index; });
  return past == marks_.begin() ? g_engine->border->sn() : (past - 1)->sn;
}

federation::Sn Qp::oldest_sn() const { return sn_of(sq_.head); }

federation::Sn Qp::answer_sn() const {
  const federation::Sn made = answers_begin_ != answers_end_ ? answers_[answers_begin_ % kAnswers].sn : nak_sn_;
  return made != 0 ? made : g_engine->border->sn();
}

// --- the gate ---

const Gate& Qp::gate() const { return g_engine->border->gate(link_->cluster()); }

bool Qp::passes_gate(std::uint64_t left, std::uint64_t completed) {
  if (gate().lets(verbs.qp_num, left, completed)) return true;
  g_engine->border->wait_at_gate(link_->cluster(), verbs.qp_num, left, completed);
  return false;
}

void Qp::look_at_gate_again() {
  if (!has_peer())
    kick();
  else if (link_ != nullptr && link_->up())
    link_->ready(*this);
}

// Others wait for what this queue pair sends again.
void Qp::tell_gate() {
  if (kept_ == nullptr || !is_at_border()) return;
  g_engine->border->set_gate(link_->cluster(), verbs.qp_num, connected() ? first_to_replay() : kNothingLeft);
}

// It is over, with what it has kept.
void Qp::leave_gate() {
  if (!is_at_border()) return;
  Border& border = *g_engine->border;
  border.note_lost(link_->cluster());
  if (kept_->unknown || kept_->replays())
    log_message(LogLevel::kError,
                "queue pair 0x%x ends before its peer, whose cluster went back, has got again what it has forgotten",
                verbs.qp_num);
  border.set_gate(link_->cluster(), verbs.qp_num, kNothingLeft);
}

// A READ is no message, so this cluster stays if the peer's goes back to before it. The peer would not know that it
// has asked, and its next requests would have numbers that count as executed here.
void Qp::note_read() {
  if (is_at_border()) g_engine->border->note_lost(link_->cluster());
}

void Qp::note_new_connection() {
  Border& border = *g_engine->border;
  if (kept_ == nullptr) {
    if (reliable()) border.note_never_logged(link_->cluster());  // XRC
    return;
  }
  if (!kept_->restored || kept_->unlogged) border.note_lost(link_->cluster());
  tell_gate();
}

bool Qp::sends_unlogged_to(unsigned cluster) const {
  return kept_ != nullptr && kept_->unlogged && is_at_border() && link_->cluster() == cluster;
}

void Qp::on_peer_gone() {
  if (kept_ == nullptr || !connected()) return;
  kept_->unknown = true;
  tell_gate();
}

// Retries have run out. If all requests are logged, and the peer's cluster has failed, it can go back; the agent
// knows.
bool Qp::asks_whether_lost() {
  if (kept_ == nullptr || kept_->unlogged || !is_at_border() || g_host->cluster_lost == nullptr) return false;
  tries_ = 0;
  kept_->lost = true;
  g_host->cluster_lost(link_->cluster());
  return true;
}

void Qp::on_cluster_judged(unsigned cluster, bool failed) {
  if (kept_ == nullptr || !kept_->lost || !is_at_border() || link_->cluster() != cluster) return;
  kept_->lost = false;
  if (!failed && connected() && !sq_.empty() && !link_->up() && !link_->being_made()) fail(IBV_WC_RETRY_EXC_ERR);
}

// --- sending ---

// Datagrams, and all frames to another cluster.
bool Qp::next_odd_frame(Frame* frame) {
  if (is_at_border()) return has_peer() ? next_border_frame(frame) : next_border_datagram(frame);
  return next_datagram(frame);
}

// Under 0 nothing leaves: what is posted waits for CLC 1 of this cluster.
bool Qp::may_leave(federation::Sn sn) const {
  if (sn == 0) g_engine->border->ask_for_first();
  return sn != 0;
}

// True: another frame goes first, the one that says what the next one depends on.
bool Qp::tell_first(federation::Sn sn, bool always, Frame* frame) {
  if (!always && g_engine->border->policy() != federation::Policy::kVector) return false;
  if (!link_->begin_telling(sn)) return false;
  // Of the link, not of this queue pair: it settles no acknowledgement that is owed.
  FrameHeader& header = *frame->header;
  header = FrameHeader{};
  header.version = kWireVersion;
  header.opcode = Opcode::kVector;
  header.sn = sn;
  if (g_engine->border->policy() == federation::Policy::kVector) {
    const federation::PerCluster& depends = g_engine->border->dependencies_under(sn);
    frame->bytes = depends.clusters * sizeof(depends.of[0]);
    header.length = frame->bytes;
    frame->parts[0] = {const_cast<std::uint32_t*>(depends.of.data()), frame->bytes};
    frame->count = 1;
  }
  link_->ready_first(*this);
  return true;
}

// Built here, since the frame's own place may be memory that the peer can change, and the log takes a copy.
bool Qp::next_border_frame(Frame* frame) {
  FrameHeader built;
  FrameHeader* const to = std::exchange(frame->header, &built);
  const bool any = build_border_frame(frame);
  frame->header = to;
  if (!any) return false;
  *to = built;
  // may_have_frames() knows nothing of these.
  if (kept_ != nullptr && (kept_->replay_next != kept_->replay_end || kept_->tells_stable)) link_->ready(*this);
  return true;
}

bool Qp::build_border_frame(Frame* frame) {
  if (resume_) {
    resume_ = false;
    fill_header(frame->header, Opcode::kResume, expected_);
    frame->header->operand1 = wait_ == Wait::kResume;
    frame->header->operand2 = state_is_sending() ? sequence(sq_.sent) : 0;
    return true;
  }
  return next_border_answer(frame) || next_stable(frame) || next_border_request(frame) || next_notice(frame);
}

bool Qp::next_border_answer(Frame* frame) {
  const bool answers = answers_begin_ != answers_end_;
  if (!answers && nak_ == Syndrome::kNone) return false;
  const bool numbered = answers || is_fatal(nak_);
  const federation::Sn sn = numbered ? answer_sn() : 0;
  if (numbered && !may_leave(sn)) return false;
  if (answers && !gate().is_open()) {  // what is read here may be later than what is still to be sent again
    g_engine->border->wait_until_gate_opens(link_->cluster(), verbs.qp_num);
    return false;
  }
  if (numbered && tell_first(sn, false, frame)) return true;
  if (!next_answer(frame)) return false;
  frame->header->sn = sn;
  if (kept_ != nullptr && g_host->trace != nullptr && is_message(*frame->header)) {
    const bool traced = frame->header->opcode == Opcode::kAtomicResponse &&
                        static_cast<std::int32_t>(answers_begin_ - kept_->answers_traced) <= 0;
    if (!traced) trace_post(frame->header->opcode, sn, frame->header->seq);
  }
  if (kept_ != nullptr && is_message(*frame->header) && frame->header->opcode == Opcode::kNak)
    kept_->refusal = {frame->header->syndrome, frame->header->seq, sn};
  return true;
}

bool Qp::next_border_request(Frame* frame) {
  if (kept_ != nullptr && kept_->replay_next != kept_->replay_end) return next_replayed(frame);
  // One that cannot be sent ends the queue pair, with what has been sent again and has not run yet.
  if (kept_ != nullptr && kept_->replays()) return false;
  // Requests that have run are behind an answer that has not come: that alone is asked for.
  if (sq_.next < sq_.acked) sq_.next = first_unanswered(sq_.next);
  if (!may_send_next()) return false;
  const federation::Sn sn = sn_of(sq_.next);
  if (!may_leave(sn)) return false;
  if (!gate().is_open() && !passes_gate(left_at(sq_.next), 0)) return false;
  if (tell_first(sn, false, frame)) return true;
  if (kept_ == nullptr ? !next_request(frame) : !next_logged_request(frame, sn)) return false;
  if (kept_ != nullptr && g_host->trace != nullptr) trace_posted_before(sq_.next);
  frame->header->sn = sn;
  return true;
}

// --- the trace ---

void Qp::trace_post(Opcode opcode, federation::Sn sn, std::uint32_t number) const {
  const Border& border = *g_engine->border;
  const bool carries = border.policy() == federation::Policy::kVector;
  trace_message(BorderEvent::kPost, border, sn, link_->cluster(), opcode, g_engine->rendezvous->self().lid,
                verbs.qp_num, attr_.dest_qp_num, number, carries ? &border.dependencies_under(sn) : nullptr);
}

// Requests of the queue, the first time.
void Qp::trace_posted_before(std::uint64_t end) {
  const std::uint64_t first = sq_.acked;
  std::uint32_t number = sequence(first);
  for (std::uint64_t i = first; i < end; ++i) {
    const Opcode opcode = sq_.at(i).opcode;
    if (is_local(opcode)) continue;
    if (i >= kept_->traced && opcode != Opcode::kRead) trace_post(opcode, sn_of(i), number);
    ++number;
  }
  kept_->traced = std::max(kept_->traced, end);
}

// Answers to atomics are made, and leave behind a CLC perhaps; READs are answered with the memory of the time they
// leave.
void Qp::trace_posted() {
  if (kept_ == nullptr || !is_at_border() || !connected()) return;
  if (state_is_sending()) trace_posted_before(sq_.tail);
  std::uint32_t i = answers_begin_;
  if (static_cast<std::int32_t>(kept_->answers_traced - i) > 0) i = kept_->answers_traced;
  for (; i != answers_end_; ++i)
    if (const FrameHeader& answer = answers_[i % kAnswers]; answer.opcode == Opcode::kAtomicResponse)
      trace_post(answer.opcode, answer.sn != 0 ? answer.sn : g_engine->border->sn(), answer.seq);
  kept_->answers_traced = answers_end_;
}

// --- windows ---

bool Qp::will_bind(std::uint32_t key) {
  if (local_left_ == 0 || !connected()) return false;
  for (std::uint64_t i = sq_.acked; i < sq_.tail; ++i)
    if (sq_.at(i).opcode == Opcode::kBindWindow && sq_.at(i).rkey == key) return true;
  return false;
}

// Before this process went back it had bound the window. It has posted the bind again, perhaps to another peer, and
// that has not run yet.
bool Qp::waits_for_bind(const FrameHeader& header) const {
  return reliable() && is_at_border() && g_engine->border->went_back() && awaits_bind(header.rkey);
}

// Nobody can tell whether the peer has read it.
void Qp::tell_refusal_again() {
  if (kept_ == nullptr || nak_ != Syndrome::kNone || kept_->refusal.syndrome == Syndrome::kNone) return;
  nak_ = kept_->refusal.syndrome;
  nak_seq_ = kept_->refusal.seq;
  nak_sn_ = kept_->refusal.sn;
}

bool Qp::repeats_refusal(const Link& link, std::uint32_t peer_qpn) {
  if (link_ != &link || attr_.dest_qp_num != peer_qpn || state() != IBV_QPS_ERR) return false;
  tell_refusal_again();
  if (nak_ == Syndrome::kNone) return false;
  link_->ready(*this);
  return true;
}

void Qp::before_border_frame(const FrameHeader& header) {
  if (is_atomic(header.opcode)) recall_result(header);
  if (kept_ != nullptr && kept_->repeats && is_request(header.opcode)) on_repeat(header);
  if (kept_ == nullptr || (header.flags & kFlagAckValid) == 0) return;
  if (kept_->replays()) on_replay_ack(header.ack);
  note_executed(header.ack);
}

// Datagrams have no room for a number: the frame before says it.
bool Qp::next_border_datagram(Frame* frame) {
  if (!may_send_datagram()) return false;
  const federation::Sn sn = sn_of(sq_.next);
  if (!may_leave(sn) || (!gate().is_open() && !passes_gate(kNothingLeft, 0))) return false;
  return tell_first(sn, true, frame) || next_datagram(frame);
}

// --- a connection after another one ---

// The oldest request from there on whose result is not here, or the oldest that was not executed.
std::uint64_t Qp::first_unanswered(std::uint64_t from) {
  while (from < sq_.acked && (!needs_response(sq_.at(from).opcode) || sq_.at(from).done)) ++from;
  return from;
}

// What was under way is sent again: the receiver tells repeats by their numbers.
void Qp::start_over() {
  stop_waiting();
  if (kept_ != nullptr) {
    kept_->unknown = kept_->unknown || kept_->replays();
    kept_->end_replay();
    tell_gate();
  }
  reads_out_ = 0;
  sq_.next = first_unanswered(sq_.head);
  probing_ = halted_ = false;
}

void Qp::on_border_open() {
  if (wait_ == Wait::kLink) stop_waiting();
  tries_ = 0;
  kick();
}

void Qp::ask_before_connection() const {
  if (is_at_border() && g_engine->border->sn() == 0) g_engine->border->ask_for_first();
}

}  // namespace shadowib::ib2tcp
