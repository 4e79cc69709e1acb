// Shared receive queues: one queue of receives for many queue pairs.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "ib2tcp/engine.h"
#include "ib2tcp/queue_pair.h"
#include "ib2tcp/receive_queue.h"

namespace shadowib::ib2tcp {

struct Xrcd;

// Under the engine's lock.
struct Srq {
  ibv_srq verbs{};  // first
  ReceiveQueue queue;
  // XRC: its domain, where its receives complete, and the number that requests name it by.
  Xrcd* xrcd = nullptr;
  Cq* cq = nullptr;
  std::uint32_t number = 0;
  std::uint32_t limit = 0;          // fewer waiting than this raise IBV_EVENT_SRQ_LIMIT_REACHED, once; 0: not armed
  std::uint32_t users = 0;          // queue pairs
  std::uint32_t unread_events = 0;  // a bit for each type; under Context::events_lock
  HookedList<Qp, &Qp::starved_hook> starved;  // have told their peers "receiver not ready", the longest ago first

  // A receive was taken, or the limit set.
  void check_limit();
  int post(ibv_recv_wr* wr, ibv_recv_wr** bad);
};

// Slots of BackendOps; see the verbs manual and backend.h.
ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* attr);
ibv_srq* create_xrc_srq(ibv_pd* pd, ibv_xrcd* xrcd, ibv_cq* cq, ibv_srq_init_attr* attr);
int get_srq_num(ibv_srq* srq, std::uint32_t* number);
int modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask);
int query_srq(ibv_srq* srq, ibv_srq_attr* attr);
int destroy_srq(ibv_srq* srq);
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad);

}  // namespace shadowib::ib2tcp
