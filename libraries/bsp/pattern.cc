#include "libraries/bsp/pattern.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "libraries/bsp/little.h"

namespace shadowib::bsp {
namespace {

template <typename T>
T reversed(T value) {
  if constexpr (sizeof(T) == 2) return __builtin_bswap16(value);
  if constexpr (sizeof(T) == 4) return __builtin_bswap32(value);
  return __builtin_bswap64(value);
}

template <typename T>
void turn_all(std::byte* data, std::uint64_t bytes) {
  for (std::uint64_t i = 0; i < bytes; i += sizeof(T)) {
    T value;
    std::memcpy(&value, data + i, sizeof(T));
    value = reversed(value);
    std::memcpy(data + i, &value, sizeof(T));
  }
}

}  // namespace

void turn_numbers(std::byte* data, std::uint64_t width, std::uint64_t bytes) {
  switch (width) {
    case 2:
      return turn_all<std::uint16_t>(data, bytes);
    case 4:
      return turn_all<std::uint32_t>(data, bytes);
    case 8:
      return turn_all<std::uint64_t>(data, bytes);
    case 16:
      for (std::uint64_t i = 0; i < bytes; i += 16) std::reverse(data + i, data + i + 16);
      return;
    default:
      return;
  }
}

Pattern::Place Pattern::next(std::uint64_t at) const {
  if (runs_.empty()) return {at, 1, 0};
  const std::uint64_t within = (at + phase_) % unit_, unit = at - within;  // may be below 0, which comes right again
  auto run = std::find_if(runs_.begin(), runs_.end(), [within](const Run& one) { return within < one.end(); });
  if (run == runs_.end()) return {unit + unit_ + runs_[0].offset, runs_[0].width, runs_[0].count};
  if (within < run->offset) return {unit + run->offset, run->width, run->count};
  const std::uint64_t first = (within - run->offset) / run->width;
  return {unit + run->offset + first * run->width, run->width, run->count - first};
}

bool Pattern::splits(std::uint64_t at) const {
  const Place place = next(at);
  // A number that begins before the memory ends behind its begin.
  return place.count > 0 && place.begin != at && at - place.begin < place.width;
}

bool Pattern::agrees(const Pattern& other, std::uint64_t bytes) const {
  // Both repeat by then.
  std::uint64_t all = 0;
  if (!__builtin_mul_overflow(unit_, other.unit_, &all)) bytes = std::min(bytes, all);
  for (std::uint64_t at = 0; at < bytes;) {
    const Place one = next(at), two = other.next(at);
    const bool ends = one.count == 0 || one.begin >= bytes, also_ends = two.count == 0 || two.begin >= bytes;
    if (ends && also_ends) return true;
    if (ends != also_ends || one.begin != two.begin || one.width != two.width) return false;
    at = one.begin + one.width * std::min(one.count, two.count);
  }
  return true;
}

void Pattern::turn(std::uint64_t at, std::byte* data, std::uint64_t bytes) const {
  for (std::uint64_t done = 0; done < bytes;) {
    const Place place = next(at + done);
    const std::uint64_t skip = place.begin - (at + done);
    if (place.count == 0 || skip >= bytes - done) return;
    done += skip;
    const std::uint64_t whole = std::min(place.count, (bytes - done) / place.width) * place.width;
    if (whole == 0) return;
    turn_numbers(data + done, place.width, whole);
    done += whole;
  }
}

std::vector<std::byte> Pattern::encode() const {
  std::vector<Little<std::uint64_t>> told{unit_, phase_};
  for (const Run& run : runs_) told.insert(told.end(), {run.offset, run.width, run.count});
  const auto* bytes = reinterpret_cast<const std::byte*>(told.data());
  return {bytes, bytes + told.size() * sizeof(told[0])};
}

bool Pattern::decode(const std::byte* told, std::size_t bytes) {
  std::vector<Little<std::uint64_t>> words(bytes / sizeof(std::uint64_t));
  if (words.size() * sizeof(words[0]) != bytes || words.size() < 2 || (words.size() - 2) % 3 != 0) return false;
  std::memcpy(words.data(), told, bytes);
  *this = Pattern(words[0], words[1]);
  std::uint64_t end = 0;
  for (std::size_t i = 2; i < words.size(); i += 3) {
    const Run run{words[i], words[i + 1], words[i + 2]};
    const bool is_width = std::has_single_bit(run.width) && run.width <= 16;
    if (!is_width || run.offset < end || run.offset > unit_ || run.count > (unit_ - run.offset) / run.width)
      return false;
    runs_.push_back(run);
    end = run.end();
  }
  return unit_ > 0;
}

}  // namespace shadowib::bsp
