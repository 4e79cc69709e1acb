// Posting: what can be refused at once is refused here, the rest becomes a request in its queue.
#include <errno.h>

#include <cstring>

#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/memory_window.h"
#include "ib2tcp/queue_pair.h"

namespace shadowib::ib2tcp {
namespace {

Opcode frame_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_SEND:
      return Opcode::kSend;
    case IBV_WR_SEND_WITH_IMM:
      return Opcode::kSendImm;
    case IBV_WR_RDMA_WRITE:
      return Opcode::kWrite;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return Opcode::kWriteImm;
    case IBV_WR_RDMA_READ:
      return Opcode::kRead;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return Opcode::kCompareSwap;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return Opcode::kFetchAdd;
    case IBV_WR_SEND_WITH_INV:
      return Opcode::kSendInvalidate;
    case IBV_WR_BIND_MW:
      return Opcode::kBindWindow;
    case IBV_WR_LOCAL_INV:
      return Opcode::kLocalInvalidate;
    default:
      return Opcode::kHello;  // not one
  }
}

// A number that no queue has stands for what cannot be said: 0 is of requests that are not XRC's.
std::uint32_t wire_srqn(std::uint32_t number) { return number != 0 && number <= kNoSrqn ? number : kNoSrqn; }

}  // namespace

int Qp::check_send(const ibv_send_wr& wr) const {
  if (is_target()) return EINVAL;
  Opcode opcode = frame_opcode(wr.opcode);
  const bool plain_send = opcode == Opcode::kSend || opcode == Opcode::kSendImm;
  const bool needs_reliable = needs_response(opcode) || opcode == Opcode::kSendInvalidate;
  if (opcode != Opcode::kHello && !reliable() && (has_peer() ? needs_reliable : !plain_send)) return EINVAL;
  if (!has_peer() && (wr.wr.ud.ah == nullptr || wr.wr.ud.remote_qpn > 0xffffff)) return EINVAL;
  if (opcode == Opcode::kHello) return wr.opcode <= IBV_WR_DRIVER1 ? EOPNOTSUPP : EINVAL;
  if (opcode == Opcode::kBindWindow)
    if (int rc = check_bind(wr); rc != 0) return rc;
  if (is_local(opcode)) return sq_.full() ? ENOMEM : 0;
  if (wr.num_sge < 0 || static_cast<unsigned>(wr.num_sge) > cap_.max_send_sge) return EINVAL;
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
    if (needs_response(opcode)) return EINVAL;
    std::uint64_t bytes = 0;
    for (int i = 0; i < wr.num_sge; ++i) bytes += wr.sg_list[i].length;
    if (bytes > cap_.max_inline_data) return EINVAL;
  }
  return sq_.full() ? ENOMEM : 0;
}

void Qp::queue_send(const ibv_send_wr& wr) {
  Send& send = sq_.at(sq_.tail++);
  Opcode opcode = frame_opcode(wr.opcode);
  send.wr_id = wr.wr_id;
  send.opcode = opcode;
  send.imm = wr.imm_data;
  send.mark(wr.send_flags, signal_all_);
  send.srqn = is_initiator() ? wire_srqn(wr.qp_type.xrc.remote_srqn) : 0;
  send.status = IBV_WC_SUCCESS;
  if (is_local(opcode)) {
    queue_local(send, wr);
    return;
  }
  if (!has_peer()) {
    address_datagram(send, wr);
  } else if (is_atomic(opcode)) {
    send.raddr = wr.wr.atomic.remote_addr;
    send.rkey = wr.wr.atomic.rkey;
    send.operand1 = wr.wr.atomic.compare_add;
    send.operand2 = wr.wr.atomic.swap;
  } else {
    send.raddr = wr.wr.rdma.remote_addr;
    send.rkey = opcode == Opcode::kSendInvalidate ? wr.invalidate_rkey : wr.wr.rdma.rkey;
    send.operand1 = send.operand2 = 0;
  }
  std::uint64_t bytes = 0;
  send.sges = static_cast<std::uint16_t>(wr.num_sge);
  for (int i = 0; i < wr.num_sge; ++i) {
    if (send.inlined) {
      std::memcpy(send.data() + bytes, reinterpret_cast<const void*>(wr.sg_list[i].addr), wr.sg_list[i].length);
    } else {
      send.sge()[i] = wr.sg_list[i];
    }
    bytes += wr.sg_list[i].length;
  }
  if (bytes > (has_peer() ? kMaxMessageBytes : kMaxDatagramBytes)) send.status = IBV_WC_LOC_LEN_ERR;
  send.length = is_atomic(opcode) ? sizeof(std::uint64_t) : static_cast<std::uint32_t>(bytes);
}

// The common request, a SEND or WRITE of one piece on a reliable connection. False: another one, or a wrong one.
bool Qp::queue_plain(const ibv_send_wr& wr) {
  static_assert(IBV_WR_RDMA_WRITE == 0 && IBV_WR_RDMA_WRITE_WITH_IMM == 1 && IBV_WR_SEND == 2 &&
                IBV_WR_SEND_WITH_IMM == 3);
  constexpr Opcode kOpcodes[4] = {Opcode::kWrite, Opcode::kWriteImm, Opcode::kSend, Opcode::kSendImm};
  if (wr.num_sge != 1 || wr.opcode > IBV_WR_SEND_WITH_IMM || type() != IBV_QPT_RC || sq_.full()) return false;
  const ibv_sge& piece = wr.sg_list[0];
  const bool is_inline = (wr.send_flags & IBV_SEND_INLINE) != 0;
  if (piece.length > (is_inline ? cap_.max_inline_data : kMaxMessageBytes)) return false;
  Send& send = sq_.at(sq_.tail++);
  send.wr_id = wr.wr_id;
  send.raddr = wr.wr.rdma.remote_addr;
  send.rkey = wr.wr.rdma.rkey;
  send.operand1 = send.operand2 = 0;
  send.imm = wr.imm_data;
  send.length = piece.length;
  send.srqn = 0;
  send.sges = 1;
  send.opcode = kOpcodes[wr.opcode];
  send.mark(wr.send_flags, signal_all_);
  send.status = IBV_WC_SUCCESS;
  if (is_inline)
    std::memcpy(send.data(), reinterpret_cast<const void*>(piece.addr), piece.length);
  else
    send.sge()[0] = piece;
  return true;
}

void Qp::queue_local(Send& send, const ibv_send_wr& wr) {
  send.inlined = false;
  send.sges = 0;
  send.length = 0;
  if (send.opcode == Opcode::kBindWindow)
    record_bind(send, wr);
  else
    send.rkey = wr.invalidate_rkey;
  ++local_left_;
}

int Qp::post_send(ibv_send_wr* wr, ibv_send_wr** bad) {
  int rc = 0;
  std::int64_t posted = 0;
  bool right_state = state() == IBV_QPS_RTS || state() == IBV_QPS_SQD || state() == IBV_QPS_ERR;
  for (; wr != nullptr; wr = wr->next) {
    if (!right_state || !queue_plain(*wr)) {
      rc = right_state ? check_send(*wr) : EINVAL;
      if (rc != 0) {
        *bad = wr;
        break;
      }
      queue_send(*wr);
    }
    ++posted;
    if (state() == IBV_QPS_ERR) {
      g_engine->outstanding.add(1);
      --posted;
      flush_posted();
    }
  }
  if (posted == 0) return rc;
  g_engine->outstanding.add(posted);
  kick();
  if (link_ != nullptr) link_->pump();
  return rc;
}

int Qp::post_recv(ibv_recv_wr* wr, ibv_recv_wr** bad) {
  int rc = 0;
  for (; wr != nullptr; wr = wr->next) {
    rc = state() == IBV_QPS_RESET || takes_shared() || is_initiator() ? EINVAL : rq_->post(*wr);
    if (rc != 0) {
      *bad = wr;
      break;
    }
    g_engine->outstanding.add(1);
    if (state() == IBV_QPS_ERR) flush_posted();
  }
  if (rq_->available()) tell_receive_posted();
  return rc;
}

void Qp::tell_receive_posted() {
  if (!rnr_ || told_posted_) return;
  told_posted_ = tell_posted_ = true;
  kick_answers();
  if (link_ != nullptr) link_->pump();
}

}  // namespace shadowib::ib2tcp
