#include "ib2tcp/memory.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>

#include "ib2tcp/device.h"
#include "ib2tcp/engine.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/memory_window.h"

namespace shadowib::ib2tcp {
namespace {

constexpr int kRemoteWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
constexpr int kKnownAccess = IBV_ACCESS_LOCAL_WRITE | kRemoteWrites | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND |
                             IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB;
constexpr std::uintptr_t kPage = 4096;

// A NIC pins the pages and finds holes then; we look without touching them, so that registering stays lazy.
bool is_mapped(const void* address, std::size_t bytes) {
  if (bytes == 0) return true;
  std::uintptr_t at = reinterpret_cast<std::uintptr_t>(address) & ~(kPage - 1);
  std::uintptr_t end = reinterpret_cast<std::uintptr_t>(address) + bytes;
  if (end < at) return false;
  unsigned char resident[4096];
  while (at < end) {
    std::size_t step = std::min<std::size_t>((end - at + kPage - 1) & ~(kPage - 1), sizeof(resident) * kPage);
    if (::mincore(reinterpret_cast<void*>(at), step, resident) != 0) return false;
    at += step;
  }
  return true;
}

// 0 or the errno to refuse a registration with.
int check_region(const void* address, std::size_t bytes, std::uint64_t iova, int access) {
  if ((access & IBV_ACCESS_ON_DEMAND) != 0) return EOPNOTSUPP;
  if ((access & ~kKnownAccess) != 0) return EINVAL;
  if ((access & kRemoteWrites) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return EINVAL;
  if (reinterpret_cast<std::uintptr_t>(address) + bytes < reinterpret_cast<std::uintptr_t>(address) ||
      iova + bytes < iova)
    return EINVAL;
  return is_mapped(address, bytes) ? 0 : EFAULT;
}

void forget_region(const Mr& mr) { forget_memory(mr.verbs.lkey, mr.verbs.addr, mr.verbs.length); }

}  // namespace

void forget_memory(std::uint32_t key, const void* begin, std::size_t bytes) {
  std::vector<Link*>& links = g_engine->connected();
  for (std::size_t i = 0; i < links.size(); ++i)
    links[i]->forget_memory(key, begin, bytes);  // one that ends may make room for a new one
}

namespace {

inline void* look_up(const ibv_pd* pd, std::uint32_t key, std::uint64_t address, std::uint64_t bytes, int access) {
  const Mr* mr = g_engine->mrs.find(key);
  if (mr == nullptr || mr->plain_pd != pd || (mr->access & access) != access) return nullptr;
  std::uint64_t offset = address - mr->iova;
  if (offset > mr->verbs.length || bytes > mr->verbs.length - offset) return nullptr;
  return static_cast<char*>(mr->verbs.addr) + offset;
}

}  // namespace

void* translate(const ibv_pd* pd, std::uint32_t key, std::uint64_t address, std::uint64_t bytes, int access) {
  return look_up(pd, key, address, bytes, access);
}

Reach find_carefully(const ibv_pd* pd, std::uint32_t key, std::uint64_t address, std::uint64_t bytes, int access) {
  const Mr* mr = g_engine->mrs.find(key);
  if (mr == nullptr || mr->verbs.pd != pd || (mr->access & access) != access) return {nullptr, false};
  std::uint64_t offset = address - mr->iova;
  if (offset > mr->verbs.length || bytes > mr->verbs.length - offset) return {nullptr, false};
  return reach(*mr, static_cast<char*>(mr->verbs.addr) + offset, bytes);
}

void Mr::note_plain() {
  plain_pd = changed == nullptr ? verbs.pd : nullptr;
  if (windows != 0) note_plain_windows(*this);
}

int translate_list(const ibv_pd* pd, const ibv_sge* sges, int count, std::uint64_t bytes, int access, iovec* parts,
                   std::uint32_t* regions) {
  if (count == 1 && bytes > 0 && bytes <= sges[0].length) {  // as most are
    void* memory = look_up(pd, sges[0].lkey, sges[0].addr, sges[0].length, access);
    if (memory == nullptr) return -1;
    if (regions != nullptr) regions[0] = sges[0].lkey;
    parts[0] = {memory, static_cast<std::size_t>(bytes)};
    return 1;
  }
  int n = 0;
  for (int i = 0; i < count && bytes > 0; ++i) {
    std::uint64_t take = std::min<std::uint64_t>(sges[i].length, bytes);
    if (take == 0) continue;
    // The whole element must lie in its region, as a NIC checks it, even if the message is shorter.
    void* memory = look_up(pd, sges[i].lkey, sges[i].addr, sges[i].length, access);
    if (memory == nullptr) return -1;
    if (regions != nullptr) regions[n] = sges[i].lkey;
    parts[n++] = {memory, static_cast<std::size_t>(take)};
    bytes -= take;
  }
  return bytes == 0 ? n : -2;
}

int translate_list_carefully(const ibv_pd* pd, const ibv_sge* sges, int count, std::uint64_t bytes, int access,
                             iovec* parts, std::uint32_t* regions, bool* careful) {
  int n = 0;
  *careful = false;
  for (int i = 0; i < count && bytes > 0; ++i) {
    const std::uint64_t take = std::min<std::uint64_t>(sges[i].length, bytes);
    if (take == 0) continue;
    const Mr* mr = g_engine->mrs.find(sges[i].lkey);
    if (mr == nullptr || mr->verbs.pd != pd || (mr->access & access) != access) return -1;
    const std::uint64_t offset = sges[i].addr - mr->iova;
    if (offset > mr->verbs.length || sges[i].length > mr->verbs.length - offset) return -1;
    const Reach found = reach(*mr, static_cast<char*>(mr->verbs.addr) + offset, take);
    if (found.memory == nullptr) return -1;
    *careful |= found.careful;
    if (regions != nullptr) regions[n] = sges[i].lkey;
    parts[n++] = {found.memory, static_cast<std::size_t>(take)};
    bytes -= take;
  }
  return bytes == 0 ? n : -2;
}

ibv_pd* alloc_pd(ibv_context* context) {
  static std::atomic<std::uint32_t> next_handle{1};
  auto* pd = new Pd;
  pd->verbs.context = context;
  pd->verbs.handle = next_handle.fetch_add(1);
  ++reinterpret_cast<Context*>(context)->users;
  ++g_engine->objects;
  return &pd->verbs;
}

int dealloc_pd(ibv_pd* verbs) {
  auto* pd = reinterpret_cast<Pd*>(verbs);
  if (pd->users.load() != 0) return EBUSY;
  --reinterpret_cast<Context*>(verbs->context)->users;
  --g_engine->objects;
  delete pd;
  return 0;
}

ibv_mr* reg_mr(ibv_pd* pd, void* address, std::size_t bytes, std::uint64_t iova, int access) {
  access &= ~IBV_ACCESS_OPTIONAL_RANGE;  // hints such as RELAXED_ORDERING
  if (int rc = check_region(address, bytes, iova, access); rc != 0) return fail_null<ibv_mr>(rc);
  auto* mr = new Mr;
  mr->verbs.context = pd->context;
  mr->verbs.pd = pd;
  mr->verbs.addr = address;
  mr->verbs.length = bytes;
  mr->iova = (access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : iova;
  mr->access = access;
  EngineGuard guard;
  std::uint32_t key = g_engine->mrs.insert(mr);
  if (key == 0) {
    delete mr;
    return fail_null<ibv_mr>(ENOMEM);
  }
  mr->verbs.lkey = mr->verbs.rkey = mr->verbs.handle = key;
  mr->note_plain();
  g_regions.add(address, bytes);
  g_engine->regions.add(mr->place, mr, address, bytes);
  if (bytes != 0) note_protections(*mr);
  ++reinterpret_cast<Pd*>(pd)->users;
  ++g_engine->objects;
  return &mr->verbs;
}

int rereg_mr(ibv_mr* verbs, int flags, ibv_pd* pd, void* address, std::size_t bytes, int access) {
  auto* mr = reinterpret_cast<Mr*>(verbs);
  const bool moves = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
  access = (flags & IBV_REREG_MR_CHANGE_ACCESS) != 0 ? access & ~IBV_ACCESS_OPTIONAL_RANGE : mr->access;
  if (!moves) address = verbs->addr, bytes = verbs->length;
  const std::uint64_t iova = !moves                                  ? mr->iova
                             : (access & IBV_ACCESS_ZERO_BASED) != 0 ? 0
                                                                     : reinterpret_cast<std::uint64_t>(address);
  if (int rc = check_region(address, bytes, iova, access); rc != 0) return rc;
  EngineGuard guard;
  if (mr->windows != 0) return EBUSY;
  forget_region(*mr);
  if ((flags & IBV_REREG_MR_CHANGE_PD) != 0) {
    --reinterpret_cast<Pd*>(verbs->pd)->users;
    verbs->pd = pd;
    ++reinterpret_cast<Pd*>(pd)->users;
  }
  g_regions.remove(verbs->addr, verbs->length);
  g_regions.add(address, bytes);
  g_engine->regions.remove(mr->place);
  g_engine->regions.add(mr->place, mr, address, bytes);
  verbs->addr = address;
  verbs->length = bytes;
  mr->iova = iova;
  mr->access = access;
  if (moves) mr->changed.reset();
  mr->note_plain();
  if (bytes != 0) note_protections(*mr);
  return 0;
}

int dereg_mr(ibv_mr* verbs) {
  auto* mr = reinterpret_cast<Mr*>(verbs);
  EngineGuard guard;
  if (mr->windows != 0) return EBUSY;
  forget_region(*mr);
  g_regions.remove(verbs->addr, verbs->length);
  g_engine->regions.remove(mr->place);
  g_engine->mrs.remove(verbs->lkey);
  --g_engine->objects;
  --reinterpret_cast<Pd*>(verbs->pd)->users;
  delete mr;
  return 0;
}

}  // namespace shadowib::ib2tcp
