#include "shadowib/base/arena.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

constexpr std::size_t kHeaderBytes = 64;               // keeps payloads 64-byte aligned
constexpr std::size_t kChunkBytes = (1 << 20) + 4096;  // 2^n blocks of most sizes, with their headers
constexpr int kSmallestShift = 6, kLargestShift = 17;  // payloads of 64 B .. 128 KiB, powers of two
constexpr std::size_t kKeptLists = 61;                 // prime: sizes differ by multiples of powers of two
// With the header a block is no power of two. So the same line of many objects is not in the same few sets of a
// cache.
constexpr std::size_t block_bytes(int shift) { return (std::size_t{1} << shift) + kHeaderBytes; }
constexpr std::uint64_t kLiveMagic = 0x73686c6976653031ull;

struct Header {
  std::uint64_t magic;
  std::size_t mapped_bytes;  // of a block mapped by itself, else 0
  Header* next_free;
  std::uint32_t size_class;
};

using Step = void (*)();
constinit Step g_enter = nullptr, g_leave = nullptr;  // around each hold of a heap's lock

// Holds a heap's lock where its holder cannot be stopped.
class SHADOWIB_SCOPED_CAPABILITY HeapGuard {
 public:
  explicit HeapGuard(SpinLock& lock) SHADOWIB_ACQUIRE(lock) : lock_(lock) {
    if (g_enter != nullptr) g_enter();
    lock_.lock();
  }
  ~HeapGuard() SHADOWIB_RELEASE() {
    lock_.unlock();
    if (g_leave != nullptr) g_leave();
  }
  HeapGuard(const HeapGuard&) = delete;
  HeapGuard& operator=(const HeapGuard&) = delete;

 private:
  SpinLock& lock_;
};

struct Heap {
  SpinLock lock;
  Header* free[kLargestShift + 2] SHADOWIB_GUARDED_BY(lock);
  char* chunk SHADOWIB_GUARDED_BY(lock) = nullptr;
  std::size_t chunk_left SHADOWIB_GUARDED_BY(lock) = 0;
  std::size_t requested SHADOWIB_GUARDED_BY(lock) = 0;
  std::size_t mapped SHADOWIB_GUARDED_BY(lock) = 0;
  Header* kept[kKeptLists] SHADOWIB_GUARDED_BY(lock);  // by size; each list has few sizes
  std::size_t kept_bytes SHADOWIB_GUARDED_BY(lock) = 0;
  const bool secret;
  bool excluded;
  void* (*map)(std::size_t) = nullptr;
  void (*unmap)(void*, std::size_t) = nullptr;

  constexpr explicit Heap(bool is_secret) : free(), kept(), secret(is_secret), excluded(is_secret) {}
  void* map_bytes(std::size_t bytes) SHADOWIB_REQUIRES(lock);
  void unmap_bytes(void* address, std::size_t bytes) SHADOWIB_REQUIRES(lock);
  void* allocate(std::size_t bytes);
  void release(void* pointer, bool keep = false);
  void* take_kept(std::size_t bytes);
  bool release_one_kept(std::size_t most);
};

constinit Heap g_objects(false), g_secrets(true);
constinit std::atomic<unsigned> g_secrets_forgotten{0};

std::size_t whole_pages(std::size_t bytes) { return (bytes + 4095) & ~std::size_t{4095}; }
std::size_t kept_list(std::size_t mapped_bytes) { return mapped_bytes / 4096 % kKeptLists; }

// The guard of munmap may take a lock that this thread holds (base/memory_watch.h).
void raw_unmap(void* address, std::size_t bytes) { ::syscall(SYS_munmap, address, bytes); }

void* Heap::map_bytes(std::size_t bytes) {
  if (map != nullptr) {
    void* there = map(bytes);
    if (there != nullptr) mapped += bytes;
    return there;
  }
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  if (secret) {
    ::madvise(p, bytes, MADV_DONTDUMP);
    ::madvise(p, bytes, MADV_WIPEONFORK);  // what a child might save of it is not its own
  }
  if (excluded && !own_mapping(p, bytes)) {
    SHADOWIB_CHECK(secret, "too many mappings of a backend");
    raw_unmap(p, bytes);
    return nullptr;
  }
  mapped += bytes;
  return p;
}

void Heap::unmap_bytes(void* address, std::size_t bytes) {
  if (unmap != nullptr) {
    unmap(address, bytes);
    return;
  }
  if (excluded) disown_mapping(address);
  raw_unmap(address, bytes);
}

void* Heap::allocate(std::size_t bytes) {
  if (bytes > (std::size_t{1} << 46)) return nullptr;
  HeapGuard guard(lock);
  requested += bytes;
  Header* header;
  if (bytes > (std::size_t{1} << kLargestShift)) {
    std::size_t whole = whole_pages(bytes + kHeaderBytes);
    header = static_cast<Header*>(map_bytes(whole));
    if (header == nullptr) return nullptr;
    header->mapped_bytes = whole;
  } else {
    const int shift = std::max(kSmallestShift, static_cast<int>(std::bit_width(std::max<std::size_t>(bytes, 1) - 1)));
    if (free[shift] != nullptr) {
      header = free[shift];
      free[shift] = header->next_free;
      std::memset(static_cast<void*>(header), 0, block_bytes(shift));
    } else {
      const std::size_t block = block_bytes(shift);
      if (chunk_left < block) {
        chunk = static_cast<char*>(map_bytes(kChunkBytes));
        chunk_left = chunk != nullptr ? kChunkBytes : 0;
        if (chunk == nullptr) return nullptr;
      }
      header = reinterpret_cast<Header*>(chunk);
      chunk += block;
      chunk_left -= block;
    }
    header->size_class = static_cast<std::uint32_t>(shift);
  }
  header->magic = kLiveMagic;
  return reinterpret_cast<char*>(header) + kHeaderBytes;
}

void Heap::release(void* pointer, bool keep) {
  if (pointer == nullptr) return;
  auto* header = reinterpret_cast<Header*>(static_cast<char*>(pointer) - kHeaderBytes);
  SHADOWIB_CHECK(header->magic == kLiveMagic, "freeing %p, which is not live in the arena", pointer);
  HeapGuard guard(lock);
  header->magic = 0;
  if (keep && header->mapped_bytes != 0) {
    Header*& list = kept[kept_list(header->mapped_bytes)];
    header->next_free = list;
    list = header;
    kept_bytes += header->mapped_bytes;
    return;
  }
  if (header->mapped_bytes != 0) {
    mapped -= header->mapped_bytes;
    unmap_bytes(header, header->mapped_bytes);
    return;
  }
  if (secret) ::explicit_bzero(pointer, std::size_t{1} << header->size_class);
  header->next_free = free[header->size_class];
  free[header->size_class] = header;
}

void* Heap::take_kept(std::size_t bytes) {
  const std::size_t whole = whole_pages(bytes + kHeaderBytes);
  HeapGuard guard(lock);
  Header** at = &kept[kept_list(whole)];
  while (*at != nullptr && (*at)->mapped_bytes != whole) at = &(*at)->next_free;
  Header* const header = *at;
  if (header == nullptr) return nullptr;
  *at = header->next_free;
  kept_bytes -= whole;
  requested += bytes;
  header->magic = kLiveMagic;
  return reinterpret_cast<char*>(header) + kHeaderBytes;
}

// False: there is nothing to do. One at a time, since unmapping is slow and others wait for the lock.
bool Heap::release_one_kept(std::size_t most) {
  HeapGuard guard(lock);
  if (kept_bytes <= most) return false;
  Header** list = kept;
  while (*list == nullptr) ++list;
  Header* const header = *list;
  *list = header->next_free;
  kept_bytes -= header->mapped_bytes;
  mapped -= header->mapped_bytes;
  unmap_bytes(header, header->mapped_bytes);
  return true;
}

}  // namespace

void* arena_allocate(std::size_t bytes, std::size_t alignment) {
  return alignment > kHeaderBytes ? nullptr : g_objects.allocate(bytes);
}
void arena_free(void* pointer) { g_objects.release(pointer); }

void arena_keep(void* pointer) { g_objects.release(pointer, true); }
void* arena_take_kept(std::size_t bytes) { return g_objects.take_kept(bytes); }
void arena_release_kept(std::size_t most) {
  while (g_objects.release_one_kept(most)) {
  }
}
std::size_t arena_kept_bytes() {
  HeapGuard guard(g_objects.lock);
  return g_objects.kept_bytes;
}

void* arena_allocate_secret(std::size_t bytes) { return g_secrets.allocate(bytes); }
void arena_free_secret(void* pointer) { g_secrets.release(pointer); }

// One thread is left: it was restarted, or forked.
void arena_forget_secrets() SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  g_secrets_forgotten.fetch_add(1, std::memory_order_relaxed);
  g_secrets.lock.reset();
  std::memset(g_secrets.free, 0, sizeof(g_secrets.free));
  g_secrets.chunk = nullptr;
  g_secrets.chunk_left = g_secrets.mapped = 0;
}
unsigned arena_secrets_forgotten() { return g_secrets_forgotten.load(std::memory_order_relaxed); }

void arena_protect_holders(void (*enter)(), void (*leave)()) {
  g_enter = enter;
  g_leave = leave;
}

void arena_exclude_from_image(void* (*map)(std::size_t), void (*unmap)(void*, std::size_t)) {
  g_objects.excluded = true;
  g_objects.map = map;
  g_objects.unmap = unmap;
}

std::size_t arena_requested_bytes() {
  HeapGuard guard(g_objects.lock);
  return g_objects.requested;
}

std::size_t arena_mapped_bytes() {
  HeapGuard guard(g_objects.lock);
  return g_objects.mapped;
}
void arena_reset_lock_after_fork() { g_objects.lock.reset(); }

}  // namespace shadowib
