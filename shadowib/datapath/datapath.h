// Posts and polls of the program, and what a checkpoint does to the same queues.
//
//   ibv_post_send ─▶ post_send ─┬─ the slot's copy goes down as it is; over a device signaled   (generation 0)
//                               ├─ post_send_one, post_send_list: inline data, lists
//                               └─ post_send_translated: keys turned    (after a restart; datagrams and XRC always)
//   after a restart it is post_send_turning: the slot's copy goes down with keys turned in it, and is turned back
//   ibv_poll_cq   ─▶ poll_cq   ─┬─ backend's poll; plain slots: wr_id turned back, no lock
//                               ├─ poll_rest: forced completions swallowed, numbers turned
//                               ├─ poll_both: what a drain had taken comes first
//                               └─ poll_beside_drain: a drain came while the poll was under way
#pragma once

#include <infiniband/verbs.h>

#include "shadowib/objects/address_handle.h"
#include "shadowib/objects/queue_pair.h"

namespace shadowib {

// As the verbs manual pages of ibv_post_send, ibv_post_recv, ibv_poll_cq, ibv_req_notify_cq. Thread-safe.
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr);
// Posts a list of `count` requests if there is room for all of them, or none. Returns 0, ENOMEM, or the errno of the
// first request that is wrong in itself; the requests before it are posted.
int post_send_whole(ShadowQp& qp, ibv_send_wr* wr, std::size_t count);
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr);
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr);
int poll_cq(ibv_cq* cq, int count, ibv_wc* wc);
// For a program that began on a backend which needs no signals.
int post_send_unforced(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr);
int post_recv_unforced(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr);
int poll_cq_unforced(ibv_cq* cq, int count, ibv_wc* wc);
// For a context whose ids are to be turned (ShadowContext::translate): no short way is looked for in vain. The others
// are right there, too.
int post_send_turning(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr);
int post_recv_turning(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr);
int poll_cq_turning(ibv_cq* cq, int count, ibv_wc* wc);
// Has a context's programs call these three. Nobody posts or polls.
inline void call_turning(ShadowContext& context) {
  ibv_context_ops& ops = context.program().ops;
  ops.post_send = post_send_turning;
  ops.post_recv = post_recv_turning;
  ops.poll_cq = poll_cq_turning;
}
int req_notify_cq(ibv_cq* cq, int solicited_only);

// Turns completions of the backend into the program's and notes them in the log; returns how many are its own, which
// stand first then, in order. Their wr_ids must be slots of ours.
int accept_completions(ShadowCq& cq, ibv_wc* wc, ibv_wc* end);

// Takes every completion out of the backend's queue into the refill queue. Any thread.
void drain_completions(ShadowCq& cq);
// Removes what a destroyed or reset queue pair left behind, after the backend has destroyed or reset it. Completions
// of other queue pairs stay where they are and keep their order, if the backend purges its own queues.
void purge_completions(ShadowCq& cq, VirtualQpNum qp_num);
// Likewise for an XRC queue that the backend has destroyed; everything in the backend's queue is taken out for it.
void purge_completions(ShadowCq& cq, const ShadowSrq& srq);

// Posts again requests [from, head) that are in the log, translated; a rebuild's last step. 0 or an errno.
int repost_sends(ShadowQp& qp, std::uint64_t from);
int repost_receives(ShadowQp& qp, std::uint64_t from);
// Posts again all that are in the log, in the order they were posted. 0 or an errno.
int repost_shared_receives(ShadowSrq& srq);

// Copies a list, its local keys turned into the real ones of this generation.
inline void turn_local_keys(const ShadowContext& context, const ibv_sge* from, int count, ibv_sge* to) {
  for (int i = 0; i < count; ++i) {
    RealKey real;
    context.keys.find({from[i].lkey}, &real);
    to[i] = {from[i].addr, from[i].length, real.value};
  }
}

// Retires send requests that the backend counts as executed and that owe the program no completion. A flush proves
// nothing here: requests before it may be flushed too, their completions in another thread's hands. Returns the
// executed frontier.
std::uint64_t retire_executed(ShadowQp& qp);
// The send sequence before which everything is known to have executed.
std::uint64_t executed_frontier(ShadowQp& qp);

// Real remote key for a virtual one on a connected queue pair; asks the exchange on the first miss. In shadowib/cr.
// 0, or EIO: the exchange does not answer, and the request is refused.
[[nodiscard]] int resolve_remote_key(ShadowQp& qp, VirtualKey key, RealKey* real);
// Likewise for a queue pair at the end of an address handle. It returns a value, since each datagram asks. `ah` is
// nullptr: the exchange does not answer, and the request is refused with EIO.
[[nodiscard]] RealDestination resolve_destination(ShadowAh& ah, VirtualQpNum number);
// Likewise for a queue that an XRC initiator's request names. From then on its remote keys are those beside that
// queue.
[[nodiscard]] int resolve_remote_srq(ShadowQp& qp, VirtualSrqNum number, RealSrqNum* real);
// A datagram's sender and addresses, in the completion and in the header in memory, as the program knows them.
// `list`: of the receive, `count` elements.
void turn_source(ShadowQp& qp, const ibv_sge* list, int count, ibv_wc* wc);

}  // namespace shadowib
