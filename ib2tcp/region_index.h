// Memory regions by address: which of them touch some memory, without a look at each.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <boost/intrusive/set.hpp>
#include <cstddef>
#include <cstdint>

namespace shadowib::ib2tcp {

struct Mr;

// The place of a region in the index. Its address and length do not change while it has one.
struct RegionPlace {
  Mr* region = nullptr;
  std::uintptr_t begin = 0, end = 0;
  unsigned size_class = 0;  // end - begin is at most 1 << size_class, and more than half of that
  boost::intrusive::set_member_hook<> hook;
  bool operator<(const RegionPlace& other) const {
    return size_class != other.size_class ? size_class < other.size_class : begin < other.begin;
  }
};

// Regions are sorted by size class, then by address. A region that reaches into a range begins in it, or before it by
// no more than the size of its class. Few others begin there: two of a class, if regions do not overlap. Under the
// engine's lock.
class RegionIndex {
 public:
  // No part of an empty region is ever touched: it has no place.
  void add(RegionPlace& place, Mr* region, const void* address, std::size_t bytes) {
    if (bytes == 0) return;
    place.region = region;
    place.begin = reinterpret_cast<std::uintptr_t>(address);
    place.end = place.begin + bytes;
    place.size_class = static_cast<unsigned>(std::bit_width(bytes - 1));
    places_.insert(place);
    ++count_[place.size_class];
  }
  void remove(RegionPlace& place) {
    if (!place.hook.is_linked()) return;
    --count_[place.size_class];
    places_.erase(places_.iterator_to(place));
  }
  // Calls function(region) for each that has a byte of [begin, end). Returns how many it has looked at.
  template <typename Function>
  std::size_t for_each_touching(std::uintptr_t begin, std::uintptr_t end, Function function) {
    std::size_t looked = 0;
    RegionPlace from;
    for (unsigned c = 0; c < count_.size(); ++c) {
      if (count_[c] == 0) continue;
      from.size_class = c;
      from.begin = c < 64 && begin > (std::uintptr_t{1} << c) ? begin - (std::uintptr_t{1} << c) : 0;
      auto it = places_.lower_bound(from);
      while (it != places_.end() && it->size_class == c && it->begin < end) {
        RegionPlace& place = *it++;
        ++looked;
        if (place.end > begin) function(*place.region);
      }
    }
    return looked;
  }

 private:
  using Places = boost::intrusive::multiset<
      RegionPlace,
      boost::intrusive::member_hook<RegionPlace, boost::intrusive::set_member_hook<>, &RegionPlace::hook>>;
  Places places_;
  std::array<std::uint32_t, 65> count_{};  // by class
};

}  // namespace shadowib::ib2tcp
