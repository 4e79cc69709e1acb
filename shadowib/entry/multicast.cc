// Multicast groups: attach and detach.
#include <errno.h>

#include <algorithm>

#include "hooks/agent/agent.h"
#include "hooks/threads/stop.h"
#include "shadowib/abi/handlers.h"
#include "shadowib/entry/errors.h"
#include "shadowib/objects/registry.h"

using namespace shadowib;

extern "C" {

int shadowib_ibv_attach_mcast(ibv_qp* program, const ibv_gid* gid, std::uint16_t lid) {
  if (ShadowContext::is_foreign(program->context)) return EPERM;
  Inside inside;
  if (g_backend.attach_mcast == nullptr) return EOPNOTSUPP;
  if (const Status status = note_wired_by_multicast(); !status.ok()) return errno_from(status, "ibv_attach_mcast");
  ShadowQp& qp = *ShadowQp::of(program);
  SpinGuard guard(registry().lock);
  if (int rc = g_backend.attach_mcast(qp.real, gid, lid); rc != 0) return rc;
  const auto same = [&](const MulticastAttachment& a) { return a.is(*gid, lid); };
  if (std::none_of(qp.groups.begin(), qp.groups.end(), same)) qp.groups.push_back({*gid, lid});
  return 0;
}

int shadowib_ibv_detach_mcast(ibv_qp* program, const ibv_gid* gid, std::uint16_t lid) {
  if (ShadowContext::is_foreign(program->context)) return EPERM;
  Inside inside;
  if (g_backend.detach_mcast == nullptr) return EOPNOTSUPP;
  ShadowQp& qp = *ShadowQp::of(program);
  SpinGuard guard(registry().lock);
  if (int rc = g_backend.detach_mcast(qp.real, gid, lid); rc != 0) return rc;
  std::erase_if(qp.groups, [&](const MulticastAttachment& a) { return a.is(*gid, lid); });
  return 0;
}

}  // extern "C"
