// Who else on this machine has a file mapped or open, as far as /proc shows.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "hooks/imager/shared_memory.h"
#include "hooks/raw/proc.h"

namespace shadowib {
namespace {

bool has_mapped(int pid, const std::set<FileNumbers>& files, FileNumbers* file) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/maps", pid);
  std::vector<descriptors::SharedMapping> mappings;
  if (descriptors::read_shared_mappings(path, &mappings) != 0) return false;
  for (const auto& m : mappings)
    if (!m.path.starts_with("/SYSV") && files.contains({m.device, m.inode})) {
      *file = {m.device, m.inode};
      return true;
    }
  return false;
}

bool has_open(int pid, const std::set<FileNumbers>& files, FileNumbers* file) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd", pid);
  std::vector<int> fds;
  if (descriptors::list_numbers(path, &fds) != 0) return false;
  for (const int fd : fds) {
    std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
    struct stat st {};
    if (::stat(path, &st) != 0 || !files.contains({st.st_dev, st.st_ino})) continue;
    *file = {st.st_dev, st.st_ino};
    return true;
  }
  return false;
}

}  // namespace

void find_user(const std::set<FileNumbers>& files, const std::function<bool(std::uint64_t, int)>& knows,
               FileNumbers* file, std::string* who) {
  who->clear();
  std::vector<int> processes;
  if (files.empty() || descriptors::list_numbers("/proc", &processes) != 0) return;
  for (const int pid : processes) {
    if (pid == ::getpid() || (!has_mapped(pid, files, file) && !has_open(pid, files, file))) continue;
    std::uint64_t space = 0;
    int inner = pid;
    std::string comm;
    if (!descriptors::names_of(pid, &space, &inner, &comm) || knows(space, inner)) continue;
    *who = "process " + std::to_string(pid) + " (" + comm + ")";
    return;
  }
}

}  // namespace shadowib
