// Protection domains and memory regions.
#include <errno.h>

#include "hooks/agent/agent.h"
#include "hooks/threads/stop.h"
#include "shadowib/abi/handlers.h"
#include "shadowib/cr/announce.h"
#include "shadowib/cr/fences.h"
#include "shadowib/entry/errors.h"
#include "shadowib/objects/registry.h"

using namespace shadowib;

namespace {

void note_place(ShadowContext& context, const ShadowMr& mr) {
  const std::uint64_t first = (mr.access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : mr.iova;
  if (first != reinterpret_cast<std::uint64_t>(mr.mr.addr)) context.displaced.insert({mr.mr.lkey}, first, mr.mr.addr);
}

}  // namespace

extern "C" {

ibv_pd* shadowib_ibv_alloc_pd(ibv_context* context) {
  if (ShadowContext::is_foreign(context)) return null_with(EPERM);
  Inside inside;
  ibv_pd* real = g_backend.alloc_pd(ShadowContext::of(context)->real);
  if (real == nullptr) return null_of_backend("ibv_alloc_pd", errno);
  auto* pd = new ShadowPd{};
  pd->real = real;
  pd->pd = {context, real->handle};
  Registry& r = registry();
  SpinGuard guard(r.lock);
  pd->id = r.next_pd_id++;
  r.pds.push_back(*pd);
  return &pd->pd;
}

int shadowib_ibv_dealloc_pd(ibv_pd* program) {
  if (ShadowContext::is_foreign(program->context)) return EPERM;
  Inside inside;
  ShadowPd* pd = ShadowPd::of(program);
  Registry& r = registry();
  SpinGuard guard(r.lock);
  if (pd->users != 0) r.sweep_address_handles();
  if (pd->users != 0) return EBUSY;
  drop_fence(*pd);
  if (int rc = g_backend.dealloc_pd(pd->real); rc != 0) return rc;
  r.pds.erase(r.pds.iterator_to(*pd));
  delete pd;
  return 0;
}

ibv_mr* shadowib_ibv_reg_mr_iova2(ibv_pd* program_pd, void* address, std::size_t length, std::uint64_t iova,
                                  unsigned access) {
  if (ShadowContext::is_foreign(program_pd->context)) return null_with(EPERM);
  Inside inside;
  ShadowPd* pd = ShadowPd::of(program_pd);
  if (access & IBV_ACCESS_ON_DEMAND) return null_with(EOPNOTSUPP);
  // Optional access flags (relaxed ordering) may be ignored by definition, and are.
  int kept = static_cast<int>(access & ~static_cast<unsigned>(IBV_ACCESS_OPTIONAL_RANGE));
  ibv_mr* real = g_backend.reg_mr(pd->real, address, length, iova, kept);
  if (real == nullptr) return null_of_backend("ibv_reg_mr", errno);
  auto* mr = new ShadowMr{};
  mr->real = real;
  mr->iova = iova;
  mr->access = kept;
  {
    Registry& r = registry();
    SpinGuard guard(r.lock);
    VirtualKey lkey = r.choose_key({real->lkey}, false), rkey = r.choose_key({real->rkey}, true);
    mr->mr = {.context = program_pd->context,
              .pd = program_pd,
              .addr = address,
              .length = length,
              .handle = real->handle,
              .lkey = lkey.value,
              .rkey = rkey.value};
    ShadowContext* context = ShadowContext::of(program_pd->context);
    if (lkey.value != real->lkey) context->keys.insert(lkey, {real->lkey});
    if (rkey.value != real->rkey) context->rkeys.insert(rkey, {real->rkey});
    note_place(*context, *mr);
    ++pd->users;
    r.mrs.push_back(*mr);
  }
  announce_late_mr(*mr, pd->id);
  return &mr->mr;
}

ibv_mr* shadowib_ibv_reg_mr_iova(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova, int access) {
  return shadowib_ibv_reg_mr_iova2(pd, address, length, iova, static_cast<unsigned>(access));
}

ibv_mr* shadowib_ibv_reg_mr(ibv_pd* pd, void* address, std::size_t length, int access) {
  return shadowib_ibv_reg_mr_iova2(pd, address, length, reinterpret_cast<std::uint64_t>(address),
                                   static_cast<unsigned>(access));
}

// As rdma-core: what is wrong in the call itself changes nothing (ERR_INPUT); what the backend refuses leaves a
// region that can only be deregistered (ERR_CMD).
int shadowib_ibv_rereg_mr(ibv_mr* program, int flags, ibv_pd* program_pd, void* address, std::size_t length,
                          int access) {
  if (ShadowContext::is_foreign(program->context)) return errno = EPERM, IBV_REREG_MR_ERR_INPUT;
  Inside inside;
  if (ShadowContext::of(program->context)->windows.uses(*ShadowMr::of(program)))
    return errno = EBUSY, IBV_REREG_MR_ERR_INPUT;
  const bool moves = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0, joins = (flags & IBV_REREG_MR_CHANGE_PD) != 0;
  if ((flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) != 0 || flags == 0 || (moves && (length == 0 || address == nullptr)) ||
      (joins && (program_pd == nullptr || program_pd->context != program->context)))
    return errno = EINVAL, IBV_REREG_MR_ERR_INPUT;
  if ((flags & IBV_REREG_MR_CHANGE_ACCESS) != 0 && (access & IBV_ACCESS_ON_DEMAND) != 0)
    return errno = EOPNOTSUPP, IBV_REREG_MR_ERR_INPUT;
  if (g_backend.rereg_mr == nullptr) return errno = EOPNOTSUPP, IBV_REREG_MR_ERR_INPUT;
  access &= ~IBV_ACCESS_OPTIONAL_RANGE;
  ShadowMr* mr = ShadowMr::of(program);
  ShadowContext* context = ShadowContext::of(program->context);
  Registry& r = registry();
  const std::uint32_t told_pd = ShadowPd::of(program->pd)->id, told_rkey = program->rkey;
  {
    SpinGuard guard(r.lock);
    const std::uint32_t lkey = mr->real->lkey, rkey = mr->real->rkey;
    ibv_pd* real_pd = joins ? ShadowPd::of(program_pd)->real : nullptr;
    if (int rc = g_backend.rereg_mr(mr->real, flags, real_pd, address, length, access); rc != 0)
      return errno = rc, IBV_REREG_MR_ERR_CMD;
    if (joins) {
      --ShadowPd::of(program->pd)->users;
      program->pd = program_pd;
      ++ShadowPd::of(program_pd)->users;
    }
    if (moves) {
      program->addr = address;
      program->length = length;
      mr->iova = reinterpret_cast<std::uint64_t>(address);
    }
    if ((flags & IBV_REREG_MR_CHANGE_ACCESS) != 0) mr->access = access;
    context->displaced.erase({program->lkey});
    if (mr->real->lkey != lkey) {
      program->lkey = r.choose_key({mr->real->lkey}, false).value;
      if (program->lkey != mr->real->lkey) context->keys.insert({program->lkey}, {mr->real->lkey});
    }
    if (mr->real->rkey != rkey) {
      program->rkey = r.choose_key({mr->real->rkey}, true).value;
      if (program->rkey != mr->real->rkey) context->rkeys.insert({program->rkey}, {mr->real->rkey});
    }
    note_place(*context, *mr);
  }
  if (joins || program->rkey != told_rkey) withdraw_late_mr(told_pd, told_rkey);
  announce_late_mr(*mr, ShadowPd::of(program->pd)->id);
  return 0;
}

int shadowib_ibv_dereg_mr(ibv_mr* program) {
  if (ShadowContext::is_foreign(program->context)) return EPERM;
  Inside inside;
  ShadowMr* mr = ShadowMr::of(program);
  if (ShadowContext::of(program->context)->windows.uses(*mr)) return EBUSY;
  if (int rc = g_backend.dereg_mr(mr->real); rc != 0) return rc;
  withdraw_late_mr(ShadowPd::of(program->pd)->id, program->rkey);
  Registry& r = registry();
  SpinGuard guard(r.lock);
  ShadowContext::of(program->context)->displaced.erase({program->lkey});
  --ShadowPd::of(mr->mr.pd)->users;
  r.mrs.erase(r.mrs.iterator_to(*mr));
  delete mr;
  return 0;
}

}  // extern "C"
