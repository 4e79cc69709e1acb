// Files, devices, pipes, eventfds, and stand-ins for standard streams.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>
#include <utility>

#include "hooks/imager/descriptors/match/shared_descriptions.h"
#include "hooks/imager/descriptors/open_object.h"
#include "hooks/imager/descriptors/remake/lock_holders.h"
#include "hooks/imager/descriptors/remake/restore.h"
#include "shadowib/base/log.h"

namespace shadowib::descriptors {
namespace {

std::string own_path(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

// A new open file description of a pipe whose scaffold holds both ends, so no open can block.
int reopen_pipe(const PipeLink& link, int scaffold, int flags) {
  const Object& any = link.holders.front().object();
  std::string path = any.kind == Kind::kFifo ? any.path : own_path(scaffold);
  int fd = ::open(path.c_str(), (flags & O_ACCMODE) | O_NONBLOCK | O_CLOEXEC);
  if (fd >= 0) set_status_flags(fd, flags);
  return fd;
}

Status open_scaffold(Plan* plan, const Object& any, int ends[2]) {
  if (any.kind == Kind::kPipe) {
    if (::pipe2(ends, O_CLOEXEC) != 0) return restore_failure(Code::kIo, any, "pipe2 fails", errno);
    plan->own(ends[0]);
    plan->own(ends[1]);
    return {};
  }
  ends[0] = ends[1] = ::open(any.path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
  if (ends[0] < 0)
    return restore_failure(errno == ENOENT ? Code::kNotFound : Code::kRefused, any, "it cannot be opened", errno);
  plan->own(ends[0]);
  struct stat st {};
  if (::fstat(ends[0], &st) != 0 || !S_ISFIFO(st.st_mode))
    return restore_failure(Code::kRefused, any, "there is no FIFO of that name any more", 0);
  return {};
}

Status fill_pipe(const PipeLink& link, int write_end) {
  std::uint64_t capacity = 0;
  for (const Holder& h : link.holders) capacity = std::max(capacity, h.object().capacity);
  if (capacity > 0) ::fcntl(write_end, F_SETPIPE_SZ, static_cast<int>(std::min<std::uint64_t>(capacity, 1u << 30)));
  if (link.contents == nullptr) return {};
  set_status_flags(write_end, O_NONBLOCK | (link.packets ? O_DIRECT : 0));
  for (const Message& m : link.contents->queue) {
    ssize_t n = ::write(write_end, m.data.data(), m.data.size());
    if (n != static_cast<ssize_t>(m.data.size()))
      return restore_failure(Code::kRefused, *link.contents,
                             "its contents do not fit; raise fs.pipe-max-size or fs.pipe-user-pages-soft",
                             n < 0 ? errno : 0);
  }
  set_status_flags(write_end, 0);
  return {};
}

// Two members that inherited one end share its description: told by equal flags, as nothing else tells.
Status restore_pipe(Plan* plan, const PipeLink& link) {
  int ends[2];
  SHADOWIB_TRY(open_scaffold(plan, link.holders.front().object(), ends));
  SHADOWIB_TRY(fill_pipe(link, ends[1]));
  std::map<std::pair<int, int>, int> made;  // flags, how many of these the member had before
  std::map<std::pair<const Table*, int>, int> seen;
  for (const Holder& h : link.holders) {
    int flags = h.object().flags & (O_ACCMODE | kSettable);
    auto [at, added] = made.emplace(std::make_pair(flags, seen[{h.table, flags}]++), -1);
    if (added) {
      at->second = reopen_pipe(link, ends[0], flags);
      if (at->second < 0)
        return restore_failure(Code::kPermission, h.object(), "opening it through /proc/self/fd fails", errno);
      plan->own(at->second);
    }
    plan->sources[&h.object()] = at->second;
  }
  return {};
}

int stand_in(const Plan& plan, const Object& object, int stream) {
  int own = plan.standard[stream];
  if (own < 0) return ::open("/dev/null", O_RDWR | O_CLOEXEC);
  struct stat st {};
  int flags = ::fcntl(own, F_GETFL);
  // A description of its own where its O_NONBLOCK differs: the command's terminal must not change for others.
  if (((flags ^ object.flags) & O_NONBLOCK) != 0 && ::fstat(own, &st) == 0 &&
      (S_ISCHR(st.st_mode) || S_ISFIFO(st.st_mode))) {
    int fd = ::open(own_path(own).c_str(), (flags & O_ACCMODE) | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0) {
      set_status_flags(fd, object.flags & ~O_DIRECT);
      return fd;
    }
  }
  return ::fcntl(own, F_DUPFD_CLOEXEC, 3);
}

}  // namespace

void Plan::set_socket(std::uint64_t inode, int fd) {
  for (const auto& [member, table] : tables)
    for (const Object& o : table.objects)
      if (o.inode == inode && o.domain != 0) sources[&o] = fd;
}

Status restore_standard_streams(Plan* plan) {
  for (const auto& [member, table] : plan->tables)
    for (std::uint32_t i = 0; i < table.objects.size(); ++i) {
      const Object& o = table.objects[i];
      if (plan->links.in_ptys.contains(&o)) continue;
      auto outside = plan->links.outside.find(&o);
      int stream = outside != plan->links.outside.end() ? outside->second : o.kind == Kind::kTerminal ? o.stdio : -1;
      if (stream < 0) continue;
      if (stream == kInheritedStream) {
        int fd = -1;
        SHADOWIB_TRY(restore_inherited(table, i, &fd));
        plan->sources[&o] = plan->own(fd);
        continue;
      }
      int fd = stand_in(*plan, o, stream);
      if (fd < 0) return restore_failure(Code::kIo, o, "the command's own standard stream cannot be used", errno);
      plan->sources[&o] = plan->own(fd);
      if (!o.queue.empty())
        log_line(LogLevel::kWarn,
                 "restart: unread input of member %u on %s, whose writer is outside the job, is dropped", member,
                 describe_object(o).c_str());
    }
  return {};
}

// The locks of the description. Where the command itself has inherited one of them (flock FILE shadowib restart ...)
// the member gets the command's description.
Status take_description_locks(const Object& o, int fd) {
  for (const FileLock& lock : o.locks) {
    if (lock.kind == LockKind::kRecord) continue;  // the process's: taken last, by finish_descriptors()
    const int error = take_lock(fd, lock);
    if (error == 0) continue;
    const int own = error == EAGAIN ? inherited_flock(fd, lock) : -1;
    if (own < 0) return lock_failure(o, lock, fd, error);
    ::dup3(own, fd, O_CLOEXEC);
  }
  return {};
}

// Members that inherited one open file (standard output of a shell's group) share its offset: with one offset each
// they would overwrite each other. Members that opened a file by themselves have one offset each: with one for all
// they would write, or read, in each other's places. Where the kernel has not told, only a file open for writing is
// taken for one; reading has nothing to lose by its own offset. Two members that show one flock, taken by one
// process, have it by one description, open for reading or not.
class SharedFiles {
 public:
  explicit SharedFiles(const Plan& plan) {
    for (const auto* tables : {&plan.tables, &plan.elsewhere})
      for (const auto& [member, table] : *tables) descriptions_.add(table);
  }

  // The descriptor made for another member, or -1. nullptr: it is this member's alone.
  int* find(const Table& table, std::uint32_t object) {
    const Object& o = table.objects[object];
    if (!has_shared_offset(o)) return nullptr;
    SharedDescriptions::Name name = descriptions_.name_of(table, object);
    const bool written = o.kind != Kind::kDirectory && (o.flags & O_ACCMODE) != O_RDONLY;
    if (!name.told && !written && !name.likeness.has_flock) return nullptr;
    return &made_.emplace(std::move(name), -1).first->second;
  }

 private:
  SharedDescriptions descriptions_;
  std::map<SharedDescriptions::Name, int> made_;
};

// Segments by their files, which members that have not mapped them have open as well.
class MemoryOpener {
 public:
  explicit MemoryOpener(const Plan& plan) : plan_(plan) {
    for (const auto& [member, table] : plan.tables)
      for (std::uint32_t i = 0; i < table.segments.size(); ++i)
        if (const Segment& s = table.segments[i]; s.kind != SegmentKind::kSystemV)
          by_file_.try_emplace({table.kernel, s.device, s.inode}, member, i);
  }
  bool has(const Table& table, const Object& o) const { return by_file_.contains({table.kernel, o.device, o.inode}); }
  // A new open file description of it.
  Status open(const Table& table, const Object& o, int* fd) const {
    const auto [member, segment] = by_file_.at({table.kernel, o.device, o.inode});
    const int source = plan_.memory ? plan_.memory(member, segment) : -1;
    if (source < 0) return restore_failure(Code::kInternal, o, "its content is not at hand", 0);
    *fd = ::open(own_path(source).c_str(), (o.flags & kOpenFlags & ~O_DIRECTORY) | O_CLOEXEC);
    if (*fd < 0) return restore_failure(Code::kRefused, o, "opening it through /proc/self/fd fails", errno);
    if ((o.flags & O_PATH) != 0) return {};
    set_status_flags(*fd, o.flags);
    if (::lseek(*fd, static_cast<off_t>(o.offset), SEEK_SET) >= 0 || o.offset == 0) return {};
    ::close(*fd);
    return restore_failure(Code::kRefused, o, "its offset cannot be set", errno);
  }

 private:
  const Plan& plan_;
  std::map<std::tuple<std::string, std::uint64_t, std::uint64_t>, std::pair<std::uint32_t, std::uint32_t>> by_file_;
};

// `job >out; restart >out`: the shell may have emptied the file.
int own_stream(const Plan& plan, const Table& table, std::uint32_t object) {
  const Object& o = table.objects[object];
  struct stat recorded {
  }, own{};
  if (o.kind != Kind::kFile || (o.flags & O_ACCMODE) == O_RDONLY || ::stat(o.path.c_str(), &recorded) != 0) return -1;
  for (const Descriptor& d : table.descriptors) {
    if (d.fd > 2) break;
    const int fd = plan.standard[d.fd];
    if (d.object != object || fd < 0 || ::fstat(fd, &own) != 0) continue;
    const bool writable = (::fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
    if (writable && own.st_dev == recorded.st_dev && own.st_ino == recorded.st_ino) return fd;
  }
  return -1;
}

Status restore_files(Plan* plan) {
  SharedFiles shared(*plan);
  const MemoryOpener memory(*plan);
  for (const auto& [member, table] : plan->tables)
    for (std::uint32_t i = 0; i < table.objects.size(); ++i) {
      const Object& o = table.objects[i];
      const bool in_memory = o.kind == Kind::kMemory || (o.kind == Kind::kFile && memory.has(table, o));
      bool opened = in_memory || o.kind == Kind::kFile || o.kind == Kind::kDirectory || o.kind == Kind::kDevice;
      if (!opened || o.path.starts_with("/proc/") || plan->links.in_ptys.contains(&o)) continue;
      int* made = shared.find(table, i);
      if (made != nullptr && *made >= 0) {
        plan->sources[&o] = *made;
        continue;
      }
      int fd = in_memory ? -1 : own_stream(*plan, table, i);
      if (fd >= 0) fd = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
      Status status = fd >= 0 ? Status() : in_memory ? memory.open(table, o, &fd) : open_path(o, &fd);
      if (!status.ok() && o.path == "/dev/tty") {  // no controlling terminal here: the command's own input will do
        fd = stand_in(*plan, o, 0);
        status = {};
      }
      SHADOWIB_TRY(status);
      plan->sources[&o] = plan->own(fd);
      if (made != nullptr) *made = fd;
      SHADOWIB_TRY(take_description_locks(o, fd));
    }
  return {};
}

Status restore_pipes(Plan* plan) {
  for (const auto& [key, link] : plan->links.pipes)
    if (!plan->is_outside(link.holders.front().object())) SHADOWIB_TRY(restore_pipe(plan, link));
  return {};
}

Status restore_eventfds(Plan* plan) {
  std::map<std::uint64_t, int> by_identity;
  for (const auto& [member, table] : plan->tables)
    for (const Object& o : table.objects) {
      if (o.kind != Kind::kEventfd) continue;
      auto known = by_identity.find(o.identity);
      if (o.identity != 0 && known != by_identity.end()) {
        plan->sources[&o] = known->second;
        continue;
      }
      int fd = ::eventfd(0, EFD_CLOEXEC | static_cast<int>(o.kind_flags & EFD_SEMAPHORE));
      if (fd < 0) return restore_failure(Code::kIo, o, "eventfd fails", errno);
      plan->sources[&o] = by_identity[o.identity] = plan->own(fd);
      set_status_flags(fd, O_NONBLOCK);
      if (o.count != 0 && ::write(fd, &o.count, sizeof(o.count)) != sizeof(o.count))
        return restore_failure(Code::kCorrupt, o, "its count is out of range", errno);
      set_status_flags(fd, o.flags);
    }
  return {};
}

}  // namespace shadowib::descriptors
