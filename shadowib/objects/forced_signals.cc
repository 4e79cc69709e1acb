#include "shadowib/objects/forced_signals.h"

#include "shadowib/base/guard.h"
#include "shadowib/base/log.h"
#include "shadowib/objects/backend.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

std::uint32_t entries_for(ShadowQp& qp) { return static_cast<std::uint32_t>(qp.send.slots()) + qp.sparing.room; }

bool wanted(const ShadowQp& qp) {
  return g_backend.needs_signals && qp.init.send_cq != nullptr && guarded(Guard::kForceSignals);
}

void force(ShadowQp& qp, ShadowCq& cq) {
  cq.reserved += entries_for(qp);
  qp.forces_signals = true;
  if (qp.init.sq_sig_all == 0) qp.forcing = ShadowQp::Forcing::kBegins;
}

void warn_of_no_room(ShadowQp& qp) {
  log_line(
      LogLevel::kWarn,
      "the device has no completion queue of %u entries more: a checkpoint is refused while unsignaled requests of "
      "queue pair 0x%x are not known to have run",
      entries_for(qp), qp.qp_num.value);
}

bool enlarge(ShadowCq& cq, std::uint32_t by) {
  const std::uint64_t needed = std::uint64_t{cq.reserved} + by + static_cast<std::uint32_t>(cq.cq.cqe);
  if (static_cast<std::uint64_t>(cq.real->cqe) >= needed) return true;
  return needed < INT32_MAX && g_backend.resize_cq != nullptr &&
         g_backend.resize_cq(cq.real, static_cast<int>(needed)) == 0;
}

}  // namespace

void begin_forcing_signals(ShadowQp& qp) {
  if (!wanted(qp)) return;
  ShadowCq& cq = *ShadowCq::of(qp.init.send_cq);
  if (enlarge(cq, entries_for(qp))) return force(qp, cq);
  warn_of_no_room(qp);
}

void end_forcing_signals(ShadowQp& qp) {
  if (qp.forces_signals) ShadowCq::of(qp.init.send_cq)->reserved -= entries_for(qp);
  qp.forces_signals = false;
  qp.forcing = ShadowQp::Forcing::kNone;
  qp.sparing.stop();
}

void plan_forced_signals() {
  Registry& r = registry();
  for (ShadowCq& cq : r.cqs) cq.reserved = 0;
  for (ShadowQp& qp : r.qps) {
    qp.forces_signals = false;
    qp.forcing = ShadowQp::Forcing::kNone;
    qp.sparing.forget();
    if (wanted(qp)) force(qp, *ShadowCq::of(qp.init.send_cq));
  }
}

void give_up_forcing(ShadowCq& cq) {
  for (ShadowQp& qp : registry().qps) {
    if (!qp.forces_signals || ShadowCq::of(qp.init.send_cq) != &cq) continue;
    warn_of_no_room(qp);
    end_forcing_signals(qp);
  }
}

}  // namespace shadowib
