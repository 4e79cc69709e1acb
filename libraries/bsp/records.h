// Records: what a process tells another in a superstep, one behind the other in a stream of bytes.
// Heads are the same on every architecture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "libraries/bsp/little.h"

namespace shadowib::bsp {

enum class RecordKind : std::uint32_t {
  kPut = 1,       // payload goes to `offset` of registration `slot`
  kMessage = 2,   // a tag of `slot` bytes, then the payload; `offset` has the types of both (types.h)
  kRegister = 3,  // memory of the sender: `offset` is its address, `bytes` its size, `slot` its key; no payload
  kPattern = 4,   // where numbers lie in the memory of the kRegister before it (pattern.h), which is the payload
};

struct Record {
  Little<RecordKind> kind;
  Little<std::uint32_t> slot;
  Little<std::uint64_t> offset;
  Little<std::uint64_t> bytes;
};

constexpr std::size_t padded(std::size_t bytes) { return (bytes + 7) & ~std::size_t{7}; }

// Bytes of a record with all that belongs to it.
inline std::size_t record_size(const Record& record) {
  if (record.kind == RecordKind::kRegister) return sizeof(Record);
  return sizeof(Record) + (record.kind == RecordKind::kMessage ? padded(record.slot) : 0) + padded(record.bytes);
}

// Calls visit(record, first byte behind it) for each record of stream[0..bytes).
template <typename Visit>
void for_each_record(const std::byte* stream, std::size_t bytes, Visit&& visit) {
  for (const std::byte* const end = stream + bytes; stream < end;) {
    const Record& record = *reinterpret_cast<const Record*>(stream);
    visit(record, stream + sizeof(Record));
    stream += record_size(record);
  }
}

}  // namespace shadowib::bsp
