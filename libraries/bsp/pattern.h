// Where numbers lie in registered memory, so that a process of another byte order can read them.
//
// Memory is a row of units of equal form, as elements of an array. Only the numbers' places and widths count: all
// processes of a job lay values out alike but for the order of their bytes. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shadowib::bsp {

class Pattern {
 public:
  Pattern() = default;
  // Numbers of a unit are added next. The memory begins `phase` bytes behind the begin of a unit.
  Pattern(std::uint64_t unit, std::uint64_t phase) : unit_(unit), phase_(phase) {}
  // `count` numbers of `width` bytes each, in a row that begins at `offset`, behind those of the call before.
  void add(std::uint64_t offset, std::uint32_t width, std::uint64_t count) {
    runs_.push_back({offset, width, count});
  }

  bool is_known() const { return unit_ > 0; }
  // True if a number begins before byte `at` of the memory, and ends behind it.
  bool splits(std::uint64_t at) const;
  // True if the first `bytes` bytes have the same numbers.
  bool agrees(const Pattern& other, std::uint64_t bytes) const;
  // Turns the numbers of data[0..bytes), which belongs at byte `at` of the memory, into the other byte order.
  void turn(std::uint64_t at, std::byte* data, std::uint64_t bytes) const;

  // As other processes are told, in a form of its own. decode() returns false if that is none.
  std::vector<std::byte> encode() const;
  bool decode(const std::byte* told, std::size_t bytes);

 private:
  struct Run {
    std::uint64_t offset, width, count;
    std::uint64_t end() const { return offset + width * count; }
  };
  struct Place {
    std::uint64_t begin, width, count;  // of the memory; 0 numbers if no more come
  };

  // The numbers from the one on that `at` lies in, or else from the next one on.
  Place next(std::uint64_t at) const;

  std::uint64_t unit_ = 0, phase_ = 0;
  std::vector<Run> runs_;
};

// Turns each of data[0..bytes), numbers of `width` bytes: 1, 2, 4, 8 or 16.
void turn_numbers(std::byte* data, std::uint64_t width, std::uint64_t bytes);

}  // namespace shadowib::bsp
