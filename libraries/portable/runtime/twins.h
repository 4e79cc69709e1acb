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
  void add(Key key, const std::string& name) { entries_[std::move(key)][name].push_back(count_++); }

  // An entry that pairs with none.
  void skip() { count_++; }

  // For each entry here the one of `others` that is the same, or kNone. None, too, if they have more or fewer of the
  // key, or several under other names: f<uint64_t> and f<unsigned> may then be either one. O(n log n).
  std::vector<std::size_t> match(const Twins& others) const {
    std::vector<std::size_t> found(count_, kNone);
    for (const auto& [key, ours] : entries_) {
      const auto theirs = others.entries_.find(key);
      if (theirs == others.entries_.end()) continue;
      if (!pair(ours, theirs->second, found)) pair(by_signs(ours), by_signs(theirs->second), found);
    }
    return found;
  }

 private:
  using Names = std::map<std::string, std::vector<std::size_t>>;  // the entries of each full name

  // Returns false, and writes nothing, unless both have the same names as often. One name pairs with any other one.
  static bool pair(const Names& ours, const Names& theirs, std::vector<std::size_t>& found) {
    const bool one_name = ours.size() == 1;
    if (!std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(), [one_name](const auto& a, const auto& b) {
          return (one_name || a.first == b.first) && a.second.size() == b.second.size();
        }))
      return false;
    auto there = theirs.begin();
    for (const auto& [name, entries] : ours) {
      for (std::size_t i = 0; i < entries.size(); i++) found[entries[i]] = there->second[i];
      ++there;
    }
    return true;
  }

  // Empty if two of them cannot be told apart so.
  static Names by_signs(const Names& names) {
    Names result;
    for (const auto& [name, entries] : names)
      if (!result.emplace(unsigned_name(name), entries).second) return {};
    return result;
  }

  std::map<Key, Names> entries_;
  std::size_t count_ = 0;
};

}  // namespace shadowib::portable
