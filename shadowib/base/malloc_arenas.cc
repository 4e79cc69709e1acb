#include "shadowib/base/loader_memory.h"

#include <atomic>
#include <cstdlib>

namespace shadowib {
namespace {

// Beyond what a thread keeps for itself (glibc's tcache), so that each change of size asks the arena.
constexpr std::size_t kSizes[] = {2000, 3000};

std::atomic<void*> g_block{nullptr};  // in that arena
unsigned g_size = 0;                  // of kSizes, which it has

}  // namespace

void note_loader_memory() { std::free(g_block.exchange(std::malloc(kSizes[0]))); }

void take_lock_of_loader_memory() {
  void* const block = g_block.exchange(nullptr);
  if (block == nullptr) return;
  void* const resized = std::realloc(block, kSizes[++g_size % 2]);
  void* none = nullptr;
  if (!g_block.compare_exchange_strong(none, resized != nullptr ? resized : block))
    std::free(resized != nullptr ? resized : block);  // another load was noted meanwhile
}

}  // namespace shadowib
