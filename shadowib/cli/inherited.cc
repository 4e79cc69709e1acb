#include "shadowib/cli/inherited.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "hooks/raw/proc.h"

namespace shadowib::cli {
namespace {

constexpr std::size_t kMostNamed = 8;  // of a longer list
constexpr unsigned kMemoryMajor = 1, kTtyMajor = 5;

bool is_copy_of_standard_stream(const struct stat& st) {
  for (int stream = 0; stream < 3; ++stream) {
    struct stat own {};
    if (::fstat(stream, &own) != 0 || (own.st_mode & S_IFMT) != (st.st_mode & S_IFMT)) continue;
    if (S_ISCHR(st.st_mode) ? own.st_rdev == st.st_rdev : own.st_ino == st.st_ino && own.st_dev == st.st_dev)
      return true;
  }
  return false;
}

bool is_pseudo_device(const struct stat& st) {
  return major(st.st_rdev) == kMemoryMajor || st.st_rdev == makedev(kTtyMajor, 0);  // null and the like, /dev/tty
}

// Nobody has the other end any more: a restart makes such a pipe or connection again.
bool is_cut_off(int fd, bool writes) {
  pollfd end{fd, static_cast<short>(writes ? POLLOUT : POLLIN), 0};
  ::poll(&end, 1, 0);
  return (end.revents & (POLLHUP | POLLERR)) != 0;
}

bool leads_somewhere(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  return ::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 && !is_cut_off(fd, false);
}

bool is_launchers(int fd) {
  const char* const number = std::getenv("PMI_FD");
  return number != nullptr && std::atoi(number) == fd;
}

bool is_remade(const std::string& target) {
  for (const char* kind : {"[eventfd]", "[timerfd]", "[signalfd]", "[eventpoll]"})
    if (target == std::string("anon_inode:") + kind) return true;
  return false;
}

enum class Fate { kRestored, kTaken, kRefused };

Fate fate_of(int fd, const struct stat& st, const std::string& target) {
  if (S_ISFIFO(st.st_mode)) {
    const int mode = ::fcntl(fd, F_GETFL) & O_ACCMODE;
    const bool plain = target.starts_with("pipe:") && mode != O_RDWR;
    return plain && !is_cut_off(fd, mode == O_WRONLY) ? Fate::kTaken : Fate::kRestored;
  }
  if (S_ISSOCK(st.st_mode)) return leads_somewhere(fd) && !is_launchers(fd) ? Fate::kTaken : Fate::kRestored;
  if (S_ISCHR(st.st_mode)) return is_pseudo_device(st) ? Fate::kRestored : Fate::kRefused;
  if (S_ISDIR(st.st_mode)) return st.st_nlink == 0 ? Fate::kRefused : Fate::kRestored;
  const bool file = S_ISREG(st.st_mode) && target.starts_with('/');
  return file || is_remade(target) ? Fate::kRestored : Fate::kRefused;
}

std::string identity_of(const InheritedDescriptor& d) {
  return std::to_string(d.device) + ":" + std::to_string(d.inode);
}

std::string name_all(const std::vector<InheritedDescriptor>& descriptors) {
  std::string text = descriptors.size() == 1 ? "descriptor " : "descriptors ";
  for (std::size_t i = 0; i < descriptors.size() && i < kMostNamed; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(descriptors[i].fd) + " (" + descriptors[i].target + ")";
  if (descriptors.size() > kMostNamed) text += " and " + std::to_string(descriptors.size() - kMostNamed) + " more";
  return text + (descriptors.size() == 1 ? " is" : " are") + " inherited ";
}

std::string remedy_for(const std::vector<InheritedDescriptor>& descriptors) {
  return "If CMD does not need " + std::string(descriptors.size() == 1 ? "it" : "them") +
         ": shadowib run --close-inherited, or " + std::to_string(descriptors.front().fd) + ">&- in the shell\n";
}

}  // namespace

std::vector<InheritedDescriptor> find_inherited() {
  std::vector<int> numbers;
  std::vector<InheritedDescriptor> found, kept;
  if (descriptors::list_numbers("/proc/self/fd", &numbers) != 0) return found;
  for (const int fd : numbers) {
    struct stat st {};
    const int flags = ::fcntl(fd, F_GETFD);
    if (fd <= 2 || flags < 0 || (flags & FD_CLOEXEC) != 0 || ::fstat(fd, &st) != 0) continue;
    const std::string target = descriptors::descriptor_target(fd);
    const Fate fate = fate_of(fd, st, target);
    if (fate != Fate::kRestored && !is_copy_of_standard_stream(st))
      found.push_back({fd, target, fate == Fate::kTaken, st.st_dev, st.st_ino});
  }
  // Both ends of a pipe, as a make's jobserver is passed on: a restart makes it again.
  const auto has_both_ends = [&found](const InheritedDescriptor& d) {
    return std::any_of(found.begin(), found.end(), [&d](const InheritedDescriptor& other) {
      return d.target.starts_with("pipe:") && other.inode == d.inode && other.device == d.device &&
             ((::fcntl(other.fd, F_GETFL) ^ ::fcntl(d.fd, F_GETFL)) & O_ACCMODE) != 0;
    });
  };
  std::copy_if(found.begin(), found.end(), std::back_inserter(kept),
               [&](const InheritedDescriptor& d) { return !has_both_ends(d); });
  return kept;
}

std::string inherited_list(const std::vector<InheritedDescriptor>& descriptors) {
  std::string list;
  for (const InheritedDescriptor& d : descriptors)
    if (d.taken) list += (list.empty() ? "" : ",") + identity_of(d);
  return list;
}

std::string describe_inherited(const std::vector<InheritedDescriptor>& descriptors, const std::string& told) {
  std::vector<InheritedDescriptor> taken, refused;
  for (const InheritedDescriptor& d : descriptors)
    if (("," + told + ",").find("," + identity_of(d) + ",") == std::string::npos)
      (d.taken ? taken : refused).push_back(d);
  std::string text;
  if (!taken.empty())
    text += "shadowib: " + name_all(taken) +
            "and may lead out of the job: after a restart nobody is at the other end. " + remedy_for(taken);
  if (!refused.empty())
    text += "shadowib: " + name_all(refused) + "and cannot be checkpointed: every checkpoint is refused. " +
            remedy_for(refused);
  return text;
}

}  // namespace shadowib::cli
