// Publishes the facts that other members need of this one (published_ids.h).
#pragma once

#include "shadowib/base/status.h"
#include "shadowib/objects/context.h"
#include "shadowib/objects/memory.h"
#include "shadowib/objects/memory_window.h"
#include "shadowib/objects/queue_pair.h"
#include "shadowib/objects/shared_receive_queue.h"

namespace shadowib {

// Announces the ports of a context opened now; at generations above 0 also chooses and claims their virtual LIDs.
Status announce_ports(ShadowContext& context);
// Claims the virtual LIDs of ports, unless others have.
Status claim_lids(const std::vector<ShadowPort>& ports);
// After a restart: publishes this member's directory, and that it is to be found at the addresses of its contexts.
Status publish_directory();

// The number by which peers know a queue pair, or an XRC queue, that is made now: the real one, unless that is
// reserved or would count as late (objects/registry.h). Takes the registry's lock. Errors: of the exchange.
Status choose_qp_num(RealQpNum real, VirtualQpNum* number);
Status choose_srq_num(RealSrqNum real, VirtualSrqNum* number);

// At generations above 0: announces a queue pair, queue or region made after the restart.
void announce_late_qp(const ShadowQp& qp);
void announce_late_srq(const ShadowSrq& srq);
// A datagram queue pair, so that receivers can tell who it is; others need none.
Status announce_source(const ShadowQp& qp);
// Regions and windows if their key is not the real one, or one that peers would take for none (is_late_key).
void announce_late_mr(const ShadowMr& mr, std::uint32_t pd);
void announce_late_mw(const ShadowMw& mw, std::uint32_t pd);

// Takes it back, since the object is gone. Call it for queue pairs and queues before their number can be another's:
// the caller holds the registry's lock.
void withdraw_late_qp(const ShadowQp& qp);
void withdraw_late_srq(const ShadowSrq& srq);
void withdraw_late_mr(std::uint32_t pd, std::uint32_t rkey);
void withdraw_late_mw(std::uint32_t pd, std::uint32_t rkey);

}  // namespace shadowib
