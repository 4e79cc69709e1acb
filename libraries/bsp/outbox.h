// The records of one superstep for one peer. Grows; its memory is registered again by the owner when it has moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "libraries/bsp/records.h"

namespace shadowib::bsp {

class Outbox {
 public:
  Outbox() = default;
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Starts in memory of the caller, which outlives this. 64-byte aligned.
  void begin_in(std::byte* memory, std::size_t capacity) { data_ = memory, capacity_ = capacity; }

  void put(std::uint32_t slot, std::uint64_t offset, const void* source, std::size_t bytes) {
    const Record record{RecordKind::kPut, slot, offset, bytes};
    std::byte* at = append(sizeof(Record) + padded(bytes));
    std::memcpy(at, &record, sizeof(Record));
    std::memcpy(at + sizeof(Record), source, bytes);
  }
  void message(const void* tag, std::uint32_t tag_bytes, const void* payload, std::size_t bytes);
  // Notes the types of tag and payload (types.h) of the message whose record begins at `place`. Programs with
  // portable images only; 0, as in others, if they are not known.
  void set_types(std::size_t place, Little<std::uint64_t> types) {
    std::memcpy(data_ + place + offsetof(Record, offset), &types, sizeof(types));
  }
  void registration(std::uint64_t address, std::uint64_t bytes, std::uint32_t key);
  // Belongs to the registration before it.
  void pattern(const std::vector<std::byte>& told);

  void clear() { size_ = 0; }
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t capacity() const { return capacity_; }
  // True once the memory is its own: larger than it began.
  bool has_grown() const { return owns_; }

 private:
  std::byte* append(std::size_t bytes) {
    if (bytes > capacity_ - size_) [[unlikely]]
      grow(bytes);
    std::byte* const at = data_ + size_;
    size_ += bytes;
    return at;
  }
  void grow(std::size_t bytes);

  std::byte* data_ = nullptr;
  std::size_t size_ = 0, capacity_ = 0;
  bool owns_ = false;
};

}  // namespace shadowib::bsp
