// Copies of memory that a device has pinned, for a saver (saver.h).
//
// The kernel copies pinned pages inside clone, one by one, while the program stands: three to six times as long as a
// memcpy to pages that are there. So this makes such pages before the program stops, copies into them while it
// stands, and keeps the kernel from copying (MADV_DONTFORK for that moment). The saver moves the copies to where the
// memory was. Memory that has no room, or is not as it was, is left to the kernel.
#pragma once

#include <cstdint>

#include "shadowib/base/status.h"

namespace shadowib {

struct MappingTable;

// Whole pages, [start, end).
struct PinnedRange {
  std::uint64_t start, end;
};

// Used by the agent thread alone. Its destructor does nothing: a restarted process has a copy of this object, and
// nothing of what it names.
class PinnedCopies {
 public:
  static constexpr std::uint64_t kWorkBytes = 64 << 10;

  // Makes room for copies of ranges [0..count), which are in ascending order and apart. It takes as much memory as
  // they are; before each 8 MiB it asks goes_on(argument). The program runs, and its children do not have the room.
  // False: there is no room, and nothing is left.
  bool prepare(const PinnedRange* ranges, std::uint32_t count, bool (*goes_on)(void*), void* argument);
  // Copies what lies there now, if it is private memory without a file and all of it is present. `table`: the
  // process's mappings; `work`: kWorkBytes. The program stands; until let_fork() it can have no children that are
  // whole. Uses no heap.
  void take(const MappingTable& table, void* work);
  void let_fork();
  // In the saver, first: it has the copies in place of the memory.
  Status put_in_place() const;
  // Gives the room back. Not in a restarted process.
  void end();
  std::uint64_t room() const;   // bytes of memory that the copies take
  std::uint64_t bytes() const;  // that were copied

 private:
  enum class Pages { kHuge, kSmall };
  struct Piece {
    std::uint64_t start, bytes, copy;
  };
  // At the beginning of the room: what take() writes is no part of the program's memory.
  struct Book {
    std::uint32_t range_count, piece_count, most_pieces;
    std::uint64_t room, copied;
  };
  struct Range {
    PinnedRange memory;
    std::uint64_t copy;
  };
  Range* ranges() const;
  Piece* pieces() const;
  long advise(int advice);
  bool populate(Pages pages, bool (*goes_on)(void*), void* argument);
  void take(std::uint64_t start, std::uint64_t end, std::uint64_t copy);

  Book* book_ = nullptr;
  std::uint64_t bytes_ = 0;  // of the room
};

}  // namespace shadowib
