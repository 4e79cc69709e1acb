#include "libraries/bsp/outbox.h"

#include <sys/mman.h>

#include <algorithm>

#include "libraries/bsp/complain.h"

namespace shadowib::bsp {

Outbox::~Outbox() {
  if (owns_) ::munmap(data_, capacity_);
}

// By mmap: registered memory shares no page with the program's heap.
void Outbox::grow(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  const std::size_t needed = (size_ + bytes + kPage - 1) & ~(kPage - 1);
  const std::size_t capacity = std::max(needed, 2 * capacity_);
  void* memory = ::mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no memory for %zu bytes that are put or sent in this superstep", size_ + bytes);
  if (size_ > 0) std::memcpy(memory, data_, size_);
  if (owns_) ::munmap(data_, capacity_);
  data_ = static_cast<std::byte*>(memory);
  capacity_ = capacity;
  owns_ = true;
}

void Outbox::message(const void* tag, std::uint32_t tag_bytes, const void* payload, std::size_t bytes) {
  const Record record{RecordKind::kMessage, tag_bytes, 0, bytes};
  std::byte* at = append(record_size(record));
  std::memcpy(at, &record, sizeof(Record));
  if (tag_bytes > 0) std::memcpy(at + sizeof(Record), tag, tag_bytes);
  if (bytes > 0) std::memcpy(at + sizeof(Record) + padded(tag_bytes), payload, bytes);
}

void Outbox::registration(std::uint64_t address, std::uint64_t bytes, std::uint32_t key) {
  const Record record{RecordKind::kRegister, key, address, bytes};
  std::memcpy(append(sizeof(Record)), &record, sizeof(Record));
}

void Outbox::pattern(const std::vector<std::byte>& told) {
  const Record record{RecordKind::kPattern, 0, 0, told.size()};
  std::byte* at = append(record_size(record));
  std::memcpy(at, &record, sizeof(Record));
  std::memcpy(at + sizeof(Record), told.data(), told.size());
}

}  // namespace shadowib::bsp
