// The sending half: which request goes next, and what the peer's answers mean for those that went.
#include <errno.h>

#include <algorithm>
#include <cstring>

#include "ib2tcp/copy_in_order.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/memory.h"
#include "ib2tcp/memory_window.h"
#include "ib2tcp/queue_pair.h"

namespace shadowib::ib2tcp {
namespace {

// Encodings of min_rnr_timer in units of 10 us. Source: InfiniBand Architecture Specification 1.4, table 45.
constexpr std::int64_t kRnrTimer10us[32] = {65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
                                            48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
                                            2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
constexpr std::uint8_t kForever = 7;  // rnr_retry
// A receiver that posts tells us at once; the timer of a sender that retries for ever is only a second way, so that
// it may grow and not send a large message again and again.
constexpr std::int64_t kLongestRnrWaitNs = 64'000'000;
constexpr std::int64_t kResolveNs = 10'000'000, kExchangeNs = 100'000'000;
// Fabrics need no time to connect; we do. Time-outs never end in less than this altogether.
constexpr std::int64_t kPatienceNs = 500'000'000;
constexpr std::uint32_t kUnreliableTries = 5;  // of 100 ms each: whoever is not there then has missed the message

ibv_wc_opcode completion_opcode(Opcode opcode) {
  switch (opcode) {
    case Opcode::kWrite:
    case Opcode::kWriteImm:
      return IBV_WC_RDMA_WRITE;
    case Opcode::kRead:
      return IBV_WC_RDMA_READ;
    case Opcode::kCompareSwap:
      return IBV_WC_COMP_SWAP;
    case Opcode::kFetchAdd:
      return IBV_WC_FETCH_ADD;
    case Opcode::kBindWindow:
      return IBV_WC_BIND_MW;
    case Opcode::kLocalInvalidate:
      return IBV_WC_LOCAL_INV;
    default:
      return IBV_WC_SEND;
  }
}

}  // namespace

bool Qp::next_frame(Frame* frame) {
  if (odd_) return next_odd_frame(frame);
  if ((answers_begin_ != answers_end_ || nak_ != Syndrome::kNone) && next_answer(frame)) return true;
  if (next_request(frame)) return true;
  return next_notice(frame);
}

bool Qp::next_notice(Frame* frame) {
  if (tell_posted_) {
    tell_posted_ = false;
    fill_header(frame->header, Opcode::kReceivePosted, expected_);
    return true;
  }
  if (ack_now_) {
    g_engine->statistics.acks_sent.add(1);
    fill_header(frame->header, Opcode::kAck, 0);
    return true;
  }
  return false;
}

// Every frame says how far we have executed the peer's requests, which settles any acknowledgement owed.
void Qp::fill_header(FrameHeader* header, Opcode opcode, std::uint32_t seq) {
  *header = FrameHeader{};
  header->version = kWireVersion;
  header->opcode = opcode;
  header->flags = kFlagAckValid;
  header->dest_qpn = attr_.dest_qp_num;
  header->src_qpn = verbs.qp_num;
  header->seq = seq;
  header->ack = expected_;
  ack_now_ = false;
  ack_hook.unlink();
  unacked_messages_ = unacked_bytes_ = 0;
}

bool Qp::may_send_next() const {
  if (probing_ && sq_.next != sq_.acked) return false;
  if (sq_.next == sq_.tail || halted_ || wait_ != Wait::kNone) return false;
  // A draining queue repeats what it had begun, and begins nothing.
  return state() == IBV_QPS_RTS || (state() == IBV_QPS_SQD && sq_.next < sq_.sent);
}

bool Qp::next_request(Frame* frame) {
  if (!may_send_next()) return false;
  Send& send = sq_.at(sq_.next);
  if (is_local(send.opcode)) return false;  // waits for those before it, see run_local
  if (send.fence && reads_out_ > 0) return false;
  if (needs_response(send.opcode) && attr_.max_rd_atomic > 0 && reads_out_ >= attr_.max_rd_atomic) return false;
  ibv_wc_status status = send.status;
  if (status == IBV_WC_SUCCESS) status = prepare_payload(send, frame);
  if (status != IBV_WC_SUCCESS) {
    send.status = status;
    halted_ = true;
    complete_ready();
    return false;
  }
  FrameHeader& header = *frame->header;
  fill_header(&header, send.opcode, sequence(sq_.next));
  if (send.send_flags_solicited) header.flags = kFlagAckValid | kFlagSolicited;
  frame->bytes = needs_response(send.opcode) ? 0 : send.length;
  header.length = send.length;
  header.imm = send.imm;
  header.rkey = send.rkey;
  header.raddr = send.raddr;
  header.operand1 = send.operand1;
  header.operand2 = send.operand2;
  header.srqn = send.srqn;
  if (needs_response(send.opcode)) ++reads_out_;
  sq_.sent = std::max(sq_.sent, ++sq_.next);
  return true;
}

// Requests that need no peer run when everything before them is over, and before anything behind them leaves: so
// that what has run is a beginning of the queue here too, and going back never comes to one again.
void Qp::run_local() {
  bool ran = false, failed = false;
  if (sq_.next < sq_.acked) sq_.next = first_unanswered(sq_.next);  // only at a border
  while (may_send_next() && (ran || sq_.head == sq_.next) && is_local(sq_.at(sq_.next).opcode)) {
    Send& send = sq_.at(sq_.next);
    if (send.opcode == Opcode::kBindWindow)
      send.status = bind_window(*this, send);
    else
      send.status = invalidate_window(*this, send.rkey) ? IBV_WC_SUCCESS : IBV_WC_LOC_QP_OP_ERR;
    if (!connected()) return;  // it took the memory from a message that was coming in here
    if (send.status != IBV_WC_SUCCESS) {
      failed = halted_ = true;
      break;
    }
    sq_.acked = sq_.sent = ++sq_.next;
    ++local_ran_;
    --local_left_;
    ran = true;
    if (kept_ != nullptr && send.signaled) note_told(sequence(sq_.acked));
    if (kept_ != nullptr && kept_->skips && !skip_on()) break;
  }
  if (ran || failed) complete_ready();
}

ibv_wc_status Qp::prepare_payload(Send& send, Frame* frame) {
  frame->count = 0;
  if (needs_response(send.opcode)) {
    if (attr_.max_rd_atomic == 0) return IBV_WC_LOC_QP_OP_ERR;
    iovec parts[kMaxParts];
    int n = translate_list(verbs.pd, send.sge(), send.sges, send.length, IBV_ACCESS_LOCAL_WRITE, parts);
    bool careful;  // looked at when the answer is here
    if (n == -1)
      n = translate_list_carefully(verbs.pd, send.sge(), send.sges, send.length, IBV_ACCESS_LOCAL_WRITE, parts,
                                   nullptr, &careful);
    return n == -1 ? IBV_WC_LOC_PROT_ERR : n == -2 ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS;
  }
  if (send.length == 0) return IBV_WC_SUCCESS;
  if (send.inlined) {
    frame->parts[frame->count++] = {send.data(), send.length};
    return IBV_WC_SUCCESS;
  }
  frame->count = translate_list(verbs.pd, send.sge(), send.sges, send.length, 0, frame->parts);
  if (frame->count < 0) return prepare_payload_carefully(send, frame);
  return IBV_WC_SUCCESS;
}

ibv_wc_status Qp::prepare_payload_carefully(Send& send, Frame* frame) {
  bool careful = false;
  frame->count =
      translate_list_carefully(verbs.pd, send.sge(), send.sges, send.length, 0, frame->parts, nullptr, &careful);
  if (frame->count < 0 || (careful && !frame->copy_carefully(send.length))) return IBV_WC_LOC_PROT_ERR;
  return IBV_WC_SUCCESS;
}

void Qp::on_ack(std::uint32_t ack) {
  std::uint32_t steps = ack - sequence(sq_.acked);
  if (steps == 0 || steps > sq_.sent - sq_.acked) return;  // old news, or not about what we sent
  sq_.acked += steps;
  sq_.next = std::max(sq_.next, sq_.acked);
  tries_ = 0;
  rnr_left_ = attr_.rnr_retry;
  rnr_streak_ = 0;
  probing_ = false;
  complete_ready();
}

void Qp::complete_ready() {
  while (sq_.head < sq_.acked) {
    Send& send = sq_.at(sq_.head);
    if (needs_response(send.opcode) && !send.done) break;
    executed_.add(1);  // who polls the completion finds it counted
    complete_send(send, IBV_WC_SUCCESS);
    ++sq_.head;
  }
  if (halted_ && sq_.head == sq_.next) fail(sq_.at(sq_.head).status);
  maybe_drained();
  check_overrun();
  kick();
}

void Qp::complete_send(Send& send, ibv_wc_status status) {
  g_engine->outstanding.add(-1);
  if (!has_peer()) release_datagram(send);
  if (status == IBV_WC_SUCCESS && !send.signaled) return;
  Cq& cq = send_cq();
  ibv_wc* wc = begin_completion(cq, send.wr_id);
  if (wc == nullptr) return;
  wc->status = status;
  wc->opcode = completion_opcode(send.opcode);
  wc->byte_len = send.length;
  cq.append(false);
}

// Requests of an unreliable connection that will not be executed are over all the same.
void Qp::lose_posted(std::uint64_t end) {
  sq_.acked = std::max(sq_.acked, end);
  sq_.next = std::max(sq_.next, sq_.acked);
  sq_.sent = std::max(sq_.sent, sq_.next);
  complete_ready();
}

void Qp::on_unreliable_nak(std::uint32_t seq) {
  const std::uint32_t ahead = seq - sequence(sq_.acked);
  if (ahead < sq_.sent - sq_.acked) lose_posted(sq_.acked + ahead + 1);
}

void Qp::on_nak(const FrameHeader& header) {
  if (!reliable()) {
    on_unreliable_nak(header.seq);
    return;
  }
  if (odd_ && on_border_nak(header)) return;
  if (const std::uint64_t oldest = first_unanswered(sq_.head); oldest < sq_.acked) {
    if (header.seq == sequence(oldest)) lose_answer(header);
    if (!connected()) return;
  }
  // Only the oldest unexecuted request can be refused; what lies behind it was not looked at.
  if (sq_.acked == sq_.sent || header.seq != sequence(sq_.acked)) return;
  // While either program is stopped nobody can mend what is refused: that uses up no retry.
  refused(header, g_engine->pause.counts((header.flags & kFlagPaused) == 0));
}

// The oldest READ or atomic that counts as executed was, and its answer does not come.
void Qp::lose_answer(const FrameHeader& header) {
  if (is_fatal(header.syndrome))
    refused(header, true);
  else if (header.syndrome == Syndrome::kNotReady)
    fail(IBV_WC_RETRY_EXC_ERR);  // repeated, it might be executed twice
}

std::int64_t Qp::rnr_delay_ns(const FrameHeader& header) {
  const std::int64_t delay = kRnrTimer10us[header.imm & 31] * 10'000;
  return std::max(delay, std::min(kLongestRnrWaitNs, std::int64_t{20'000} << std::min(rnr_streak_++, 12u)));
}

void Qp::refused(const FrameHeader& header, bool counts) {
  switch (header.syndrome) {
    case Syndrome::kReceiverNotReady: {
      std::int64_t delay = kRnrTimer10us[header.imm & 31] * 10'000;
      if (attr_.rnr_retry == kForever) {
        delay = rnr_delay_ns(header);
      } else if (counts && rnr_left_ == 0) {
        fail(IBV_WC_RNR_RETRY_EXC_ERR);
        return;
      } else if (counts) {
        --rnr_left_;
      }
      go_back(Wait::kReceiver, delay);
      return;
    }
    case Syndrome::kNotReady:
      if (counts && attr_.timeout != 0 && tries_++ >= attr_.retry_cnt) {
        fail(IBV_WC_RETRY_EXC_ERR);
      } else {
        go_back(Wait::kPeer, retry_interval_ns());
      }
      return;
    case Syndrome::kInvalidRequest:
      fail(IBV_WC_REM_INV_REQ_ERR);
      return;
    case Syndrome::kRemoteAccess:
      fail(IBV_WC_REM_ACCESS_ERR);
      return;
    default:
      fail(IBV_WC_REM_OP_ERR);
      return;
  }
}

void Qp::go_back(Wait why, std::int64_t delay_ns) {
  for (std::uint64_t i = sq_.acked; i < sq_.next; ++i) {
    Send& send = sq_.at(i);
    if (needs_response(send.opcode) && !send.done) --reads_out_;
  }
  sq_.next = sq_.acked;
  probing_ = true;
  halted_ = false;  // one that cannot be sent keeps its status, and is found again when its turn comes
  wait(why, delay_ns);
}

void Qp::on_receive_posted() {
  if (wait_ != Wait::kReceiver) return;
  probing_ = false;
  stop_waiting();
  kick();
  if (odd_) ready_replay();
}

void Qp::begin_response(const FrameHeader& header, Sink* sink) {
  std::uint32_t ahead = header.seq - sequence(sq_.head);
  if (ahead >= sq_.sent - sq_.head) return;
  Send& send = sq_.at(sq_.head + ahead);
  if (send.done || send.length != header.length) return;
  bool read = header.opcode == Opcode::kReadResponse && send.opcode == Opcode::kRead;
  bool atomic = header.opcode == Opcode::kAtomicResponse && is_atomic(send.opcode);
  if (!read && !atomic) return;
  int n = translate_list(verbs.pd, send.sge(), send.sges, send.length, IBV_ACCESS_LOCAL_WRITE, sink->parts,
                         sink->regions);
  if (n == -1)
    n = translate_list_carefully(verbs.pd, send.sge(), send.sges, send.length, IBV_ACCESS_LOCAL_WRITE, sink->parts,
                                 sink->regions, &sink->careful);
  if (n < 0) {
    fail(IBV_WC_LOC_PROT_ERR);
    return;
  }
  if (atomic) {
    const char* value = reinterpret_cast<const char*>(&header.operand1);
    for (int i = 0; i < n; value += sink->parts[i].iov_len, ++i) {
      if (!sink->careful) {
        copy_in_order(sink->parts[i].iov_base, value, sink->parts[i].iov_len);
      } else if (!write_carefully(sink->parts[i].iov_base, value, sink->parts[i].iov_len)) {
        fail(IBV_WC_LOC_PROT_ERR);
        return;
      }
    }
  } else {
    sink->count = n;
    sink->discard = sink->careful;
  }
  sink->qp = this;
}

void Qp::finish_response(Sink& sink) {
  std::uint32_t ahead = sink.header.seq - sequence(sq_.head);
  if (ahead >= sq_.sent - sq_.head) return;
  sq_.at(sq_.head + ahead).done = true;
  --reads_out_;
  complete_ready();
}

std::int64_t Qp::retry_interval_ns() const {
  if (attr_.timeout == 0) return 100'000'000;
  std::int64_t interval = std::int64_t{4096} << attr_.timeout;
  return std::max(interval, kPatienceNs / (attr_.retry_cnt + 1));
}

void Qp::wait(Wait why, std::int64_t delay_ns) {
  wait_ = why;
  g_engine->arm(timer_, monotonic_ns() + delay_ns);
}

void Qp::stop_waiting() {
  wait_ = Wait::kNone;
  g_engine->disarm(timer_);
}

// Attempts are counted, not time: a job that is stopped for a while loses no attempt by it.
void Qp::on_timer() {
  Wait why = wait_;
  wait_ = Wait::kNone;
  if (!has_peer()) {
    on_datagram_timer();
    return;
  }
  if (why == Wait::kResume) {
    on_resume_timer();
    return;
  }
  if (why == Wait::kExchange) {
    resolve();
    return;
  }
  if (why == Wait::kReceiver || why == Wait::kPeer) {
    kick();
    if (odd_) ready_replay();
    return;
  }
  if (!reliable() && !sq_.empty() && ++tries_ >= kUnreliableTries) {
    tries_ = 0;
    // What is held is not lost, and a request that could not be sent anyway is an error.
    const std::uint64_t all = state() == IBV_QPS_RTS ? sq_.tail : sq_.sent;
    std::uint64_t end = sq_.acked;
    while (end < all && sq_.at(end).status == IBV_WC_SUCCESS && !is_local(sq_.at(end).opcode)) ++end;
    lose_posted(end);
    if (end < all && connected() && sq_.at(end).status != IBV_WC_SUCCESS) {
      fail(sq_.at(end).status);
      return;
    }
  }
  const bool awaits_peer = kept_ != nullptr && kept_->restored;  // whose cluster may go back, too
  const bool counts =
      !sq_.empty() && attr_.timeout != 0 && !awaits_peer && (link_ == nullptr || !link_->being_made());
  if (counts && tries_++ >= attr_.retry_cnt && !(odd_ && asks_whether_lost())) {
    fail(IBV_WC_RETRY_EXC_ERR);
    return;
  }
  if (why == Wait::kResolve) {
    resolve();
  } else {
    kick();
  }
}

void Qp::resolve() {
  const ibv_ah_attr& to = attr_.ah_attr;
  link_ = nullptr;
  const int rc = g_engine->rendezvous->find(to.dlid, to.is_global != 0, to.grh.dgid.raw, &link_);
  if (rc == ENOENT) {
    wait(Wait::kResolve, sq_.empty() ? kResolveNs : retry_interval_ns());
    return;
  }
  if (rc != 0) {
    wait(Wait::kExchange, std::max(kExchangeNs, g_engine->exchange_rests_until_ns - monotonic_ns()));
    return;
  }
  link_->add(*this);
  odd_ = link_->is_border();
  if (odd_ && type() == IBV_QPT_RC && kept_ == nullptr) kept_ = std::make_unique<Kept>();
  if (odd_) note_new_connection();
  if (odd_ && link_->up() && has_history()) begin_resuming();
  link_->want_connection();
  kick();
}

void Qp::kick() {
  if (!has_peer()) {
    kick_datagrams();
    return;
  }
  if (local_left_ != 0) run_local();
  if (link_ == nullptr || state() == IBV_QPS_ERR) return;
  if (link_->up()) {
    if (sq_.next < sq_.tail) link_->ready(*this);
  } else if (!sq_.empty() && wait_ == Wait::kNone) {
    if (odd_) ask_before_connection();
    link_->want_connection();
    if (!link_->up() && !link_->is_over()) wait(Wait::kLink, retry_interval_ns());
  }
}

void Qp::on_link_up() {
  if (wait_ == Wait::kLink) stop_waiting();
  tries_ = 0;
  resume_ = false;
  if (odd_ && has_history()) begin_resuming();
  kick();
  if (resume_ || nak_ != Syndrome::kNone || (kept_ != nullptr && kept_->tells_stable)) link_->ready(*this);
}

void Qp::on_link_down() {
  ready_hook.unlink();
  ack_hook.unlink();
  answers_begin_ = answers_end_;
  if (!odd_ || !is_fatal(nak_)) nak_ = Syndrome::kNone;  // the connection after this one tells it
  if (odd_) tell_refusal_again();
  ack_now_ = told_posted_ = false;
  receiver_ready();
  if (!connected()) return;
  if (!reliable()) {
    lose_posted(sq_.sent);
  } else if (odd_) {
    start_over();
    kick();
  } else if (sq_.head < sq_.sent) {
    fail(IBV_WC_RETRY_EXC_ERR);
  } else {
    kick();  // nothing of ours was under way: a new connection may be had
  }
}

}  // namespace shadowib::ib2tcp
