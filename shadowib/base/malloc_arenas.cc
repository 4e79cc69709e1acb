#include "shadowib/base/malloc_arenas.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <iterator>

namespace shadowib {
namespace {

// Beyond what a thread keeps for itself (glibc's tcache), so that each change of size asks the arena.
constexpr std::size_t kSizes[] = {2000, 3000};

struct Noted {
  std::atomic<int> tid{0};
  std::atomic<void*> block{nullptr};  // in that thread's arena; null while its lock is being taken
};
Noted g_noted[32];  // whoever creates threads or opens devices, and a few of ours
std::atomic<unsigned> g_next{0};
unsigned g_size = 0;  // of kSizes, which they have

Noted& entry_of(int tid) {
  for (Noted& noted : g_noted)
    if (noted.tid.load() == tid) return noted;
  Noted& noted = g_noted[g_next.fetch_add(1) % std::size(g_noted)];
  noted.tid.store(tid);
  return noted;
}

}  // namespace

void note_malloc_arena() {
  Noted& noted = entry_of(static_cast<int>(::syscall(SYS_gettid)));
  std::free(noted.block.exchange(std::malloc(kSizes[0])));
}

void take_locks_of_noted_arenas() {
  ++g_size;
  for (Noted& noted : g_noted) {
    void* const block = noted.block.exchange(nullptr);
    if (block == nullptr) continue;
    void* const resized = std::realloc(block, kSizes[g_size % 2]);
    void* const kept = resized != nullptr ? resized : block;
    void* none = nullptr;
    if (!noted.block.compare_exchange_strong(none, kept)) std::free(kept);  // it was noted anew meanwhile
  }
}

}  // namespace shadowib
