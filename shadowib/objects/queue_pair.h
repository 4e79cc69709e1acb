// Shadow queue pairs.
#pragma once

#include <infiniband/verbs.h>

#include <cstring>
#include <memory>
#include <vector>

#include "shadowib/objects/completion.h"
#include "shadowib/objects/fence.h"
#include "shadowib/objects/memory.h"
#include "shadowib/objects/modify_log.h"
#include "shadowib/objects/shared_receive_queue.h"
#include "shadowib/objects/work_queue.h"

namespace shadowib {

class BorderLog;
class SendBuilder;

// Rkeys of one peer protection domain, found once when a queue pair connects. Shared by queue pairs with that peer.
struct RemoteKeys {
  std::uint32_t member;
  std::uint32_t pd;
  KeyTable keys;     // and what windows' keys were found to be
  KeyTable windows;  // blocks (memory_window.h)
  SpinLock lock;     // look-ups that miss ask the exchange and insert
};

// The other end as the program named it, and as it is now.
struct RemoteEnd {
  VirtualQpNum qp_num;
  VirtualLid lid;
  ibv_gid gid{};
  bool has_gid = false;
  RealQpNum real_qp_num;
  std::uint32_t real_responders = 0;  // READs and atomics that it answers at once; 0: not known
  bool is_guest = false;              // in no checkpoint, and gone after a restart
};

// A multicast group that a queue pair takes datagrams of, as the program named it.
struct MulticastAttachment {
  ibv_gid gid;
  std::uint16_t lid;
  bool is(const ibv_gid& other, std::uint16_t other_lid) const {
    return lid == other_lid && std::memcmp(&gid, &other, sizeof(gid)) == 0;
  }
};

// A shared receive queue at the other end of an XRC connection, as it is now.
struct RemoteSrq {
  VirtualSrqNum number;
  RealSrqNum real;
  std::shared_ptr<RemoteKeys> keys;  // of the protection domain it is in
};

struct ShadowQp {
  ibv_qp_ex qp{};  // qp_base first: the program's ibv_qp
  // Functions that newer headers have behind it, and a program compiled with them may look for: not there.
  void (*newer[7])() = {};
  ListHook hook;
  // Posts read one cache line of these, and each kind of them writes another.
  alignas(64) ibv_qp* real = nullptr;
  int (*real_post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
  int (*real_post_recv)(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) = nullptr;
  ShadowContext* context = nullptr;
  VirtualQpNum qp_num;
  // Requests cannot go down as they are. The context's flag, where the hot path has it at hand. Always true for
  // datagrams, which name address handles, and for XRC, whose requests name queues.
  std::atomic<bool> translate{false};
  std::atomic<bool> translate_receives{false};  // only their keys are to be turned: the context's for all types
  // The backend needs signals (BackendOps::needs_signals), and the send queue's completion queue has room for all.
  bool forces_signals = false;
  // An unsignaled request is signaled on its way down. kBegins: the completion queue does not know yet that it has
  // completions to swallow. Under send.lock.
  enum class Forcing : std::uint8_t { kNone, kBegins, kGoesOn } forcing = Forcing::kNone;
  Sparing sparing;  // which are not (objects/fence.h)

  std::shared_ptr<SendBuilder> builder;  // if it was created with the builders of extended verbs

  alignas(64) WorkQueue<SendSlot> send;
  std::uint64_t executed_base = 0;                // send sequence at which the backend's executed count was 0
  alignas(64) WorkQueue<RecvSlot> receive;        // stays empty if it takes from a shared one
  ShadowSrq* srq = nullptr;                       // whose receives it takes, if not its own
  std::atomic<std::uint32_t> shared_consumed{0};  // of them, with success since the connection began (wraps)

  ibv_qp_init_attr init{};  // as asked for, CQ pointers the program's; null: it has no such queue
  ibv_qp_cap real_cap{};
  ModifyLog modifies;
  std::vector<MulticastAttachment> groups;   // under the registry's lock
  std::atomic<bool> drain_event_due{false};  // asked for on the way into SQD and not yet taken from the backend
  std::atomic<bool> drains_again{false};  // in SQD by a restart's doing: the program has asked for no event of that
  RemoteEnd remote;
  std::shared_ptr<RemoteKeys> remote_keys;  // an XRC initiator's: those of the queue its last request named
  std::vector<RemoteSrq> remote_srqs;       // an initiator's: those it has named; under send.lock
  // An XRC target: its domain, and the other handles that the program has of it (ibv_open_qp). It lasts as long as
  // one of them does; `closed`: the program has destroyed the first, which is this.
  ShadowXrcd* xrcd = nullptr;
  std::vector<ShadowQp*> handles;
  bool closed = false;
  ShadowQp* target = nullptr;  // this is such a handle: of whom
  std::uint64_t frontier = 0;  // as settled: requests before it have run, those from it on have not
  bool doomed = false;         // settled as such: its peer is gone (H20), or a guest
  bool forgoes_sends =
      false;                 // settled as such: datagrams from the frontier on may have arrived, and are not repeated
  bool awaits_peer = false;  // settled as such: its peer is not ready to receive; until the program goes on
  // As the backend says while settling. It may differ from what the program sees: verbs tell of an error by
  // completions, and the state in ibv_qp is that of the last modify or query.
  ibv_qp_state settled_state = IBV_QPS_RESET;
  bool draining = false;                  // in SQD, with requests begun that have not run yet
  AcknowledgedEvents events;              // async ones that name it
  std::shared_ptr<BorderLog> border_log;  // its own; nullptr: it has sent nothing to another cluster

  // Set translate and translate_receives. Threads may be posting.
  void turn_sends() {
    SpinGuard guard(send.lock);
    translate = true;
    sparing.stop();
    send.close_short_way();
  }
  void turn_receives() {
    SpinGuard guard(receive.lock);
    translate_receives = true;
    receive.close_short_way();
  }
  bool is_datagram() const { return qp.qp_base.qp_type == IBV_QPT_UD; }
  bool is_initiator() const { return qp.qp_base.qp_type == IBV_QPT_XRC_SEND; }
  bool is_target() const { return qp.qp_base.qp_type == IBV_QPT_XRC_RECV; }
  bool is_reliable() const { return qp.qp_base.qp_type == IBV_QPT_RC || is_initiator() || is_target(); }
  bool takes_shared() const { return srq != nullptr || is_target(); }
  bool needs_turning() const { return is_datagram() || is_initiator(); }  // at generation 0 too
  std::uint32_t pd_id() const {
    return qp.qp_base.pd != nullptr && xrcd == nullptr ? ShadowPd::of(qp.qp_base.pd)->id : 0;
  }
  // Calls function(ShadowCq&) for its send queue's and its receive queue's, if it has them.
  template <typename Function>
  void each_cq(Function function) const {
    for (ibv_cq* cq : {init.send_cq, init.recv_cq})
      if (cq != nullptr) function(*ShadowCq::of(cq));
  }
  ShadowQp& itself() { return target != nullptr ? *target : *this; }
  ibv_qp_state state() const { return qp.qp_base.state; }
  static ShadowQp* of(ibv_qp* qp) { return reinterpret_cast<ShadowQp*>(qp); }
};

}  // namespace shadowib
