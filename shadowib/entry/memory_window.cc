#include "shadowib/entry/memory_window.h"

#include <errno.h>

#include "hooks/threads/stop.h"
#include "shadowib/cr/announce.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/entry/errors.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

// From now on requests are looked at one by one, for those that change a window, and completions for those that tell
// of one that a peer has invalidated. Programs without windows pay nothing for it. Caller holds the registry's lock.
void look_at_requests(ShadowContext& context) {
  if (context.windows.used()) return;
  context.windows.note_used();
  for (ShadowQp& qp : registry().qps)
    if (qp.context == &context) qp.turn_sends();
  for (ShadowCq& cq : registry().cqs)
    if (cq.cq.context == &context.program()) cq.look_at_each();
}

}  // namespace

ibv_mw* alloc_mw(ibv_pd* program_pd, ibv_mw_type type) {
  if (ShadowContext::is_foreign(program_pd->context)) return null_with(EPERM);
  Inside inside;
  if (g_backend.alloc_mw == nullptr) return null_with(EOPNOTSUPP);
  ShadowPd* pd = ShadowPd::of(program_pd);
  ShadowContext& context = *ShadowContext::of(program_pd->context);
  ibv_mw* real = g_backend.alloc_mw(pd->real, type);
  if (real == nullptr) return null_of_backend("ibv_alloc_mw", errno);
  auto* mw = new ShadowMw{};
  mw->real = real;
  mw->changes.reserve(4);
  {
    Registry& r = registry();
    SpinGuard guard(r.lock);
    look_at_requests(context);
    const VirtualKey key = r.choose_window_key({real->rkey});
    mw->mw = {program_pd->context, program_pd, key.value, real->handle, type};
    mw->key = key;
    context.windows.insert(*mw);
    ++pd->users;
    r.mws.push_back(*mw);
  }
  announce_late_mw(*mw, pd->id);
  return &mw->mw;
}

int dealloc_mw(ibv_mw* program) {
  if (ShadowContext::is_foreign(program->context)) return EPERM;
  Inside inside;
  ShadowMw* mw = ShadowMw::of(program);
  WindowTable& windows = ShadowContext::of(program->context)->windows;
  const std::uint32_t pd = ShadowPd::of(program->pd)->id, told_rkey = program->rkey;
  {
    Registry& r = registry();
    SpinGuard guard(r.lock);
    if (windows.is_changing(*mw)) return EBUSY;
    const RealKey key{mw->real->rkey};
    if (int rc = g_backend.dealloc_mw(mw->real); rc != 0) return rc;
    windows.erase(*mw, key);
    --ShadowPd::of(program->pd)->users;
    r.mws.erase(r.mws.iterator_to(*mw));
    delete mw;
  }
  withdraw_late_mw(pd, told_rkey);
  return 0;
}

int bind_mw(ibv_qp* qp, ibv_mw* program, ibv_mw_bind* bind) {
  if (ShadowContext::is_foreign(program->context)) return EPERM;
  Inside inside;
  ibv_send_wr wr{}, *bad;
  wr.wr_id = bind->wr_id;
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = bind->send_flags;
  wr.bind_mw = {program, ibv_inc_rkey(program->rkey), bind->bind_info};
  if (int rc = post_send(qp, &wr, &bad); rc != 0) return rc;
  program->rkey = wr.bind_mw.rkey;
  return 0;
}

}  // namespace shadowib
