// The receiving half: checks a request, says where its payload goes, executes it once, and answers.
#include <algorithm>
#include <utility>

#include "ib2tcp/as_adapter.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/memory.h"
#include "ib2tcp/memory_window.h"
#include "ib2tcp/queue_pair.h"
#include "ib2tcp/shared_receive_queue.h"

namespace shadowib::ib2tcp {
namespace {

// Acknowledge without waiting for an idle moment: the sender's queue is bounded.
constexpr std::uint32_t kMessagesPerAck = 32;
constexpr std::uint32_t kBytesPerAck = 128 << 10;

// An atomic in memory that may not be touched. False: some of it is not there.
bool execute_carefully(const FrameHeader& header, std::uint64_t* target, std::uint64_t* before) {
  if (!read_carefully(before, target, sizeof(*before))) return false;
  std::uint64_t after = *before;
  if (header.opcode == Opcode::kFetchAdd)
    after += header.operand1;
  else if (*before == header.operand1)
    after = header.operand2;
  return write_carefully(target, &after, sizeof(after));
}

}  // namespace

void Qp::begin_request(const FrameHeader& header, Sink* sink) {
  if (!reliable()) expected_ = header.seq;  // what is missing before it was lost
  std::uint32_t ahead = header.seq - expected_;
  if (ahead != 0) {
    if (static_cast<std::int32_t>(ahead) < 0) {
      duplicate(header);
    } else if (!rnr_) {
      // Not behind a request we refused: the sequence numbers do not fit. The sender tries again, then gives up.
      FrameHeader answer{};
      answer.version = kWireVersion;
      answer.opcode = Opcode::kNak;
      answer.syndrome = Syndrome::kNotReady;
      answer.dest_qpn = header.src_qpn;
      answer.src_qpn = verbs.qp_num;
      answer.seq = header.seq;
      link_->send_loose(answer);
    }
    return;
  }
  if (!established_) {
    established_ = true;
    if (state() == IBV_QPS_RTR) raise(IBV_EVENT_COMM_EST);
  }
  if (is_target() && !choose_srq(header.srqn)) {
    fail_request(Syndrome::kInvalidRequest, header.seq, IBV_EVENT_QP_REQ_ERR);
  } else if (!reliable() && (needs_response(header.opcode) || header.opcode == Opcode::kSendInvalidate)) {
    drop_message();
  } else if (header.opcode == Opcode::kRead) {
    begin_read(header, false);
  } else if (is_atomic(header.opcode)) {
    begin_atomic(header);
  } else if (begin_placement(header, sink)) {
    sink->qp = this;
    sink->discard = sink->careful;
  }
}

bool Qp::begin_placement(const FrameHeader& header, Sink* sink) {
  bool write = header.opcode == Opcode::kWrite || header.opcode == Opcode::kWriteImm;
  if (write && (attr_.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0) {
    fail_request(Syndrome::kRemoteAccess, header.seq, IBV_EVENT_QP_ACCESS_ERR);
    return false;
  }
  if (takes_receive(header.opcode) && !rq_->available()) {
    if (!reliable()) {
      drop_message();
      return false;
    }
    // Not executed, and nothing kept: the sender has it and everything behind it.
    g_engine->statistics.rnr_naks.add(1);
    rnr_ = true;
    told_posted_ = tell_posted_ = false;
    if (srq_ != nullptr && !starved_hook.is_linked()) srq_->starved.push_back(*this);
    nak(Syndrome::kReceiverNotReady, header.seq);
    return false;
  }
  if (header.opcode == Opcode::kSendInvalidate && !may_invalidate(*this, header.rkey)) {
    if (puts_off(header)) return false;
    refuse_invalidation(header);
    return false;
  }
  if (write && header.length > 0) {
    void* memory =
        translate_remote(*this, remote_pd(header), header.rkey, header.raddr, header.length, IBV_ACCESS_REMOTE_WRITE);
    if (memory == nullptr) {
      const Reach found = find_remote_carefully(*this, remote_pd(header), header.rkey, header.raddr, header.length,
                                                IBV_ACCESS_REMOTE_WRITE);
      if (found.memory == nullptr) {
        if (puts_off(header)) return false;
        fail_request(Syndrome::kRemoteAccess, header.seq, IBV_EVENT_QP_ACCESS_ERR);
        return false;
      }
      memory = found.memory;
      sink->careful = found.careful;
    }
    sink->parts[0] = {memory, header.length};
    sink->regions[0] = header.rkey;
    sink->count = 1;
  }
  return !takes_receive(header.opcode) || lend_receive(header, sink);
}

// It names a window that will be bound. True: the peer tries again, and what has left behind it comes again, too.
bool Qp::puts_off(const FrameHeader& header) {
  if (!waits_for_bind(header)) return false;
  g_engine->statistics.rnr_naks.add(1);
  rnr_ = true;
  nak(Syndrome::kReceiverNotReady, header.seq);
  nak_counts_ = false;
  return true;
}

// As Soft-RoCE completes it.
void Qp::refuse_invalidation(const FrameHeader& header) {
  Receive* receive = rq_->begin();
  if (srq_ != nullptr) srq_->check_limit();
  rq_->finish(receive);
  complete_receive(header, receive, IBV_WC_REM_INV_REQ_ERR);
  fail_request(Syndrome::kRemoteAccess, header.seq, IBV_EVENT_QP_ACCESS_ERR);
}

bool Qp::lend_receive(const FrameHeader& header, Sink* sink) {
  Receive* receive = rq_->begin();
  if (srq_ != nullptr) srq_->check_limit();
  sink->receive = receive;
  if (header.opcode == Opcode::kWriteImm) return true;
  int n = translate_list(recv_pd(), receive->sge, receive->sges, header.length, IBV_ACCESS_LOCAL_WRITE, sink->parts,
                         sink->regions);
  if (n == -1)
    n = translate_list_carefully(recv_pd(), receive->sge, receive->sges, header.length, IBV_ACCESS_LOCAL_WRITE,
                                 sink->parts, sink->regions, &sink->careful);
  if (n >= 0) {
    sink->count = n;
    return true;
  }
  sink->receive = nullptr;
  rq_->finish(receive);
  complete_receive(header, receive, n == -2 ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR);
  fail_request(n == -2 ? Syndrome::kInvalidRequest : Syndrome::kRemoteOperation, header.seq,
               n == -2 ? IBV_EVENT_QP_REQ_ERR : IBV_EVENT_QP_FATAL);
  return false;
}

void Qp::finish_request(Sink& sink) {
  if (sink.header.opcode == Opcode::kSendInvalidate) (void)invalidate_window(*this, sink.header.rkey);
  if (sink.receive != nullptr) {
    rq_->finish(sink.receive);
    complete_receive(sink.header, sink.receive, IBV_WC_SUCCESS);
  }
  executed_one(sink.header.length);
  check_overrun();
}

void Qp::fail_sink(Sink& sink) {
  if (is_datagram(sink.header.opcode)) {
    Receive* receive = std::exchange(sink.receive, nullptr);
    rq_->finish(receive);
    fail_datagram(sink.header, receive, IBV_WC_LOC_PROT_ERR);
    return;
  }
  if (!is_request(sink.header.opcode)) {
    fail(IBV_WC_LOC_PROT_ERR);
    return;
  }
  bool send = is_send(sink.header.opcode);
  if (Receive* receive = std::exchange(sink.receive, nullptr); receive != nullptr) {
    if (send) {
      rq_->finish(receive);
      complete_receive(sink.header, receive, IBV_WC_LOC_PROT_ERR);
    } else {
      rq_->give_back(receive);
    }
  }
  fail_request(send ? Syndrome::kRemoteOperation : Syndrome::kRemoteAccess, sink.header.seq,
               send ? IBV_EVENT_QP_FATAL : IBV_EVENT_QP_ACCESS_ERR);
}

void Qp::give_up_sink(Sink& sink) {
  if (sink.receive != nullptr) rq_->give_back(sink.receive);
}

void Qp::begin_read(const FrameHeader& header, bool repeat) {
  if ((attr_.qp_access_flags & IBV_ACCESS_REMOTE_READ) == 0) {
    fail_request(Syndrome::kRemoteAccess, header.seq, IBV_EVENT_QP_ACCESS_ERR);
    return;
  }
  if (answers_end_ - answers_begin_ >= attr_.max_dest_rd_atomic) {
    if (!repeat) fail_request(Syndrome::kInvalidRequest, header.seq, IBV_EVENT_QP_REQ_ERR);
    return;
  }
  if (header.length > 0 &&
      translate_remote(*this, remote_pd(header), header.rkey, header.raddr, header.length, IBV_ACCESS_REMOTE_READ) ==
          nullptr &&
      find_remote_carefully(*this, remote_pd(header), header.rkey, header.raddr, header.length,
                            IBV_ACCESS_REMOTE_READ)
              .memory == nullptr) {
    if (!repeat && puts_off(header)) return;
    fail_request(Syndrome::kRemoteAccess, header.seq, IBV_EVENT_QP_ACCESS_ERR);
    return;
  }
  FrameHeader& answer = answers_[answers_end_++ % kAnswers];
  answer = header;
  answer.opcode = Opcode::kReadResponse;
  if (!repeat) {
    executed_one(0);
    note_read();
  }
  kick_answers();
}

void Qp::begin_atomic(const FrameHeader& header) {
  if ((attr_.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC) == 0) {
    fail_request(Syndrome::kRemoteAccess, header.seq, IBV_EVENT_QP_ACCESS_ERR);
    return;
  }
  if ((header.raddr & 7) != 0 || answers_end_ - answers_begin_ >= attr_.max_dest_rd_atomic) {
    fail_request(Syndrome::kInvalidRequest, header.seq, IBV_EVENT_QP_REQ_ERR);
    return;
  }
  auto* target = static_cast<std::uint64_t*>(translate_remote(*this, remote_pd(header), header.rkey, header.raddr,
                                                              sizeof(std::uint64_t), IBV_ACCESS_REMOTE_ATOMIC));
  Reach found{target, false};
  if (target == nullptr) {
    found = find_remote_carefully(*this, remote_pd(header), header.rkey, header.raddr, sizeof(std::uint64_t),
                                  IBV_ACCESS_REMOTE_ATOMIC);
    target = static_cast<std::uint64_t*>(found.memory);
    if (target == nullptr && puts_off(header)) return;
  }
  std::uint64_t before;
  if (target == nullptr || (reinterpret_cast<std::uintptr_t>(target) & 7) != 0 ||
      (found.careful && !execute_carefully(header, target, &before))) {
    fail_request(Syndrome::kRemoteAccess, header.seq, IBV_EVENT_QP_ACCESS_ERR);
    return;
  }
  if (found.careful) {
    // Executed, under the engine's lock as all of them. The program itself cannot get at the memory.
  } else {
    const AsAdapter unseen;
    before = header.operand1;
    if (header.opcode == Opcode::kFetchAdd)
      before = __atomic_fetch_add(target, header.operand1, __ATOMIC_SEQ_CST);
    else
      __atomic_compare_exchange_n(target, &before, header.operand2, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  }
  results_[next_result_++ % kMaxRdAtomic] = {header.seq, true, before};
  executed_one(0);
  answer_atomic(header.seq, before);
}

void Qp::answer_atomic(std::uint32_t seq, std::uint64_t value) {
  FrameHeader& answer = answers_[answers_end_++ % kAnswers];
  answer = FrameHeader{};
  answer.opcode = Opcode::kAtomicResponse;
  answer.seq = seq;
  answer.length = sizeof(std::uint64_t);
  answer.operand1 = value;
  kick_answers();
}

// Executed before: say so again, and repeat a result, but do nothing twice.
void Qp::duplicate(const FrameHeader& header) {
  if (header.opcode == Opcode::kRead) {
    begin_read(header, true);
    return;
  }
  if (is_atomic(header.opcode) && !answers_full())
    for (const Result& result : results_)
      if (result.valid && result.seq == header.seq) answer_atomic(result.seq, result.value);
  want_ack_now();
}

void Qp::executed_one(std::uint32_t bytes) {
  ++expected_;
  if (rnr_) receiver_ready();
  unacked_bytes_ += bytes;
  if (++unacked_messages_ >= kMessagesPerAck || unacked_bytes_ >= kBytesPerAck) {
    want_ack_now();
  } else {
    link_->owe_ack(*this);
  }
}

void Qp::receiver_ready() {
  rnr_ = tell_posted_ = false;
  starved_hook.unlink();
}

void Qp::complete_receive(const FrameHeader& header, Receive* receive, ibv_wc_status status) {
  g_engine->outstanding.add(-1);
  Cq& cq = recv_cq();
  ibv_wc* wc = begin_completion(cq, receive->wr_id);
  if (wc == nullptr) return;
  wc->status = status;
  wc->opcode = header.opcode == Opcode::kWriteImm ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  wc->byte_len = header.length;
  wc->src_qp = attr_.dest_qp_num;
  if (header.opcode == Opcode::kWriteImm || header.opcode == Opcode::kSendImm) {
    wc->wc_flags = IBV_WC_WITH_IMM;
    wc->imm_data = header.imm;
  } else if (header.opcode == Opcode::kSendInvalidate && status == IBV_WC_SUCCESS) {
    wc->wc_flags = IBV_WC_WITH_INV;
    wc->invalidated_rkey = header.rkey;
  }
  cq.append((header.flags & kFlagSolicited) != 0);
}

void Qp::nak(Syndrome syndrome, std::uint32_t seq) {
  nak_ = syndrome;
  nak_seq_ = seq;
  nak_sn_ = 0;
  nak_counts_ = true;
  kick_answers();
}

// Of an unreliable connection: nobody is told, and the next message is executed.
void Qp::drop_message() { executed_one(0); }

void Qp::fail_request(Syndrome syndrome, std::uint32_t seq, ibv_event_type event) {
  if (!reliable()) {
    drop_message();
    if (syndrome == Syndrome::kRemoteAccess) return;  // the sender's mistake
    raise(event);
    enter_error(IBV_WC_SUCCESS, true);
    return;
  }
  nak(syndrome, seq);
  raise(event);
  enter_error(IBV_WC_SUCCESS, true);
}

void Qp::kick_answers() {
  if (link_ != nullptr && link_->up()) link_->ready(*this);
}

bool Qp::next_answer(Frame* frame) {
  if (answers_begin_ != answers_end_) {
    FrameHeader answer = answers_[answers_begin_++ % kAnswers];
    frame->count = 0;
    if (answer.opcode == Opcode::kReadResponse && answer.length > 0) {
      // Looked up again: the region may have gone since.
      void* memory = translate_remote(*this, remote_pd(answer), answer.rkey, answer.raddr, answer.length,
                                      IBV_ACCESS_REMOTE_READ);
      bool read = memory != nullptr;
      if (!read) {
        const Reach found = find_remote_carefully(*this, remote_pd(answer), answer.rkey, answer.raddr, answer.length,
                                                  IBV_ACCESS_REMOTE_READ);
        memory = found.memory;
        read = memory != nullptr && !found.careful;
      }
      frame->parts[frame->count++] = {memory, answer.length};
      if (!read && (memory == nullptr || !frame->copy_carefully(answer.length))) {
        answers_begin_ = answers_end_;
        fail_request(Syndrome::kRemoteAccess, answer.seq, IBV_EVENT_QP_ACCESS_ERR);
        return next_answer(frame);
      }
    }
    fill_header(frame->header, answer.opcode, answer.seq);
    frame->header->length = answer.length;
    frame->bytes = answer.opcode == Opcode::kReadResponse ? answer.length : 0;
    frame->header->operand1 = answer.opcode == Opcode::kAtomicResponse ? answer.operand1 : 0;
    return true;
  }
  if (nak_ == Syndrome::kNone) return false;
  fill_header(frame->header, Opcode::kNak, nak_seq_);
  frame->header->syndrome = nak_;
  if (!nak_counts_ || !g_engine->pause.counts()) frame->header->flags = kFlagAckValid | kFlagPaused;
  frame->header->imm = nak_ == Syndrome::kReceiverNotReady ? attr_.min_rnr_timer : 0;
  nak_ = Syndrome::kNone;
  return true;
}

}  // namespace shadowib::ib2tcp
