// Who else on this machine has a file mapped or open, as far as /proc shows.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "hooks/imager/descriptors/proc.h"
#include "hooks/imager/shared_memory.h"

namespace shadowib {
namespace {

using descriptors::info_field;
using descriptors::parse_number;

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

// Its pid namespace, and its number in there: the last of NSpid.
bool names_of(int pid, std::uint64_t* space, int* inner, std::string* comm) {
  char path[64];
  struct stat st {};
  std::snprintf(path, sizeof(path), "/proc/%d/ns/pid", pid);
  if (::stat(path, &st) == 0) *space = st.st_ino;
  std::snprintf(path, sizeof(path), "/proc/%d/status", pid);
  std::string status;
  if (descriptors::read_proc_file(path, &status) != 0) return false;
  std::string_view value;
  if (info_field(status, "Name", &value)) *comm = value;
  if (info_field(status, "NSpid", &value))
    *inner = static_cast<int>(parse_number(value.substr(value.find_last_of(" \t") + 1), 10));
  return true;
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
    if (!names_of(pid, &space, &inner, &comm) || knows(space, inner)) continue;
    *who = "process " + std::to_string(pid) + " (" + comm + ")";
    return;
  }
}

}  // namespace shadowib
