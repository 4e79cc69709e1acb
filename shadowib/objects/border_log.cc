#include "shadowib/objects/border_log.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "shadowib/base/arena.h"

namespace shadowib {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHeaders = 96;  // before a chunk's entries: its own and the arena's
constexpr std::size_t kFirstChunk = kPage, kLargestChunk = (256 << 10) + kPage;
constexpr std::size_t kDefaultLimit = std::size_t{256} << 20;

std::atomic<std::size_t> g_bytes{0};

// Of a chunk and its headers that has room for `bytes` of them. Few sizes, so that one that is kept fits the next
// request: a page for the headers, and an eighth of a power of two more or less.
std::size_t size_for(std::size_t bytes) {
  const std::size_t step = bytes > kLargestChunk ? std::bit_floor(bytes - kPage) / 8 : kPage;
  return (bytes - kPage + step - 1) / step * step + kPage;
}

std::size_t size_of(std::uint32_t bytes) { return (sizeof(BorderLogEntry) + bytes + 15) & ~std::size_t{15}; }

}  // namespace

struct alignas(16) BorderLog::Chunk {
  Chunk* next;
  std::size_t capacity, begin, end;  // bytes behind this; [begin, end) are entries

  char* data() { return reinterpret_cast<char*>(this + 1); }
  const char* data() const { return reinterpret_cast<const char*>(this + 1); }
  BorderLogEntry* entry_at(std::size_t offset) { return reinterpret_cast<BorderLogEntry*>(data() + offset); }
  const BorderLogEntry* entry_at(std::size_t offset) const {
    return reinterpret_cast<const BorderLogEntry*>(data() + offset);
  }
  bool holds(const BorderLogEntry* entry) const {
    const char* at = reinterpret_cast<const char*>(entry);
    return at >= data() + begin && at < data() + end;
  }
};

BorderLog::Chunk* BorderLog::add_chunk(std::size_t bytes, std::size_t limit) {
  static_assert(kHeaders == sizeof(Chunk) + 64);
  const std::size_t usual =
      last_ == nullptr ? kFirstChunk : std::clamp(2 * (last_->capacity + kHeaders), kFirstChunk, kLargestChunk);
  const std::size_t whole = std::max(size_for(std::max(bytes + kHeaders, kPage)), usual);
  std::size_t before = g_bytes.load();
  do {
    if (limit < before || limit - before < whole) return nullptr;
  } while (!g_bytes.compare_exchange_weak(before, before + whole));
  const std::size_t capacity = whole - kHeaders;
  auto* chunk = static_cast<Chunk*>(arena_take_kept(sizeof(Chunk) + capacity));
  if (chunk == nullptr) {
    arena_release_kept(limit - before - whole);
    chunk = static_cast<Chunk*>(arena_allocate(sizeof(Chunk) + capacity));
  }
  if (chunk == nullptr) {
    g_bytes -= whole;
    return nullptr;
  }
  *chunk = {nullptr, capacity, 0, 0};
  (last_ != nullptr ? last_->next : first_) = chunk;
  last_ = chunk;
  return chunk;
}

BorderLog::Chunk* BorderLog::remove_first() {
  Chunk* const gone = std::exchange(first_, first_->next);
  if (first_ == nullptr) last_ = nullptr;
  looked_at_ = nullptr;
  g_bytes -= gone->capacity + kHeaders;
  return gone;
}

BorderLogEntry* BorderLog::add(std::uint32_t number, std::uint32_t bytes, std::size_t limit) {
  const std::size_t whole = size_of(bytes);
  Chunk* chunk = last_;
  if (chunk == nullptr || chunk->capacity - chunk->end < whole) chunk = add_chunk(whole, limit);
  if (chunk == nullptr) return nullptr;
  BorderLogEntry* entry = chunk->entry_at(chunk->end);
  chunk->end += whole;
  *entry = BorderLogEntry{};
  entry->number = number;
  entry->bytes = bytes;
  return entry;
}

const BorderLogEntry* BorderLog::next(const BorderLogEntry* entry) const {
  const Chunk* chunk = entry == nullptr ? first_ : looked_at_ != nullptr ? looked_at_ : first_;
  if (entry != nullptr && chunk != nullptr && !chunk->holds(entry)) chunk = first_;
  while (entry != nullptr && chunk != nullptr && !chunk->holds(entry)) chunk = chunk->next;
  if (chunk == nullptr) return nullptr;
  std::size_t offset = chunk->begin;
  if (entry != nullptr)
    offset = static_cast<std::size_t>(reinterpret_cast<const char*>(entry) - chunk->data()) + size_of(entry->bytes);
  while (offset == chunk->end) {
    chunk = chunk->next;
    if (chunk == nullptr) return nullptr;
    offset = chunk->begin;
  }
  looked_at_ = chunk;
  return chunk->entry_at(offset);
}

void BorderLog::trim(std::uint32_t number) {
  while (first_ != nullptr) {
    Chunk& chunk = *first_;
    while (chunk.begin != chunk.end) {
      const BorderLogEntry& entry = *chunk.entry_at(chunk.begin);
      if (static_cast<std::int32_t>(entry.number - number) >= 0) return;
      chunk.begin += size_of(entry.bytes);
    }
    arena_keep(remove_first());
  }
}

void BorderLog::clear() {
  while (first_ != nullptr) arena_free(remove_first());
  if (bytes_in_use() == 0) release_kept();
}

std::size_t BorderLog::bytes_in_use() { return g_bytes.load(); }
std::size_t BorderLog::bytes_kept() { return arena_kept_bytes(); }
void BorderLog::release_kept() { arena_release_kept(0); }

std::size_t parse_log_bytes(const char* text) {
  if (text == nullptr || *text < '0' || *text > '9') return kDefaultLimit;
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text, &end, 10);
  constexpr char kUnits[] = "KMG";
  unsigned shift = 0;
  if (*end != '\0') {
    const char* unit = std::strchr(kUnits, *end);
    if (unit == nullptr || end[1] != '\0') return kDefaultLimit;
    shift = 10 * static_cast<unsigned>(unit - kUnits + 1);
  }
  return value > (SIZE_MAX >> shift) ? kDefaultLimit : static_cast<std::size_t>(value) << shift;
}

}  // namespace shadowib
