// Descriptors without a file: eventfd, timerfd, signalfd, epoll. Everything else of this sort is refused by name.
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "hooks/imager/descriptors/capture/capture.h"
#include "hooks/imager/descriptors/capture/refuse.h"
#include "hooks/raw/proc.h"
#include "shadowib/base/descriptors.h"

namespace shadowib::descriptors {
namespace {

// Before Linux 6.5 fdinfo does not tell EFD_SEMAPHORE: a read does, since one of a semaphore takes 1. The count is
// put back; every thread is parked, so nobody sees it move.
bool probe_semaphore(int fd, std::uint64_t count, int flags) {
  std::uint64_t two = 2, got = 0;
  if (count + 2 < count || count + 2 == ~0ull) return false;
  ::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  bool semaphore = false;
  if (::write(fd, &two, sizeof(two)) == sizeof(two) && ::read(fd, &got, sizeof(got)) == sizeof(got)) {
    semaphore = got == 1;
    // What must be left is `count`: a semaphore has count + 1, a counter has nothing.
    if (semaphore) {
      if (::read(fd, &got, sizeof(got)) != sizeof(got)) semaphore = true;
    } else if (count != 0 && ::write(fd, &count, sizeof(count)) != sizeof(count)) {
      semaphore = false;
    }
  }
  ::fcntl(fd, F_SETFL, flags);
  return semaphore;
}

// "(12, 345)": seconds and nanoseconds.
std::uint64_t parse_timespec(std::string_view text) {
  if (text.empty()) return 0;
  std::size_t comma = text.find(',');
  if (comma == std::string_view::npos || comma + 2 > text.size()) return 0;
  return parse_number(text.substr(1), 10) * 1000000000u + parse_number(text.substr(comma + 2), 10);
}

// The kernel arms a periodic timer again when its expirations are read or its setting is asked for; until then fdinfo
// shows it as disarmed.
void rearm_timer(int fd) {
  itimerspec setting{};
  ::timerfd_gettime(fd, &setting);
}

Status capture_timerfd(int fd, Object* object) {
  object->kind = Kind::kTimerfd;
  rearm_timer(fd);
  std::string info;
  SHADOWIB_TRY(read_fdinfo(fd, &info));
  std::string_view value;
  if (info_field(info, "clockid", &value)) object->clock = static_cast<int>(parse_number(value, 10));
  if (info_field(info, "ticks", &value)) object->count = parse_number(value, 10);
  if (info_field(info, "settime flags", &value))
    object->kind_flags = static_cast<std::uint32_t>(parse_number(value, 8));
  if (info_field(info, "it_value", &value)) object->value_ns = parse_timespec(value);
  if (info_field(info, "it_interval", &value)) object->interval_ns = parse_timespec(value);
  // An absolute time on the wall clock stays that time; others go on with what was left.
  bool wall = object->clock == CLOCK_REALTIME || object->clock == CLOCK_REALTIME_ALARM;
  if (!wall || (object->kind_flags & TFD_TIMER_ABSTIME) == 0) object->kind_flags = 0;
  if (object->kind_flags != 0 && object->value_ns != 0) {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    object->value_ns +=
        static_cast<std::uint64_t>(now.tv_sec) * 1000000000u + static_cast<std::uint64_t>(now.tv_nsec);
  }
  return {};
}

// The name between the brackets of "anon_inode:[name]", which is "anon_inode:name" for some.
std::string anonymous_name(const std::string& target) {
  std::string name = target.substr(sizeof("anon_inode:") - 1);
  if (name.size() > 2 && name.front() == '[' && name.back() == ']') name = name.substr(1, name.size() - 2);
  return name;
}

bool targets_number(int epoll, int fd, std::uint64_t inode, std::uint64_t device) {
  struct kcmp_epoll_slot slot {};
  slot.efd = static_cast<unsigned>(epoll);
  slot.tfd = static_cast<unsigned>(fd);
  long self = ::syscall(SYS_getpid);
  long order = ::syscall(SYS_kcmp, self, self, KCMP_EPOLL_TFD, static_cast<unsigned long>(fd), &slot);
  if (order >= 0) return order == 0;
  struct stat st {};
  if (::fstat(fd, &st) != 0) return false;
  // fdinfo prints the kernel's own form of the device number: minor in the low 20 bits.
  std::uint64_t kernel_device = (static_cast<std::uint64_t>(major(st.st_dev)) << 20) | minor(st.st_dev);
  return st.st_ino == inode && kernel_device == device;
}

// "tfd:       7 events:       1d data:                7  pos:0 ino:abc sdev:d": the number after `name`.
std::uint64_t entry_number(std::string_view line, std::string_view name, int base) {
  std::size_t at = line.find(name);
  if (at == std::string_view::npos) return 0;
  at = line.find_first_not_of(' ', at + name.size());
  return at == std::string_view::npos ? 0 : parse_number(line.substr(at), base);
}

}  // namespace

bool is_eventfd(std::string_view info) {
  std::string_view value;
  return info_field(info, "eventfd-count", &value);
}

Status capture_eventfd(int fd, std::string_view info, Object* object) {
  object->kind = Kind::kEventfd;
  std::string_view value;
  if (!info_field(info, "eventfd-count", &value))
    return refuse(fd, "eventfd", "the kernel does not tell its count; mount /proc");
  object->count = parse_number(value, 16);
  // Ids count from 0; one is added so that 0 means unknown.
  if (info_field(info, "eventfd-id", &value)) object->identity = parse_number(value, 10) + 1;
  bool semaphore = info_field(info, "eventfd-semaphore", &value) ? parse_number(value, 10) != 0
                                                                 : probe_semaphore(fd, object->count, object->flags);
  object->kind_flags = semaphore ? EFD_SEMAPHORE : 0;
  return {};
}

Status capture_anonymous(int fd, const std::string& target, std::string_view info, Object* object) {
  const std::string name = anonymous_name(target);
  if (name == "eventfd") return capture_eventfd(fd, info, object);
  if (name == "timerfd") return capture_timerfd(fd, object);
  if (name == "eventpoll") {
    object->kind = Kind::kEpoll;
    return {};
  }
  if (name == "signalfd") {
    object->kind = Kind::kSignalfd;
    std::string_view mask;
    if (info_field(info, "sigmask", &mask)) object->count = parse_number(mask, 16);
    return {};
  }
  if (name == "infinibandevent" || name == "rdma_cm" || name == "uverbs")
    return refuse(fd, ("unshadowed uverbs descriptor, " + name).c_str(),
                  "it was opened past shadowib; open devices with libibverbs under shadowib run");
  return refuse(fd, name.c_str(), "objects of this type cannot be saved; close it before the checkpoint");
}

Status capture_epoll_entries(int fd, Object* object) {
  std::string info;
  SHADOWIB_TRY(read_fdinfo(fd, &info));
  std::string_view text = info;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with("tfd:")) continue;
    EpollEntry entry{static_cast<int>(entry_number(line, "tfd:", 10)),
                     static_cast<std::uint32_t>(entry_number(line, "events:", 16)), entry_number(line, "data:", 16)};
    if (is_owned_descriptor(entry.fd) || entry.data == kOwnedEntry) continue;
    if (!targets_number(fd, entry.fd, entry_number(line, "ino:", 16), entry_number(line, "sdev:", 16))) {
      char why[160];
      std::snprintf(
          why, sizeof(why),
          "it watches a file that was descriptor %d and is not any more; remove it with EPOLL_CTL_DEL first",
          entry.fd);
      return refuse(fd, "epoll", why);
    }
    object->entries.push_back(entry);
  }
  return {};
}

}  // namespace shadowib::descriptors
