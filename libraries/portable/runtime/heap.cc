#include "libraries/portable/runtime/heap.h"

#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/single_threaded.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "libraries/portable/runtime/frames.h"

// The C library's own, for memory that is not of this heap.
extern "C" void __libc_free(void* block);
extern "C" void* __libc_realloc(void* block, std::size_t size);

namespace shadowib::portable {
namespace {

struct Header {
  std::uint64_t allocation;     // an address
  std::uint64_t size : 56;      // kFree: the block is free, and its first bytes are the address of the next free one
  std::uint64_t alignment : 8;  // which power of two
};
static_assert(sizeof(Header) == 16);

constexpr std::uint64_t kFree = (std::uint64_t{1} << 56) - 1;
constexpr std::size_t kRegionBytes = 256 << 10;
constexpr std::size_t kMostSmall = 32 << 10;  // bytes of a cell; more has a region of its own
constexpr std::size_t kPage = 4096;
constexpr unsigned kPageBits = 12;

// Memory of equal cells, or of one block.
struct Region {
  unsigned char* begin;
  unsigned char* end;
  std::size_t cell;       // 0: one block
  unsigned char* carved;  // cells before it were used once; of one block: its header
};

struct Heap {
  std::vector<Region*> regions;  // by address
  unsigned char* free_cells[64] = {};
  Region* filling[64] = {};  // of each class: the region whose cells are not all carved
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
};

Heap& heap() {
  static auto* only = [] {
    pthread_atfork([] { pthread_mutex_lock(&heap().mutex); }, [] { pthread_mutex_unlock(&heap().mutex); },
                   [] { pthread_mutex_unlock(&heap().mutex); });
    return new Heap;
  }();
  return *only;
}

// Bounds of all regions: other addresses need no lock.
std::atomic<std::uintptr_t> lowest{~std::uintptr_t{0}}, highest{0};

class Guard {
 public:
  Guard() : locked_(!__libc_single_threaded) {
    if (locked_) pthread_mutex_lock(&heap().mutex);
  }
  ~Guard() {
    if (locked_) pthread_mutex_unlock(&heap().mutex);
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  bool locked_;
};

// Cells of 32, 48, ... 512 bytes, then each a quarter larger.
struct Classes {
  std::size_t bytes[64] = {};
  unsigned count = 0;
  constexpr Classes() {
    for (std::size_t size = 32; size <= kMostSmall; size = size < 512 ? size + 16 : (size + size / 4 + 15) / 16 * 16)
      bytes[count++] = size;
  }
};
constexpr Classes kClasses;
static_assert(kClasses.count <= 64);

// The least class with `bytes`, or kClasses.count.
unsigned class_of(std::size_t bytes) {
  if (bytes <= 512) return bytes <= 32 ? 0 : static_cast<unsigned>((bytes - 32 + 15) / 16);
  return static_cast<unsigned>(std::lower_bound(kClasses.bytes, kClasses.bytes + kClasses.count, bytes) -
                               kClasses.bytes);
}

Header* header_of(const void* block) {
  return reinterpret_cast<Header*>(const_cast<unsigned char*>(static_cast<const unsigned char*>(block)) -
                                   sizeof(Header));
}

Region* region_of(const void* address) {
  auto& regions = heap().regions;
  auto after = std::upper_bound(regions.begin(), regions.end(), address,
                                [](const void* wanted, const Region* region) { return wanted < region->begin; });
  if (after == regions.begin() || address >= (*(after - 1))->end) return nullptr;
  return *(after - 1);
}

void add_region(Region* region) {
  auto& regions = heap().regions;
  const unsigned char* begin = region->begin;
  regions.insert(std::upper_bound(regions.begin(), regions.end(), begin,
                                  [](const unsigned char* wanted, const Region* one) { return wanted < one->begin; }),
                 region);
  const auto from = reinterpret_cast<std::uintptr_t>(begin), to = reinterpret_cast<std::uintptr_t>(region->end);
  lowest.store(std::min(lowest.load(std::memory_order_relaxed), from), std::memory_order_relaxed);
  highest.store(std::max(highest.load(std::memory_order_relaxed), to), std::memory_order_relaxed);
}

Region* new_region(std::size_t bytes, std::size_t cell) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* begin = static_cast<unsigned char*>(memory);
  auto* region = new Region{begin, begin + bytes, cell, begin};
  add_region(region);
  return region;
}

void* take_small(unsigned which) {
  Heap& own = heap();
  if (unsigned char* cell = own.free_cells[which]) {
    std::memcpy(&own.free_cells[which], cell + sizeof(Header), sizeof(void*));
    return cell;
  }
  const std::size_t bytes = kClasses.bytes[which];
  if (!own.filling[which]) own.filling[which] = new_region(kRegionBytes, bytes);
  if (!own.filling[which]) return nullptr;
  Region* region = own.filling[which];
  unsigned char* cell = region->carved;
  region->carved += bytes;
  if (static_cast<std::size_t>(region->end - region->carved) < bytes) own.filling[which] = nullptr;
  return cell;
}

void* take_large(std::size_t bytes, std::size_t alignment) {
  if (bytes > (~std::size_t{0} >> 1) - alignment - kPage) return nullptr;
  Region* region = new_region((bytes + alignment + kPage - 1) / kPage * kPage, 0);
  if (!region) return nullptr;
  const auto first = reinterpret_cast<std::uintptr_t>(region->begin) + sizeof(Header);
  const std::uintptr_t block = (first + alignment - 1) & ~(static_cast<std::uintptr_t>(alignment) - 1);
  region->carved = region->begin + (block - sizeof(Header) - reinterpret_cast<std::uintptr_t>(region->begin));
  return region->carved;
}

// The block's region; ends the program if there is none.
Region* checked(void* block) {
  Region* region = region_of(block);
  auto* header = reinterpret_cast<unsigned char*>(header_of(block));
  const bool right = region && (region->cell ? header < region->carved && (header - region->begin) % region->cell == 0
                                             : header == region->carved);
  if (!right || header_of(block)->size == kFree)
    broken("free or realloc of a pointer that is no block", "a fault of the program");
  return region;
}

}  // namespace

void* heap_take(std::size_t size, std::size_t alignment, const Allocation* allocation) {
  if (size > (~std::size_t{0} >> 1) - alignment) {
    errno = ENOMEM;
    return nullptr;
  }
  Guard guard;
  const std::size_t bytes = sizeof(Header) + size + 1;
  const unsigned which = alignment > 16 ? kClasses.count : class_of(bytes);
  const bool small = which < kClasses.count;
  void* cell = small ? take_small(which) : take_large(bytes, std::max<std::size_t>(alignment, 16));
  if (!cell) {
    errno = ENOMEM;
    return nullptr;
  }
  auto* header = static_cast<Header*>(cell);
  *header = {reinterpret_cast<std::uintptr_t>(allocation), size,
             static_cast<std::uint64_t>(__builtin_ctzll(std::max<std::size_t>(alignment, 16)))};
  if (small) std::memset(header + 1, 0, size);
  return header + 1;
}

void heap_free(void* block) {
  Guard guard;
  Region* region = checked(block);
  if (!region->cell) {
    munmap(region->begin, region->end - region->begin);
    auto& regions = heap().regions;
    regions.erase(std::lower_bound(regions.begin(), regions.end(), region,
                                   [](const Region* one, const Region* two) { return one->begin < two->begin; }));
    delete region;
    return;
  }
  const unsigned which = class_of(region->cell);
  header_of(block)->size = kFree;
  std::memcpy(block, &heap().free_cells[which], sizeof(void*));
  heap().free_cells[which] = reinterpret_cast<unsigned char*>(header_of(block));
}

bool heap_resize(void* block, std::size_t size, const Allocation* allocation) {
  Guard guard;
  const Region* region = checked(block);
  if (!region->cell || size >= region->cell || sizeof(Header) + size + 1 > region->cell) return false;
  if (region->cell > 512 && size < region->cell / 2) return false;  // gives memory back
  Header* header = header_of(block);
  if (size > header->size) std::memset(static_cast<unsigned char*>(block) + header->size, 0, size - header->size);
  *header = {reinterpret_cast<std::uintptr_t>(allocation), size, header->alignment};
  return true;
}

void* heap_remap(void* block, std::size_t size, const Allocation* allocation) {
  Guard guard;
  Region* region = checked(block);
  const std::size_t front = region->carved - region->begin, bytes = front + sizeof(Header) + size + 1;
  if (region->cell || size > (~std::size_t{0} >> 1) - kPage || bytes <= kMostSmall) return nullptr;
  Header* header = header_of(block);
  // A block that is aligned to more than a page may lose it by moving.
  if (header->alignment > kPageBits) return nullptr;
  const std::size_t wanted = (bytes + kPage - 1) / kPage * kPage, have = region->end - region->begin;
  if (size < header->size) std::memset(static_cast<unsigned char*>(block) + size, 0, header->size - size);
  void* memory = wanted == have ? region->begin : mremap(region->begin, have, wanted, MREMAP_MAYMOVE);
  if (memory == MAP_FAILED) return nullptr;
  auto& regions = heap().regions;
  regions.erase(std::find(regions.begin(), regions.end(), region));
  auto* begin = static_cast<unsigned char*>(memory);
  *region = {begin, begin + wanted, 0, begin + front};
  add_region(region);
  *reinterpret_cast<Header*>(region->carved) = {reinterpret_cast<std::uintptr_t>(allocation), size,
                                                reinterpret_cast<Header*>(region->carved)->alignment};
  return region->carved + sizeof(Header);
}

std::size_t heap_size(const void* block) { return header_of(block)->size; }

bool heap_owns(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (at < lowest.load(std::memory_order_relaxed) || at >= highest.load(std::memory_order_relaxed)) return false;
  Guard guard;
  return region_of(address) != nullptr;
}

static bool block_of(unsigned char* cell, HeapBlock* block) {
  Header header;
  std::memcpy(&header, cell, sizeof header);
  if (header.size == kFree) return false;
  *block = {cell + sizeof header, header.size, static_cast<unsigned>(header.alignment),
            reinterpret_cast<const Allocation*>(static_cast<std::uintptr_t>(header.allocation))};
  return true;
}

bool heap_block_at(const void* address, HeapBlock* block) {
  Guard guard;
  const Region* region = region_of(address);
  if (!region) return false;
  const auto* at = static_cast<const unsigned char*>(address);
  unsigned char* cell = region->carved;
  if (region->cell) {
    cell = region->begin + (at - region->begin) / region->cell * region->cell;
    if (cell >= region->carved) return false;
  }
  return block_of(cell, block) && at >= block->address &&
         at - block->address < static_cast<std::int64_t>(block->size);
}

std::vector<HeapBlock> heap_blocks() {
  std::vector<HeapBlock> blocks;
  auto add = [&](unsigned char* cell) {
    HeapBlock block;
    if (block_of(cell, &block)) blocks.push_back(block);
  };
  for (const Region* region : heap().regions) {
    if (!region->cell) add(region->carved);
    for (unsigned char* cell = region->begin; region->cell && cell < region->carved; cell += region->cell) add(cell);
  }
  return blocks;
}

}  // namespace shadowib::portable

using namespace shadowib::portable;

namespace {

// Set by a caller of a function that returns void*: the type of what that function allocates.
thread_local const Allocation* hint = nullptr;

const Allocation* typed(const Allocation* allocation) {
  if (allocation->type || !hint) return allocation;
  const Allocation* given = hint;
  hint = nullptr;
  return given;
}

void* resized(void* block, std::size_t size, const Allocation* allocation) {
  const std::uint64_t old = header_of(block)->size;
  if (heap_resize(block, size, allocation)) return block;
  if (void* moved = heap_remap(block, size, allocation)) return moved;
  void* fresh = heap_take(size, 16, allocation);
  if (!fresh) return nullptr;
  std::memcpy(fresh, block, std::min<std::uint64_t>(size, old));
  heap_free(block);
  return fresh;
}

}  // namespace

extern "C" void shadowib_portable_hint(const Allocation* allocation) { hint = allocation; }

extern "C" void* shadowib_portable_malloc(std::size_t size, const Allocation* allocation) {
  return heap_take(size, 16, typed(allocation));
}

extern "C" void* shadowib_portable_calloc(std::size_t count, std::size_t size, const Allocation* allocation) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(count, size, &bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  return heap_take(bytes, 16, typed(allocation));
}

extern "C" void* shadowib_portable_aligned_alloc(std::size_t alignment, std::size_t size,
                                                 const Allocation* allocation) {
  if (alignment == 0 || (alignment & (alignment - 1))) {
    errno = EINVAL;
    return nullptr;
  }
  return heap_take(size, std::max<std::size_t>(alignment, 16), typed(allocation));
}

extern "C" void shadowib_portable_free(void* block) {
  if (!block) return;
  if (!heap_owns(block)) return std::free(block);
  const int error = errno;
  heap_free(block);
  errno = error;
}

extern "C" void* shadowib_portable_realloc(void* block, std::size_t size, const Allocation* allocation) {
  if (!block) return shadowib_portable_malloc(size, allocation);
  if (!heap_owns(block)) return std::realloc(block, size);
  if (size == 0) {
    heap_free(block);
    return nullptr;
  }
  // A realloc without a type of its own keeps the block's.
  const auto* old = reinterpret_cast<const Allocation*>(static_cast<std::uintptr_t>(header_of(block)->allocation));
  const Allocation* now = typed(allocation);
  return resized(block, size, now->type ? now : old);
}

extern "C" char* shadowib_portable_strndup(const char* text, std::size_t most, const Allocation* allocation) {
  const std::size_t length = strnlen(text, most);
  auto* copy = static_cast<char*>(heap_take(length + 1, 16, allocation));
  if (copy) std::memcpy(copy, text, length);
  return copy;
}

extern "C" char* shadowib_portable_strdup(const char* text, const Allocation* allocation) {
  return shadowib_portable_strndup(text, ~std::size_t{0}, allocation);
}

// Libraries free and resize what programs give them, as getline does. These names have no version, so that references
// of the C library, which have one, come here too.
extern "C" void free(void* block) {
  if (block && heap_owns(block)) return heap_free(block);
  __libc_free(block);
}

extern "C" void* realloc(void* block, std::size_t size) {
  if (!block || !heap_owns(block)) return __libc_realloc(block, size);
  const auto* own = reinterpret_cast<const Allocation*>(static_cast<std::uintptr_t>(header_of(block)->allocation));
  return shadowib_portable_realloc(block, size, own);
}

extern "C" std::size_t malloc_usable_size(void* block) noexcept {
  if (block && heap_owns(block)) return heap_size(block);
  static const auto library = reinterpret_cast<std::size_t (*)(void*)>(dlsym(RTLD_NEXT, "malloc_usable_size"));
  return library ? library(block) : 0;
}
