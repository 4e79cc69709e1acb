#include "shadowib/exchange/kept_keys.h"

#include <utility>

namespace shadowib {
namespace {

template <typename Map>
void erase_below(Map* map, const std::string& directory) {
  // '0' follows '/': what is below stands together.
  map->erase(map->lower_bound(directory + "/"), map->lower_bound(directory + "0"));
}

}  // namespace

std::string_view directory_of(std::string_view key) {
  const std::size_t slash = key.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : key.substr(0, slash);
}

void KeptKeys::note_change(const std::string& key) { changes_[std::string(directory_of(key))] = ++last_change_; }

void KeptKeys::publish(const std::string& key, std::string value) {
  values_[key] = std::move(value);
  note_change(key);
}

bool KeptKeys::claim(const std::string& key, std::string value) {
  if (!values_.try_emplace(key, std::move(value)).second) return false;
  note_change(key);
  return true;
}

bool KeptKeys::remove(const std::string& key) {
  if (values_.erase(key) == 0) return false;
  note_change(key);
  return true;
}

const std::string* KeptKeys::find(const std::string& key) const {
  const auto at = values_.find(key);
  return at != values_.end() ? &at->second : nullptr;
}

std::vector<std::string> KeptKeys::list(const std::string& directory) const {
  const std::string above = directory.empty() ? "" : directory + "/";
  std::set<std::string> names;
  for (auto at = values_.lower_bound(above); at != values_.end() && at->first.starts_with(above);) {
    const std::size_t end = at->first.find('/', above.size());
    names.insert(at->first.substr(above.size(), end - above.size()));
    // Not each of the many below one name.
    at = end == std::string::npos ? std::next(at) : values_.lower_bound(at->first.substr(0, end) + "0");
  }
  return {names.begin(), names.end()};
}

void KeptKeys::drop(const std::string& directory) {
  erase_below(&values_, directory);
  erase_below(&barriers_, directory);
  erase_below(&changes_, directory);
  changes_.erase(directory);
}

std::size_t KeptKeys::enter(const std::string& barrier, const std::string& member) {
  std::set<std::string>& entered = barriers_[barrier];
  entered.insert(member);
  return entered.size();
}

std::vector<std::string> KeptKeys::entered(const std::string& barrier) const {
  const auto at = barriers_.find(barrier);
  return at != barriers_.end() ? std::vector<std::string>(at->second.begin(), at->second.end())
                               : std::vector<std::string>();
}

std::uint64_t KeptKeys::changed(std::string_view directory) const {
  const auto at = changes_.find(directory);
  return at != changes_.end() ? at->second : kNever;
}

}  // namespace shadowib
