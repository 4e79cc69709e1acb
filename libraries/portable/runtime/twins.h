// Pairs names of an image with those of the program: functions, variables and allocations, which are unique only by
// module, file and name together. Names of C++ are paired by what is equal on every architecture.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "libraries/portable/image/image.h"
#include "libraries/portable/image/names.h"

namespace shadowib::portable {

inline std::string module_file(const Image& image, std::uint32_t module) {
  return module == kNoModule ? "" : image.modules[module].file;
}

using FunctionKey = std::tuple<std::string, std::string, std::string>;
using GlobalKey = std::tuple<std::uint32_t, std::string, std::string, std::string>;
using AllocationKey = std::tuple<std::string, std::string, std::string, std::uint32_t, std::uint32_t>;

inline FunctionKey function_key(const Image& image, const FunctionName& function) {
  return {module_file(image, function.module), function.file, canonical_name(function.name)};
}

inline GlobalKey global_key(const Image& image, const Object& object) {
  return {object.kind, module_file(image, object.module), object.file, canonical_name(object.name)};
}

inline AllocationKey allocation_key(const Image& image, const AllocationSite& site) {
  return {module_file(image, site.module), site.file, canonical_name(site.function), site.line, site.column};
}

constexpr std::size_t kNone = ~std::size_t{0};

// The entries of a list by their keys. Entries of one key, as f<long> and f<int>, go by their full names, or by these
// but for size_t in them. Those of one name, as two calls of malloc in one macro, go by their order.
template <typename Key>
class Twins {
 public:
  void add(Key key, const std::string& name) {
    Same& same = entries_[key];
    auto& named = same[name];
    places_.push_back({std::move(key), name, named.size()});
    named.push_back(places_.size() - 1);
  }

  // An entry that is never asked for.
  void skip() { places_.emplace_back(); }

  // The entry of `others` that is entry `index` here, or kNone. None, too, if they have more or fewer of the key, or
  // several under other names: f<uint64_t> and f<unsigned> may then be either one.
  std::size_t match(std::size_t index, const Twins& others) const {
    const Place& place = places_[index];
    auto found = others.entries_.find(place.key);
    if (found == others.entries_.end()) return kNone;
    const Same &ours = entries_.at(place.key), &theirs = found->second;
    const bool one_name = ours.size() == 1 && theirs.size() == 1;
    const bool pairs =
        std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(), [one_name](const auto& a, const auto& b) {
          return (one_name || a.first == b.first) && a.second.size() == b.second.size();
        });
    if (!pairs) return match_by_signs(place, ours, theirs);
    return (one_name ? theirs.begin()->second : theirs.at(place.name))[place.order];
  }

 private:
  using Same = std::map<std::string, std::vector<std::size_t>>;  // by the full name
  struct Place {
    Key key;
    std::string name;
    std::size_t order = 0;
  };

  // Empty if two of them cannot be told apart so.
  static Same by_signs(const Same& names) {
    Same result;
    for (const auto& [name, entries] : names)
      if (!result.emplace(unsigned_name(name), entries).second) return {};
    return result;
  }
  static std::size_t match_by_signs(const Place& place, const Same& ours, const Same& theirs) {
    const Same here = by_signs(ours), there = by_signs(theirs);
    const bool pairs = !here.empty() && std::equal(here.begin(), here.end(), there.begin(), there.end(),
                                                   [](const auto& a, const auto& b) {
                                                     return a.first == b.first && a.second.size() == b.second.size();
                                                   });
    return pairs ? there.at(unsigned_name(place.name))[place.order] : kNone;
  }
  std::map<Key, Same> entries_;
  std::vector<Place> places_;
};

}  // namespace shadowib::portable
