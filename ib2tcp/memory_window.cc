#include "ib2tcp/memory_window.h"

#include <errno.h>

#include "ib2tcp/engine.h"
#include "ib2tcp/host.h"
#include "ib2tcp/memory.h"
#include "ib2tcp/queue_pair.h"
#include "ib2tcp/send_queue.h"

namespace shadowib::ib2tcp {
namespace {

constexpr unsigned kWindowAccess =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED;
constexpr int kRemoteWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

// The part of a key that is the window's for life.
std::uint32_t block_of(std::uint32_t key) { return key >> 8; }

Mw* find_window(std::uint32_t key) {
  if ((key & kWindowKey) == 0) return nullptr;
  return g_engine->mws.find(block_of(key & ~kWindowKey));
}

// The window that now goes by this key.
Mw* find_bound(std::uint32_t key) {
  Mw* mw = find_window(key);
  return mw != nullptr && mw->mr != nullptr && mw->key == key ? mw : nullptr;
}

char* memory_of(const Mw& mw) { return static_cast<char*>(mw.mr->verbs.addr) + (mw.begin - mw.mr->iova); }

// Nothing may pass through it once this returns.
void unbind(Mw& mw) {
  if (mw.mr == nullptr) return;
  forget_memory(mw.key, memory_of(mw), mw.bytes);
  --mw.mr->windows;
  if (mw.qp != nullptr) --mw.qp->windows;
  mw.mr = nullptr;
  mw.qp = nullptr;
}

// What the specification asks of a bind, with the numbers that Soft-RoCE checks by: C10-72 to C10-75, o10-37.2.30,
// o10-37.2.40. Source: InfiniBand Architecture Specification 1.4, 10.6.7.2.
bool may_bind(const Qp& qp, const Mw& mw, const Mr* mr, const Send& send) {
  const int access = static_cast<int>(send.operand2);
  const std::uint64_t bytes = send.operand1;
  if (mw.verbs.pd != qp.verbs.pd) return false;
  if (mw.verbs.type == IBV_MW_TYPE_2 && (mw.mr != nullptr || bytes == 0)) return false;
  if (bytes == 0) return true;
  if (mr == nullptr || mr->verbs.pd != mw.verbs.pd || (mr->access & IBV_ACCESS_MW_BIND) == 0) return false;
  if ((mr->access & IBV_ACCESS_ZERO_BASED) != 0) return false;
  if ((access & kRemoteWrites) != 0 && (mr->access & IBV_ACCESS_LOCAL_WRITE) == 0) return false;
  const std::uint64_t offset = send.raddr - mr->iova;
  return offset <= mr->verbs.length && bytes <= mr->verbs.length - offset;
}

}  // namespace

void* translate_remote(const Qp& qp, const ibv_pd* pd, std::uint32_t key, std::uint64_t address, std::uint64_t bytes,
                       int access) {
  if ((key & kWindowKey) == 0) return translate(pd, key, address, bytes, access);
  const Mw* mw = find_bound(key);
  if (mw == nullptr || mw->plain_pd != pd || (mw->qp != nullptr && mw->qp != &qp)) return nullptr;
  if ((mw->access & access) != access) return nullptr;
  const std::uint64_t offset = address - ((mw->access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : mw->begin);
  if (offset > mw->bytes || bytes > mw->bytes - offset) return nullptr;
  return memory_of(*mw) + offset;
}

Reach find_remote_carefully(const Qp& qp, const ibv_pd* pd, std::uint32_t key, std::uint64_t address,
                            std::uint64_t bytes, int access) {
  if ((key & kWindowKey) == 0) return find_carefully(pd, key, address, bytes, access);
  const Mw* mw = find_bound(key);
  if (mw == nullptr || mw->verbs.pd != pd || (mw->qp != nullptr && mw->qp != &qp)) return {nullptr, false};
  if ((mw->access & access) != access) return {nullptr, false};
  const std::uint64_t offset = address - ((mw->access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : mw->begin);
  if (offset > mw->bytes || bytes > mw->bytes - offset) return {nullptr, false};
  return reach(*mw->mr, memory_of(*mw) + offset, bytes);
}

void note_plain_windows(const Mr& mr) {
  g_engine->mws.for_each([&mr](Mw& mw) {
    if (mw.mr == &mr) mw.plain_pd = mr.changed == nullptr ? mw.verbs.pd : nullptr;
  });
}

bool is_kept(std::uint32_t key, void* memory, std::uint64_t bytes) {
  const Mw* mw = find_bound(key);
  const Mr* mr = mw != nullptr ? mw->mr : g_engine->mrs.find(key);
  return mr != nullptr && reach(*mr, memory, bytes).memory != nullptr;
}

bool awaits_bind(std::uint32_t key) {
  if ((key & kWindowKey) == 0 || find_bound(key) != nullptr) return false;
  bool any = false;
  g_engine->qps.for_each([&](Qp& qp) { any = any || qp.will_bind(key); });
  return any;
}

int check_bind(const ibv_send_wr& wr) {
  const ibv_mw* mw = wr.bind_mw.mw;
  const ibv_mw_bind_info& info = wr.bind_mw.bind_info;
  if (mw == nullptr || block_of(mw->rkey) != block_of(wr.bind_mw.rkey)) return EINVAL;
  if ((info.mw_access_flags & ~(kWindowAccess | IBV_ACCESS_LOCAL_WRITE)) != 0) return EINVAL;
  if (info.mr == nullptr && (info.addr != 0 || info.length != 0)) return EINVAL;
  if (mw->type == IBV_MW_TYPE_1 && (info.mw_access_flags & IBV_ACCESS_ZERO_BASED) != 0) return EINVAL;
  return 0;
}

// By keys, since the window and the region may be gone when its turn comes.
void record_bind(Send& send, const ibv_send_wr& wr) {
  const ibv_mw_bind_info& info = wr.bind_mw.bind_info;
  send.rkey = wr.bind_mw.rkey;
  send.imm = info.mr != nullptr ? info.mr->lkey : 0;
  send.raddr = info.addr;
  send.operand1 = info.length;
  send.operand2 = info.mw_access_flags & kWindowAccess;
}

ibv_wc_status bind_window(Qp& qp, const Send& send) {
  Mw* mw = find_window(send.rkey);
  Mr* mr = send.imm != 0 ? g_engine->mrs.find(send.imm) : nullptr;
  if (mw == nullptr || !may_bind(qp, *mw, mr, send)) return IBV_WC_MW_BIND_ERR;
  unbind(*mw);
  if (send.operand1 == 0) return IBV_WC_SUCCESS;
  mw->mr = mr;
  mw->key = send.rkey;
  mw->begin = send.raddr;
  mw->bytes = send.operand1;
  mw->access = static_cast<int>(send.operand2);
  mw->plain_pd = mr->changed == nullptr ? mw->verbs.pd : nullptr;
  ++mr->windows;
  if (mw->verbs.type == IBV_MW_TYPE_2) {
    mw->qp = &qp;
    ++qp.windows;
  }
  return IBV_WC_SUCCESS;
}

bool may_invalidate(const Qp& qp, std::uint32_t key) {
  const Mw* mw = find_bound(key);
  return mw != nullptr && mw->qp == &qp;
}

bool invalidate_window(Qp& qp, std::uint32_t key) {
  if (!may_invalidate(qp, key)) return false;
  unbind(*find_bound(key));
  return true;
}

void unbind_windows_of(Qp& qp) {
  if (qp.windows == 0) return;
  g_engine->mws.for_each([&](Mw& mw) {
    if (mw.qp == &qp) unbind(mw);
  });
}

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2) return fail_null<ibv_mw>(EINVAL);
  auto* mw = new Mw;
  mw->verbs.context = pd->context;
  mw->verbs.pd = pd;
  mw->verbs.type = type;
  EngineGuard guard;
  const std::uint32_t block = g_engine->mws.insert(mw);
  if (block == 0) {
    delete mw;
    return fail_null<ibv_mw>(ENOMEM);
  }
  mw->verbs.handle = block;
  mw->verbs.rkey = kWindowKey | block << 8;
  ++reinterpret_cast<Pd*>(pd)->users;
  ++g_engine->objects;
  return &mw->verbs;
}

int dealloc_mw(ibv_mw* verbs) {
  auto* mw = reinterpret_cast<Mw*>(verbs);
  EngineGuard guard;
  unbind(*mw);
  g_engine->mws.remove(verbs->handle);
  --g_engine->objects;
  --reinterpret_cast<Pd*>(verbs->pd)->users;
  delete mw;
  return 0;
}

}  // namespace shadowib::ib2tcp
