// Pairs names of an image with those of the program: functions, variables and allocations, which are unique only by
// module, file and name together. Names of C++ are paired by what is equal on every architecture.
#pragma once

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

// The entries of a list by their keys. Entries of one key, as two calls of malloc in one macro, go by their order.
template <typename Key>
class Twins {
 public:
  void add(Key key) {
    auto& same = entries_[key];
    same.push_back(places_.size());
    places_.emplace_back(std::move(key), same.size() - 1);
  }

  // An entry that is never asked for.
  void skip() { places_.emplace_back(); }

  // The entry of `others` that is entry `index` here, or kNone. None, too, if they have more or fewer of the key.
  std::size_t match(std::size_t index, const Twins& others) const {
    const auto& [key, order] = places_[index];
    auto found = others.entries_.find(key);
    if (found == others.entries_.end() || found->second.size() != entries_.at(key).size()) return kNone;
    return found->second[order];
  }

 private:
  std::map<Key, std::vector<std::size_t>> entries_;
  std::vector<std::pair<Key, std::size_t>> places_;
};

}  // namespace shadowib::portable
