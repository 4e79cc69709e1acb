#include "hooks/imager/descriptors/remake/lock_holders.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <sstream>

#include "hooks/imager/descriptors/open_object.h"
#include "hooks/raw/proc.h"

namespace shadowib::descriptors {
namespace {

bool in_the_way(const FileLock& held, const FileLock& wanted) {
  const bool is_flock = held.kind == LockKind::kFlock;
  if (held.kind == LockKind::kNone || is_flock != (wanted.kind == LockKind::kFlock)) return false;
  return (held.exclusive != 0 || wanted.exclusive != 0) && held.start <= wanted.end && wanted.start <= held.end;
}

// Processes by number, each once: "pid 77 (bash), pid 78 (cat)".
class Holders {
 public:
  void add(int pid) {
    std::string name;
    if (pid <= 0 || !seen_.insert(pid).second) return;
    (void)read_proc_file(("/proc/" + std::to_string(pid) + "/comm").c_str(), &name);
    name = name.substr(0, name.find('\n'));
    text_ += (text_.empty() ? "pid " : ", pid ") + std::to_string(pid) + (name.empty() ? "" : " (" + name + ")");
  }
  const std::string& text() const { return text_; }

 private:
  std::set<int> seen_;
  std::string text_;
};

// Whether the process has a descriptor of the file whose locks are in the way.
bool holds(int pid, std::uint64_t inode, const FileLock& wanted) {
  const std::string directory = "/proc/" + std::to_string(pid) + "/fdinfo/";
  std::vector<int> numbers;
  if (list_numbers(directory.c_str(), &numbers) != 0) return false;
  return std::any_of(numbers.begin(), numbers.end(), [&](int number) {
    std::string info;
    if (read_proc_file((directory + std::to_string(number)).c_str(), &info) != 0) return false;
    std::istringstream lines(info);
    for (std::string line; std::getline(lines, line);)
      if (LockLine parsed; line.starts_with("lock:") && parse_lock(std::string_view(line).substr(5), &parsed) &&
                           parsed.inode == inode && in_the_way(parsed.lock, wanted))
        return true;
    return false;
  });
}

std::string holders_of(int fd, const FileLock& wanted) {
  struct stat st {};
  Holders holders;
  std::vector<int> pids;
  if (::fstat(fd, &st) != 0 || list_numbers("/proc", &pids) != 0) return {};
  for (const int pid : pids)
    if (holds(pid, st.st_ino, wanted)) holders.add(pid);
  std::string text;
  if (!holders.text().empty() || read_proc_file("/proc/locks", &text) != 0) return holders.text();
  // The list of all locks tells of other users' processes, too.
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (LockLine parsed; parse_lock(line, &parsed) && parsed.inode == st.st_ino && in_the_way(parsed.lock, wanted))
      holders.add(parsed.pid);
  return holders.text();
}

}  // namespace

int try_lock(int fd, const FileLock& lock) {
  if (lock.kind == LockKind::kFlock) {
    const int error = take_lock(fd, lock);
    if (error == 0) ::flock(fd, LOCK_UN);
    return error;
  }
  // Asked as of the description, a record lock meets those of all processes.
  struct flock range = as_range(lock);
  if (::fcntl(fd, F_OFD_GETLK, &range) != 0) return errno;
  return range.l_type == F_UNLCK ? 0 : EAGAIN;
}

int inherited_flock(int fd, const FileLock& lock) {
  struct stat wanted {};
  std::vector<int> numbers;
  if (lock.kind != LockKind::kFlock || ::fstat(fd, &wanted) != 0) return -1;
  if (list_numbers("/proc/self/fd", &numbers) != 0) return -1;
  for (const int number : numbers) {
    struct stat st {};
    if (number == fd || ::fstat(number, &st) != 0) continue;
    if (st.st_ino != wanted.st_ino || st.st_dev != wanted.st_dev) continue;
    std::string info, unknown;
    std::vector<FileLock> locks;
    if (!read_fdinfo(number, &info).ok()) continue;
    read_locks(info, &locks, &unknown);
    for (const FileLock& held : locks)
      if (held.kind == LockKind::kFlock && held.exclusive >= lock.exclusive) return number;
  }
  return -1;
}

Status lock_failure(const Object& o, const FileLock& lock, int fd, int error) {
  const std::string what = "its " + describe_lock(lock) + " cannot be taken again";
  if (error != EAGAIN) return restore_failure(Code::kRefused, o, what.c_str(), error);
  const std::string holders = holders_of(fd, lock);
  const std::string why = what + ": " + (holders.empty() ? "another process" : holders) +
                          " holds a lock there; end that process, or let it unlock the file";
  return restore_failure(Code::kBusy, o, why.c_str(), 0);
}

}  // namespace shadowib::descriptors
