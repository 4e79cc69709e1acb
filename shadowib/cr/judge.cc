#include "shadowib/cr/judge.h"

#include "shadowib/base/guard.h"
#include "shadowib/objects/work_queue.h"

namespace shadowib {
namespace {

// A queue pair in a state in which it has a peer.
bool is_connected(const SendFacts& send) {
  return send.state == IBV_QPS_RTR || send.state == IBV_QPS_RTS || send.state == IBV_QPS_SQD ||
         send.state == IBV_QPS_SQE;
}

bool is_held(const SendFacts& send) { return send.state == IBV_QPS_SQD && !send.draining; }

// What may have run is waited for until it is known, whatever kind it is.
Guard waiting_for(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
      return Guard::kAwaitWrites;
    case IBV_WR_RDMA_READ:
      return Guard::kAwaitReads;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return Guard::kAwaitAtomics;
    default:
      return Guard::kCountConsumed;
  }
}

}  // namespace

std::optional<Verdict> judge_alone(const SendFacts& send) {
  // A guest goes on running, and is not waited for: whatever it has done, a restart ends the connection.
  if (send.to_guest && is_connected(send) && !send.owes_completion)
    return send.datagrams ? Verdict::kHeld : Verdict::kDoomed;
  if (send.all_executed && !send.owes_completion) return Verdict::kEmpty;
  // Completions or flushes are on their way.
  if (send.owes_completion || send.state == IBV_QPS_ERR) return Verdict::kMoving;
  if (send.reliable) return std::nullopt;
  // Nobody holds an unreliable message back: it arrives or is lost.
  return is_held(send) || !guarded(Guard::kAwaitDatagrams) ? Verdict::kHeld : Verdict::kMoving;
}

Judgement judge_by_peer(const SendFacts& send, const PeerFacts& peer) {
  const Judgement doomed =
      send.unproven ? Judgement{.verdict = Verdict::kMoving, .may_be_doomed = true} : Judgement{Verdict::kDoomed};
  if (peer.may_come) return {Verdict::kMoving};
  if (peer.row == nullptr || peer.row->state == IBV_QPS_ERR || peer.row->state == IBV_QPS_RESET) return doomed;
  if (peer.row->state == IBV_QPS_INIT && guarded(Guard::kPeerInInit))
    return send.unproven ? Judgement{} : Judgement{Verdict::kHeld, true};
  if (!peer.connected) return doomed;
  if (is_held(send) && !send.unproven) return {Verdict::kHeld};
  const bool all_consumed = peer.row->consumed == send.messages_before || !guarded(Guard::kCountConsumed);
  if (consumes_receive(send.oldest) && all_consumed && peer.receives_left == 0u)
    return {guarded(Guard::kBlockedSettles) ? Verdict::kBlocked : Verdict::kMoving};
  return {guarded(waiting_for(send.oldest)) ? Verdict::kMoving : Verdict::kHeld};
}

}  // namespace shadowib
