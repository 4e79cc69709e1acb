// Queue pairs at a border that go on after one side went back: the log, RESUME, and the state that a checkpoint
// keeps.
#include "ib2tcp/resume.h"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ib2tcp/as_adapter.h"
#include "ib2tcp/border.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/queue_pair.h"

namespace shadowib::ib2tcp {
namespace {

// The first one of that number or a later one. Numbers ascend, mostly by 1, and what is asked for is mostly near the
// end: a search from the middle of a long log would find each place it looks at out of the processor's caches.
template <typename Sequence, typename Number>
auto place_of(const Sequence& sequence, std::uint32_t number, Number number_of) {
  const auto is_before = [&](const auto& entry) { return ahead_of(number_of(entry), number) < 0; };
  if (sequence.empty() || is_before(sequence.back())) return sequence.end();
  const std::size_t behind = static_cast<std::uint32_t>(ahead_of(number_of(sequence.back()), number));
  const auto least =
      behind < sequence.size() ? sequence.end() - 1 - static_cast<std::ptrdiff_t>(behind) : sequence.begin();
  return is_before(*least) ? std::partition_point(least, sequence.end(), is_before) : least;
}

auto place_in_log(const std::deque<BorderLogEntry*>& log, std::uint32_t number) {
  return place_of(log, number, [](const BorderLogEntry* entry) { return entry->number; });
}

// READs are asked again, and atomics are in the send queue until their result is here.
bool is_logged(Opcode opcode) { return is_request(opcode) && !needs_response(opcode); }

bool is_void(const BorderLogEntry& entry) { return entry.header[0] == 0; }  // no frame's version

}  // namespace

const BorderLogEntry* Kept::find(std::uint32_t number) const {
  const auto it = place_in_log(log, number);
  return it != log.end() && (*it)->number == number ? *it : nullptr;
}

bool Kept::covers(std::uint32_t begin, std::uint32_t end) const {
  const auto it = place_in_log(log, begin);
  const std::uint32_t count = end - begin;
  return count <= static_cast<std::size_t>(log.end() - it) &&
         (count == 0 || ((*it)->number == begin && (*(it + (count - 1)))->number == end - 1));
}

bool Kept::is_behind(std::uint32_t number) const {
  if (log.empty() || ahead_of(number, log.back()->number) > 0)
    return unlogged && ahead_of(number, dropped_before) < 0;
  return find(number) == nullptr;
}

const BorderResult* Kept::find_result(std::uint32_t number) const {
  const auto it = place_of(results, number, [](const BorderResult& result) { return result.number; });
  return it != results.end() && it->number == number ? &*it : nullptr;
}

bool Kept::keep_result(std::uint32_t number, std::uint64_t value) {
  if (!results.empty() && ahead_of(number, results.back().number) <= 0) return true;
  const bool full = results.size() == kMostResults;
  if (full) results.pop_front();
  results.push_back({number, 0, value});
  return !full;
}

// --- the log ---

// As next_request(), with the request's bytes from the log, where they are copied first.
bool Qp::next_logged_request(Frame* frame, federation::Sn sn) {
  Kept& kept = *kept_;
  Send& send = sq_.at(sq_.next);
  const std::uint32_t number = sequence(sq_.next);
  if (!is_logged(send.opcode) || kept.is_behind(number) || send.status != IBV_WC_SUCCESS) {
    if (sq_.next >= sq_.sent) send.left = g_engine->border->stamp();
    return next_request(frame);
  }
  if (send.fence && reads_out_ > 0) return false;
  if (const BorderLogEntry* entry = kept.find(number); entry != nullptr) {
    send_again(*entry, frame);
    sq_.sent = std::max(sq_.sent, ++sq_.next);
    return true;
  }
  BorderLogEntry* entry = add_to_log(number, send.length);
  if (entry == nullptr && kept.waits_for_room) return false;
  if (entry == nullptr) drop_log(number + 1);
  if (!next_request(frame)) return false;
  if (entry == nullptr) return true;
  char* to = entry->data();
  {
    const AsAdapter unseen;
    for (int i = 0; i < frame->count; to += frame->parts[i].iov_len, ++i)
      std::memcpy(to, frame->parts[i].iov_base, frame->parts[i].iov_len);
  }
  frame->parts[0] = {entry->data(), entry->bytes};
  frame->count = entry->bytes != 0;
  entry->sn = sn;
  entry->left = g_engine->border->stamp();
  std::memcpy(entry->header, frame->header, sizeof(FrameHeader));
  kept.log.push_back(entry);
  return true;
}

// A log that is full is begun anew. What is sent again is in it, and goes first: until then requests wait for room
// (waits_for_room). nullptr: they do, or there is no room even so.
BorderLogEntry* Qp::add_to_log(std::uint32_t number, std::uint32_t bytes) {
  static_assert(sizeof(BorderLogEntry::header) == sizeof(FrameHeader));
  if (g_host->log_add == nullptr) return nullptr;
  BorderLogEntry* entry = g_host->log_add(&verbs, number, bytes);
  kept_->waits_for_room = entry == nullptr && (kept_->unknown || kept_->replays());
  if (kept_->waits_for_room) return nullptr;
  if (entry == nullptr && !kept_->log.empty()) {
    drop_log(number);
    entry = g_host->log_add(&verbs, number, bytes);
  }
  if (entry == nullptr) return nullptr;
  entry->number = number;
  entry->bytes = bytes;
  entry->header[0] = 0;
  return entry;
}

// The log is begun anew with the request `first`, which has not left yet. What a peer has not run of those before is
// in no log. Once it has run them, what it needs after its next CLC is in this one.
void Qp::drop_log(std::uint32_t first) {
  if (!std::exchange(kept_->told_full, true))
    log_message(LogLevel::kWarn,
                "queue pair 0x%x: the log of messages to other clusters is full, and is begun anew: a cluster that "
                "goes back to before now cannot be sent them again; raise SHADOWIB_LOG_BYTES, or take CLCs of all "
                "clusters more often",
                verbs.qp_num);
  if (!kept_->log.empty()) {
    if (link_ != nullptr) link_->detach_log(*this);
    kept_->log.clear();
    g_host->log_trim(&verbs, first + 1);  // unlike log_clear() it keeps the memory for what follows
  }
  kept_->dropped_before = first;
  kept_->unlogged = sequence(sq_.acked) != first;
  g_engine->border->note_lost(link_->cluster());
}

void Qp::forget_log() {
  if (kept_ == nullptr || kept_->log.empty()) return;
  if (link_ != nullptr) link_->detach_log(*this);
  kept_->log.clear();
  g_host->log_clear(&verbs);
}

// A request that has left before, with the keys of then. Its acknowledgement is of now.
void Qp::send_again(const BorderLogEntry& entry, Frame* frame) {
  FrameHeader logged;
  std::memcpy(&logged, entry.header, sizeof(logged));
  FrameHeader& header = *frame->header;
  fill_header(&header, logged.opcode, entry.number);
  header.flags |= logged.flags & kFlagSolicited;
  header.length = logged.length;
  header.imm = logged.imm;
  header.rkey = logged.rkey;
  header.raddr = logged.raddr;
  header.srqn = logged.srqn;
  frame->parts[0] = {const_cast<char*>(entry.data()), entry.bytes};
  frame->count = entry.bytes != 0;
  frame->bytes = entry.bytes;
}

// The peer has run requests of the queue before that one.
void Qp::note_executed(std::uint32_t end) {
  const std::uint32_t steps = end - sequence(sq_.acked);
  if (steps > sq_.sent - sq_.acked) return;
  if (kept_->unlogged && ahead_of(end, kept_->dropped_before) >= 0) {
    kept_->unlogged = false;
    g_engine->border->note_lost(link_->cluster());  // until now
  }
  if (steps == 0) return;
  const std::uint32_t begin = sequence(sq_.acked);
  std::uint32_t told = begin;
  for (std::uint32_t i = 0; i < steps; ++i)
    if (sq_.at(sq_.acked + i).signaled) told = begin + i + 1;
  const std::uint64_t now = g_engine->border->stamp();
  for (auto it = place_in_log(kept_->log, begin); it != kept_->log.end() && ahead_of((*it)->number, end) < 0; ++it)
    (*it)->completed = now | kNotTold;
  if (told != begin) note_told(told);
}

// The program hears that requests before that number have run: by the completion of one of them, or of one behind.
// Until then it has no completion to take for granted. Their times differ by nanoseconds all the same, so that what
// is sent again shows how far it has come; and none is before it ran.
void Qp::note_told(std::uint32_t end) {
  auto it = place_in_log(kept_->log, end);
  if (it == kept_->log.begin() || ((*(it - 1))->completed & kNotTold) == 0) return;
  std::uint64_t told = g_engine->border->stamp();
  for (; it != kept_->log.begin() && ((*(it - 1))->completed & kNotTold) != 0; --it, --told)
    (*(it - 1))->completed = std::max((*(it - 1))->completed & ~kNotTold, told);
}

// When the program heard of the first one of those that are sent again, perhaps.
std::uint64_t Qp::first_to_replay() const {
  const Kept& kept = *kept_;
  if (!kept.unknown && !kept.replays()) return kNothingLeft;
  const auto it = kept.unknown ? kept.log.begin() : place_in_log(kept.log, kept.replay_acked);
  return it != kept.log.end() && (*it)->completed != 0 ? (*it)->completed : kNothingLeft;
}

// When a request of the queue left the first time.
std::uint64_t Qp::left_at(std::uint64_t index) {
  if (kept_ != nullptr)
    if (const BorderLogEntry* entry = kept_->find(sequence(index)); entry != nullptr) return entry->left;
  return index < sq_.sent && kept_ != nullptr ? sq_.at(index).left : kNothingLeft;
}

void Qp::ready_replay() {
  if (kept_ != nullptr && kept_->replays() && link_ != nullptr && link_->up()) link_->ready(*this);
}

bool Qp::trim_log(std::uint32_t expected, std::uint32_t first) {
  if (kept_ == nullptr) return false;
  Kept& kept = *kept_;
  bool trimmed = false;
  // No more than it has said to have run, and never a request that is on its way again.
  const std::uint32_t end = kept.replays() ? kept.replay_acked : sequence(sq_.acked);
  if (state() != IBV_QPS_RTR && ahead_of(expected, end) <= 0) {
    const auto it = place_in_log(kept.log, expected);
    if (it != kept.log.begin()) {
      link_->detach_log(*this);
      kept.log.erase(kept.log.begin(), it);
      g_host->log_trim(&verbs, expected);
      trimmed = true;
    }
  }
  if (ahead_of(first, expected_) <= 0)
    for (; !kept.results.empty() && ahead_of(kept.results.front().number, first) < 0; trimmed = true)
      kept.results.pop_front();
  return trimmed;
}

void Qp::on_log_room() {
  if (kept_ == nullptr || !kept_->waits_for_room) return;
  kept_->waits_for_room = false;
  kick();
}

// --- results of atomics ---

// A repeat that the last results do not have: so that duplicate() finds it.
void Qp::recall_result(const FrameHeader& header) {
  if (kept_ == nullptr || ahead_of(header.seq, expected_) >= 0) return;
  for (const Result& result : results_)
    if (result.valid && result.seq == header.seq) return;
  if (const BorderResult* kept = kept_->find_result(header.seq); kept != nullptr)
    results_[next_result_++ % kMaxRdAtomic] = {kept->number, true, kept->value};
  else if (connected())
    fail_request(Syndrome::kRemoteOperation, header.seq, IBV_EVENT_QP_REQ_ERR);  // an answer would be a guess
}

void Qp::keep_result() {
  const Result& last = results_[(next_result_ - 1) % kMaxRdAtomic];
  if (kept_ != nullptr && last.valid && !kept_->keep_result(last.seq, last.value))
    g_engine->border->note_lost(link_->cluster());
}

// --- RESUME ---

bool Qp::has_history() const {
  return reliable() && (established_ || sq_.sent != 0 || (kept_ != nullptr && kept_->restored));
}

// Or has to hear: what others wait for at the gate.
bool Qp::has_something_to_say() const {
  return !sq_.empty() || nak_ != Syndrome::kNone ||
         (kept_ != nullptr && (kept_->restored || first_to_replay() != kNothingLeft));
}

// Says which request is expected here, and sends none until the peer has said so, too.
void Qp::begin_resuming() {
  resume_ = true;
  if (state() == IBV_QPS_RTS || state() == IBV_QPS_SQD) wait(Wait::kResume, retry_interval_ns());
  link_->ready(*this);
}

void Qp::on_resume_timer() {
  if (link_ != nullptr && link_->up())
    begin_resuming();
  else
    wait(Wait::kResume, retry_interval_ns());
}

// The peer has executed everything before `header.seq`, and nothing behind it.
void Qp::on_resume(const FrameHeader& header) {
  if (header.operand1 != 0) {  // it waits for ours
    resume_ = true;
    link_->ready(*this);
  }
  if (!reliable()) return;
  note_repeats(static_cast<std::uint32_t>(header.operand2));
  const std::uint32_t expects = header.seq;
  if (kept_ != nullptr) kept_->unknown = false;
  if (wait_ != Wait::kResume) {
    if (kept_ != nullptr) {
      if (!state_is_sending()) kept_->restored = false;
      if (kept_->replays()) on_replay_ack(expects);  // no other frame brings it
      note_executed(expects);
      tell_gate();
      on_log_room();
    }
    on_ack(expects);
    return;
  }
  stop_waiting();
  tries_ = 0;
  reads_out_ = 0;
  probing_ = halted_ = false;
  const std::int32_t ahead = ahead_of(expects, sequence(sq_.acked));
  if (kept_ != nullptr && ahead <= 0) kept_->skips = false;
  if (!(ahead > 0 ? skip_to(expects) : go_back_to(expects))) {
    log_message(LogLevel::kError,
                "queue pair 0x%x: its peer expects request %u; %u to %u are here%s: the checkpoints of both clusters "
                "do not belong together, or the log has been trimmed or given up",
                verbs.qp_num, expects, sequence(sq_.head),
                sequence(sq_.head) + static_cast<std::uint32_t>(sq_.tail - sq_.head),
                kept_ != nullptr && !kept_->log.empty() ? ", and others in the log" : "");
    raise(IBV_EVENT_QP_FATAL);
    fail(IBV_WC_RETRY_EXC_ERR);
    return;
  }
  const std::uint32_t executed = kept_ != nullptr && kept_->skips ? sequence(sq_.sent) : expects;
  if (kept_ != nullptr) {
    kept_->restored = false;
    note_executed(executed);
    tell_gate();
    on_log_room();
  }
  if (ahead > 0) on_ack(executed);
  if (!connected()) return;
  sq_.next = first_unanswered(sq_.head);
  kick();
  ready_replay();
}

// `end`: requests before it had left. 0 of a peer that has sent none, and of earlier versions.
void Qp::note_repeats(std::uint32_t end) {
  if (kept_ == nullptr || !g_engine->border->went_back()) return;
  kept_->repeats = ahead_of(end, expected_) > 0;
  kept_->repeats_end = end;
}

void Qp::on_repeat(const FrameHeader& header) {
  kept_->repeats = ahead_of(header.seq, kept_->repeats_end) < 0;
  if (kept_->repeats && takes_receive(header.opcode)) recv_cq().expect_repeat();
}

// The peer has run requests that this side does not know to have left: before it went back, they had. Binds and local
// invalidations lie between them. They have no numbers, and each runs in its turn.
bool Qp::skip_to(std::uint32_t expects) {
  const std::uint32_t steps = expects - sequence(sq_.acked);
  if (kept_ == nullptr || (!kept_->restored && !kept_->skips)) return steps <= sq_.sent - sq_.acked;
  std::uint32_t left = steps;
  for (std::uint64_t i = sq_.acked; left > 0; ++i) {
    if (i == sq_.tail) return false;
    if (!is_local(sq_.at(i).opcode)) --left;
  }
  kept_->skips = true;
  kept_->skip_end = expects;
  sq_.sent = std::max(sq_.sent, end_of_skipped());
  return true;
}

// Requests before this place, which has no number or was not executed, have been.
std::uint64_t Qp::end_of_skipped() {
  const std::uint32_t left = kept_->skip_end - sequence(sq_.acked);
  std::uint64_t end = sq_.acked;
  for (; end < sq_.acked + left && !is_local(sq_.at(end).opcode); ++end)
    if (end >= sq_.sent) sq_.at(end).left = kNothingLeft;
  kept_->skips = end < sq_.acked + left;
  return end;
}

// A request without a number has run. Those behind it were executed, up to the next one without. False: the result of
// one of them has to be asked for.
bool Qp::skip_on() {
  const std::uint64_t end = end_of_skipped();
  sq_.sent = std::max(sq_.sent, end);
  note_executed(sequence(end));
  sq_.acked = end;
  sq_.next = first_unanswered(sq_.next);
  return sq_.next == end;
}

// The peer has not run all that this side knows to have run: it went back.
bool Qp::go_back_to(std::uint32_t expects) {
  const std::uint32_t within = expects - sequence(sq_.head);
  if (within > sq_.acked - sq_.head) {
    if (kept_ == nullptr || !kept_->covers(expects, sequence(sq_.head))) return false;
    kept_->replay_acked = kept_->replay_next = expects;
    kept_->replay_end = sequence(sq_.head);
    sq_.acked = sq_.head;
  } else {
    sq_.acked = sq_.head + within;
  }
  for (std::uint64_t i = sq_.acked; i < sq_.sent; ++i) sq_.at(i).done = 0;
  if (kept_ != nullptr)
    for (auto it = place_in_log(kept_->log, sequence(sq_.acked)); it != kept_->log.end(); ++it) (*it)->completed = 0;
  return true;
}

bool Qp::next_replayed(Frame* frame) {
  Kept& kept = *kept_;
  if (wait_ != Wait::kNone || (probing_ && kept.replay_next != kept.replay_acked)) return false;
  const BorderLogEntry* entry = kept.find(kept.replay_next);
  SHADOWIB_CHECK(entry != nullptr, "queue pair 0x%x has no request %u in its log", verbs.qp_num, kept.replay_next);
  if (!passes_gate(entry->left, entry->completed)) return false;
  if (tell_first(entry->sn, false, frame)) return true;
  send_again(*entry, frame);
  frame->header->sn = entry->sn;
  ++kept.replay_next;
  return true;
}

// What a frame from the peer says of requests that were sent again.
void Qp::on_replay_ack(std::uint32_t ack) {
  Kept& kept = *kept_;
  const std::uint32_t steps = ack - kept.replay_acked;
  if (steps == 0) return;
  if (steps > kept.replay_next - kept.replay_acked) {
    // Of requests in the queue, which follow the last of these.
    if (kept.replay_next != kept.replay_end || ahead_of(ack, kept.replay_end) < 0) return;
    kept.end_replay();
    tell_gate();
    on_log_room();
    kick();
    return;
  }
  kept.replay_acked += steps;
  tell_gate();
  if (!kept.replays()) on_log_room();
  rnr_streak_ = 0;
  probing_ = false;
  kick();
  link_->ready(*this);
}

// The peer's cluster went back to a CLC at which its queue pair was there no more: nothing is to be sent to it again.
// What is in the queue fails as it would have, by its retries. The log stays, for a queue pair that has come back and
// ended a moment ago, and whose cluster goes back once more.
void Qp::forget_peer() {
  if (kept_ == nullptr || !kept_->unknown) return;
  kept_->unknown = false;
  tell_gate();
}

// True if the refusal is of a request that on_nak() does not know: sent again, or of a RESUME.
bool Qp::on_border_nak(const FrameHeader& header) {
  const auto counts = [&] { return g_engine->pause.counts((header.flags & kFlagPaused) == 0); };
  if (wait_ == Wait::kResume && header.syndrome == Syndrome::kNotReady) {
    if (header.imm == kGoneForGood) forget_peer();
    // There is no such queue pair, or it is not connected. It is asked again when the timer has run out.
    if (attr_.timeout != 0 && !sq_.empty() && counts() && tries_++ >= attr_.retry_cnt) fail(IBV_WC_RETRY_EXC_ERR);
    return true;
  }
  if (kept_ != nullptr && kept_->replays()) {
    if (header.seq != kept_->replay_acked) return ahead_of(header.seq, kept_->replay_end) < 0;
    if (is_fatal(header.syndrome)) {
      refused(header, counts());
      return true;
    }
    // The program has this request's completion, so that no retry runs out.
    kept_->replay_next = kept_->replay_acked;
    go_back(header.syndrome == Syndrome::kReceiverNotReady ? Wait::kReceiver : Wait::kPeer,
            header.syndrome == Syndrome::kReceiverNotReady ? rnr_delay_ns(header) : retry_interval_ns());
    return true;
  }
  // The result of an executed request is not to be had again.
  const std::uint64_t oldest = first_unanswered(sq_.head);
  if (oldest >= sq_.acked || header.seq != sequence(oldest)) return false;
  const std::uint64_t asked = std::min(sq_.acked, sq_.next);
  refused(header, counts());
  if (!connected() || wait_ == Wait::kNone) return true;
  for (std::uint64_t i = oldest; i < asked; ++i)
    if (needs_response(sq_.at(i).opcode) && !sq_.at(i).done) --reads_out_;
  sq_.next = oldest;
  probing_ = false;
  return true;
}

// --- checkpoints ---

int Qp::save_border(BorderState* state, BorderResult* results, std::size_t capacity) {
  if (!has_peer() || !is_at_border() || !connected()) return ENOENT;
  if (!reliable() || type() != IBV_QPT_RC) return EOPNOTSUPP;
  *state = {};
  state->first = state_is_sending() ? sequence(sq_.head) : 0;
  state->expected = expected_;
  if (kept_ == nullptr) return 0;
  state->results = static_cast<std::uint32_t>(kept_->results.size());
  state->unlogged = kept_->unlogged;
  std::copy_n(kept_->results.begin(), std::min(capacity, kept_->results.size()), results);
  return 0;
}

int Qp::restore_border(const BorderState& state, const BorderResult* results) {
  if (type() != IBV_QPT_RC) return EOPNOTSUPP;
  if (this->state() != IBV_QPS_RESET && this->state() != IBV_QPS_INIT) return EINVAL;
  kept_ = std::make_unique<Kept>();
  kept_->restored = kept_->unknown = true;
  kept_->first = state.first;
  kept_->expected = state.expected;
  for (std::uint32_t i = 0; i < state.results; ++i) (void)kept_->keep_result(results[i].number, results[i].value);
  kept_->clcs.push_back({g_engine->border->sn(), state.first, state.expected});
  kept_->unlogged = state.unlogged != 0 || g_host->log_next == nullptr;
  kept_->dropped_before = state.first;
  if (g_host->log_next == nullptr) return 0;
  for (const BorderLogEntry* at = g_host->log_next(&verbs, nullptr); at != nullptr;
       at = g_host->log_next(&verbs, at)) {
    auto* const entry = const_cast<BorderLogEntry*>(at);
    if (is_void(*entry)) continue;
    if (entry->header[0] != kWireVersion ||
        (!kept_->log.empty() && ahead_of(entry->number, kept_->log.back()->number) <= 0))
      return EINVAL;
    kept_->log.push_back(entry);
  }
  if (!kept_->log.empty()) kept_->dropped_before = kept_->log.front()->number;
  return 0;
}

void Qp::take_restored_numbers(ibv_qp_state to) {
  if (kept_ == nullptr || !kept_->restored) return;
  if (to == IBV_QPS_RTR) {
    expected_ = kept_->expected;
    established_ = expected_ != attr_.rq_psn;
    return;
  }
  if (kept_->sends_anew) {
    kept_->restored = false;
    return;
  }
  local_ran_ = attr_.sq_psn - kept_->first;
  // What is posted until the border opens was posted before the CLC.
  const federation::Sn now = g_engine->border->sn();
  if (now > 1) marks_.assign(1, {0, now - 1});
}

// The border opens: whatever is posted from now on is new.
void Qp::end_restoring() {
  if (kept_ == nullptr || !kept_->restored) return;
  if (!state_is_sending()) {
    kept_->sends_anew = true;
    return;
  }
  if (marks_.empty()) return;
  if (sq_.tail == 0)
    marks_.clear();
  else
    marks_.push_back({sq_.tail, g_engine->border->sn()});
}

void Qp::note_clc(federation::Sn sn) {
  if (kept_ == nullptr || !connected()) return;
  if (kept_->clcs.size() == Kept::kMostClcs) kept_->clcs.erase(kept_->clcs.begin());
  kept_->clcs.push_back({sn, state_is_sending() ? sequence(sq_.head) : attr_.sq_psn, expected_});
}

void Qp::tell_collected(federation::Sn sn) {
  if (kept_ == nullptr || !connected()) return;
  std::vector<Kept::Clc>& clcs = kept_->clcs;
  const auto past = std::find_if(clcs.begin(), clcs.end(), [sn](const Kept::Clc& clc) { return clc.sn > sn; });
  if (past == clcs.begin()) return;
  kept_->stable_first = (past - 1)->first;
  kept_->stable_expected = (past - 1)->expected;
  kept_->stable_sn = (past - 1)->sn;
  kept_->tells_stable = true;
  clcs.erase(clcs.begin(), past - 1);
  if (link_ != nullptr && link_->up()) link_->ready(*this);
}

bool Qp::next_stable(Frame* frame) {
  if (kept_ == nullptr || !kept_->tells_stable) return false;
  kept_->tells_stable = false;
  fill_header(frame->header, Opcode::kStable, kept_->stable_expected);
  frame->header->operand1 = kept_->stable_first;
  frame->header->sn = kept_->stable_sn;
  return true;
}

int border_state(ibv_qp* verbs, BorderState* state, BorderResult* results, std::size_t capacity) {
  EngineGuard guard;
  return reinterpret_cast<Qp*>(verbs)->save_border(state, results, capacity);
}

int restore_border(ibv_qp* verbs, const BorderState* state, const BorderResult* results) {
  EngineGuard guard;
  const Border* border = g_engine->border.get();
  if (border == nullptr || !border->frozen()) return EINVAL;
  return reinterpret_cast<Qp*>(verbs)->restore_border(*state, results);
}

void clc_collected(std::uint32_t sn) {
  EngineGuard guard;
  if (g_engine->border == nullptr) return;
  g_engine->qps.for_each([sn](Qp& qp) { qp.tell_collected(sn); });
  g_engine->want_turn();
}

}  // namespace shadowib::ib2tcp
