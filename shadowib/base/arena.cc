#include "shadowib/base/arena.h"

#include <sys/mman.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

constexpr std::size_t kHeaderBytes = 64;  // keeps payloads 64-byte aligned
constexpr std::size_t kChunkBytes = 1 << 20;
constexpr int kSmallestShift = 6, kLargestShift = 17;  // payload + header: 64 B .. 128 KiB, powers of two
constexpr std::uint64_t kLiveMagic = 0x73686c6976653031ull;

struct Header {
  std::uint64_t magic;
  std::size_t mapped_bytes;  // of a block mapped by itself, else 0
  Header* next_free;
  std::uint32_t size_class;
};

SpinLock g_lock;
Header* g_free[kLargestShift + 2];
char* g_chunk = nullptr;
std::size_t g_chunk_left = 0;
std::size_t g_requested = 0;
std::size_t g_mapped = 0;
bool g_excluded = false;
void* (*g_map)(std::size_t) = nullptr;
void (*g_unmap)(void*, std::size_t) = nullptr;

void* map_bytes(std::size_t bytes) {
  if (g_map != nullptr) {
    void* chunk = g_map(bytes);
    if (chunk != nullptr) g_mapped += bytes;
    return chunk;
  }
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  if (g_excluded) SHADOWIB_CHECK(own_mapping(p, bytes), "too many mappings of a backend");
  g_mapped += bytes;
  return p;
}

void unmap_bytes(void* address, std::size_t bytes) {
  if (g_unmap != nullptr) {
    g_unmap(address, bytes);
    return;
  }
  if (g_excluded) disown_mapping(address);
  ::munmap(address, bytes);
}

}  // namespace

void* arena_allocate(std::size_t bytes, std::size_t alignment) {
  if (alignment > kHeaderBytes || bytes > (std::size_t{1} << 46)) return nullptr;
  std::size_t need = bytes + kHeaderBytes;
  SpinGuard guard(g_lock);
  g_requested += bytes;
  Header* header;
  if (need > (std::size_t{1} << kLargestShift)) {
    std::size_t mapped = (need + 4095) & ~std::size_t{4095};
    header = static_cast<Header*>(map_bytes(mapped));
    if (header == nullptr) return nullptr;
    header->mapped_bytes = mapped;
  } else {
    int shift = std::bit_width(need - 1);
    if (shift < kSmallestShift + 1) shift = kSmallestShift + 1;
    if (g_free[shift] != nullptr) {
      header = g_free[shift];
      g_free[shift] = header->next_free;
      std::memset(static_cast<void*>(header), 0, std::size_t{1} << shift);
    } else {
      std::size_t block = std::size_t{1} << shift;
      if (g_chunk_left < block) {
        g_chunk = static_cast<char*>(map_bytes(kChunkBytes));
        g_chunk_left = g_chunk != nullptr ? kChunkBytes : 0;
        if (g_chunk == nullptr) return nullptr;
      }
      header = reinterpret_cast<Header*>(g_chunk);
      g_chunk += block;
      g_chunk_left -= block;
    }
    header->size_class = static_cast<std::uint32_t>(shift);
  }
  header->magic = kLiveMagic;
  return reinterpret_cast<char*>(header) + kHeaderBytes;
}

void arena_free(void* pointer) {
  if (pointer == nullptr) return;
  auto* header = reinterpret_cast<Header*>(static_cast<char*>(pointer) - kHeaderBytes);
  SHADOWIB_CHECK(header->magic == kLiveMagic, "freeing %p, which is not live in the arena", pointer);
  SpinGuard guard(g_lock);
  header->magic = 0;
  if (header->mapped_bytes != 0) {
    g_mapped -= header->mapped_bytes;
    unmap_bytes(header, header->mapped_bytes);
    return;
  }
  header->next_free = g_free[header->size_class];
  g_free[header->size_class] = header;
}

void arena_exclude_from_image(void* (*map)(std::size_t), void (*unmap)(void*, std::size_t)) {
  g_excluded = true;
  g_map = map;
  g_unmap = unmap;
}
std::size_t arena_requested_bytes() {
  SpinGuard guard(g_lock);
  return g_requested;
}

std::size_t arena_mapped_bytes() { return g_mapped; }
void arena_reset_lock_after_fork() { g_lock.reset(); }

}  // namespace shadowib
