// Protection domains and memory regions.
#pragma once

#include <infiniband/verbs.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "ib2tcp/pinned.h"
#include "ib2tcp/region_index.h"

namespace shadowib::ib2tcp {

struct Context;

struct Pd {
  ibv_pd verbs{};  // first
  std::atomic<int> users{0};
};

struct Mr {
  ibv_mr verbs{};  // first; lkey == rkey
  std::uint64_t iova = 0;
  int access = 0;
  int windows = 0;  // bound to it
  // Its protection domain, or nullptr if some of its memory has changed: translate() then fails.
  const ibv_pd* plain_pd = nullptr;
  std::unique_ptr<ChangedMemory> changed;
  RegionPlace place;

  // After a change of verbs.pd or `changed`.
  void note_plain();
};

// Finds [address, address + bytes) of region `key` and checks domain, bounds and `access` (all bits needed).
// Returns the memory, or nullptr, also if the owner has unmapped or protected some of the region: the caller then
// asks find_carefully (pinned.h). Under the engine's lock; bytes > 0.
void* translate(const ibv_pd* pd, std::uint32_t key, std::uint64_t address, std::uint64_t bytes, int access);

// Turns the first `bytes` of sges[0..count) into memory parts. Returns the number of parts, or -1 if a key, a
// bound or an access right is wrong, or -2 if they are shorter than `bytes`. parts must have room for `count`, as
// must `regions` unless it is nullptr: it gets the key of the region that each part is of.
int translate_list(const ibv_pd* pd, const ibv_sge* sges, int count, std::uint64_t bytes, int access, iovec* parts,
                   std::uint32_t* regions = nullptr);

// Likewise for all regions, after translate_list has failed. *careful: parts may be reached by read_carefully and
// write_carefully only.
int translate_list_carefully(const ibv_pd* pd, const ibv_sge* sges, int count, std::uint64_t bytes, int access,
                             iovec* parts, std::uint32_t* regions, bool* careful);

// Nothing may touch this memory by this key once it returns: messages half in or out are cut loose.
void forget_memory(std::uint32_t key, const void* begin, std::size_t bytes);

ibv_pd* alloc_pd(ibv_context* context);
int dealloc_pd(ibv_pd* pd);
ibv_mr* reg_mr(ibv_pd* pd, void* address, std::size_t bytes, std::uint64_t iova, int access);
int dereg_mr(ibv_mr* mr);
int rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* address, std::size_t bytes, int access);

}  // namespace shadowib::ib2tcp
