// The contents of one exchange on our own server: values, members in barriers, changes. No sockets and no waiting,
// which exchange_server.h has. Used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace shadowib {

// "a/b/c" gives "a/b"; "c" gives "".
std::string_view directory_of(std::string_view key);

class KeptKeys {
 public:
  void publish(const std::string& key, std::string value);
  // False: it is there.
  bool claim(const std::string& key, std::string value);
  // False: it was not there.
  bool remove(const std::string& key);
  // Null: it is not there.
  const std::string* find(const std::string& key) const;
  // Names directly below a directory ("": the root) that hold a value or are above one that does, sorted.
  std::vector<std::string> list(const std::string& directory) const;
  // Forgets values and barriers below a directory.
  void drop(const std::string& directory);

  // How many have entered the barrier by now, this one included.
  std::size_t enter(const std::string& barrier, const std::string& member);
  // Those that have.
  std::vector<std::string> entered(const std::string& barrier) const;

  // Another number after each change directly below a directory, never 0.
  std::uint64_t changed(std::string_view directory) const;

 private:
  static constexpr std::uint64_t kNever = 1;
  void note_change(const std::string& key);

  std::map<std::string, std::string> values_;
  std::map<std::string, std::set<std::string>> barriers_;
  std::map<std::string, std::uint64_t, std::less<>> changes_;
  std::uint64_t last_change_ = kNever;
};

}  // namespace shadowib
