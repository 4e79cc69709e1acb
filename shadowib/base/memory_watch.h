// Tells the backend about changes that the program makes to its own mappings.
//
// An adapter pins the pages of a memory region. ib2tcp cannot: it must learn when the program unmaps or protects
// registered memory, before the next access. The guards of munmap, mprotect, mremap, mmap and shmdt call the watch.
#pragma once

#include <atomic>
#include <cstddef>

namespace shadowib {

enum class MemoryChange : int {
  kUsable,     // readable and writable again; sent after the change
  kReadOnly,   // writing is forbidden; sent before the change
  kProtected,  // reading is forbidden, too; sent before the change
  kGone,       // unmapped or replaced by another mapping; sent before the change
  kKept,       // the call after kGone failed: the memory is still there
  kWent,       // the call after kGone is over: the rest of what it was to take is gone
};

// Any thread, outside the shim. The addresses may belong to no region.
using MemoryWatch = void(const void* address, std::size_t bytes, MemoryChange change);

// nullptr: no backend wants to know. Set when a backend is loaded.
inline constinit std::atomic<MemoryWatch*> g_memory_watch{nullptr};

}  // namespace shadowib
