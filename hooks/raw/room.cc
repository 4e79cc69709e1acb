#include "hooks/raw/room.h"

#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "hooks/raw/proc.h"

namespace shadowib {
namespace {

using descriptors::info_field;
using descriptors::parse_number;
using descriptors::read_proc_file;

constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

// The number of a file that holds one; kNoLimit for "max", and where there is none.
std::uint64_t number_of(const std::string& path) {
  std::string text;
  if (read_proc_file(path.c_str(), &text) != 0 || text.empty() || text[0] < '0' || text[0] > '9') return kNoLimit;
  return parse_number(text, 10);
}

// Files of a memory cgroup. Source: the kernel's documentation, cgroup-v1/memory and cgroup-v2.
struct Names {
  const char *limit, *taken;
  std::string_view idle;  // in memory.stat
};
constexpr Names kNames[] = {{"/memory.limit_in_bytes", "/memory.usage_in_bytes", "\ntotal_inactive_file "},
                            {"/memory.max", "/memory.current", "\ninactive_file "}};

std::uint64_t idle_cache(const std::string& group, std::string_view name) {
  std::string text;
  if (read_proc_file((group + "/memory.stat").c_str(), &text) != 0) return 0;
  const std::size_t at = text.find(name);
  return at == std::string::npos ? 0 : parse_number(std::string_view(text).substr(at + name.size()), 10);
}

// The path of this process's group in a line "4:memory:/a/b", or of version 2 "0::/a/b". False: none has the memory.
bool own_group(std::string_view lines, int version, std::string* path) {
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string controllers = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    if (version == 1 ? controllers.find(",memory,") == std::string::npos : controllers != ",,") continue;
    *path = line.substr(second + 1);
    if (*path == "/") path->clear();
    return true;
  }
  return false;
}

std::uint64_t kib_of(std::string_view text, const char* name) {
  std::string_view value;
  return info_field(text, name, &value) ? parse_number(value, 10) << 10 : 0;
}

std::uint64_t of_meminfo(const char* name) {
  std::string text;
  return read_proc_file("/proc/meminfo", &text) == 0 ? kib_of(text, name) : 0;
}

// The least that `number` gives for the group `path` and those above it. `directory`: of the group that gives it.
template <typename Number>
std::uint64_t least_of(const std::string& root, std::string path, std::string* directory, const Number& number) {
  for (std::uint64_t least = kNoLimit;;) {
    if (const std::uint64_t own = number(root + path); own < least) {
      least = own;
      if (directory != nullptr) *directory = root + path;
    }
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos || path.empty()) return least;
    path.resize(slash);
  }
}

std::uint64_t least_of_own_groups(std::uint64_t (*of_group)(int, const std::string&, std::string, std::string*),
                                  std::string* directory = nullptr) {
  std::string text, path, of_version;
  std::uint64_t least = kNoLimit;
  if (read_proc_file("/proc/self/cgroup", &text) != 0) return least;
  const auto take = [&](int version, const char* root) {
    if (!own_group(text, version, &path)) return;
    const std::uint64_t room = of_group(version, root, path, &of_version);
    if (room >= least) return;
    least = room;
    if (directory != nullptr) *directory = of_version;
  };
  take(2, "/sys/fs/cgroup");
  take(1, "/sys/fs/cgroup/memory");
  return least;
}

}  // namespace

std::uint64_t cgroup_room(int version, const std::string& root, std::string path, std::string* directory) {
  const Names& names = kNames[version - 1];
  return least_of(root, std::move(path), directory, [&names](const std::string& group) {
    const std::uint64_t limit = number_of(group + names.limit), taken = number_of(group + names.taken);
    if (limit == kNoLimit || taken == kNoLimit) return kNoLimit;
    const std::uint64_t held = taken - std::min(taken, idle_cache(group, names.idle));
    return limit - std::min(limit, held);
  });
}

std::uint64_t cgroup_limit(int version, const std::string& root, std::string path, std::string* directory) {
  const Names& names = kNames[version - 1];
  return least_of(root, std::move(path), directory,
                  [&names](const std::string& group) { return number_of(group + names.limit); });
}

std::uint64_t memory_limit() { return least_of_own_groups(cgroup_limit); }

std::uint64_t host_memory() { return of_meminfo("MemTotal"); }

std::uint64_t host_memory_available() { return of_meminfo("MemAvailable"); }

std::uint64_t free_memory() { return std::min(host_memory_available(), least_of_own_groups(cgroup_room)); }

std::uint64_t free_memory(std::string* group) {
  std::string directory;
  const std::uint64_t available = host_memory_available(), room = least_of_own_groups(cgroup_room, &directory);
  struct stat info {};
  group->clear();
  // A path may be of another group in another namespace.
  if (room < available && ::stat(directory.c_str(), &info) == 0)
    *group = std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
  return std::min(available, room);
}

std::uint64_t free_space(const char* path) {
  struct statfs info {};
  if (::syscall(__NR_statfs, path, &info) != 0) return 0;
  return static_cast<std::uint64_t>(info.f_bavail) * static_cast<std::uint64_t>(info.f_bsize);
}

std::uint64_t private_memory() {
  std::string text;
  if (read_proc_file("/proc/self/status", &text) != 0) return 0;
  return kib_of(text, "RssAnon") + kib_of(text, "VmSwap");
}

std::uint64_t own_memory() {
  std::string text;
  if (read_proc_file("/proc/self/status", &text) != 0) return 0;
  return kib_of(text, "VmRSS") + kib_of(text, "VmSwap");
}

}  // namespace shadowib
