// Files, directories, character devices, pipes and FIFOs.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "hooks/imager/descriptors/capture/capture.h"
#include "hooks/imager/descriptors/capture/refuse.h"
#include "hooks/imager/descriptors/file_lock.h"
#include "hooks/raw/proc.h"

namespace shadowib::descriptors {
namespace {

constexpr unsigned kMemoryMajor = 1, kTtyMajor = 5, kConsoleMajor = 4;
constexpr long kMessageQueues = 0x19800202;  // MQUEUE_MAGIC
constexpr unsigned kFirstPtsMajor = 136, kLastPtsMajor = 143;

bool is_pseudo_device(dev_t rdev) {
  unsigned minor_number = minor(rdev);
  return major(rdev) == kMemoryMajor &&
         (minor_number == 3 || minor_number == 5 || (minor_number >= 7 && minor_number <= 9));
}

bool is_terminal(dev_t rdev) {
  unsigned m = major(rdev);
  return m == kConsoleMajor || (m == kTtyMajor && minor(rdev) == 1) || (m >= kFirstPtsMajor && m <= kLastPtsMajor);
}

Status refuse_nameless(int fd, const std::string& target, nlink_t links) {
  if (target.starts_with("/secretmem"))
    return refuse(fd, "secretmem", "its pages are hidden from any image; close it before the checkpoint");
  if (links == 0)
    return refuse(fd, ("deleted directory " + target).c_str(),
                  "it has no name to be opened by at a restart; close it before the checkpoint, or do not delete it");
  if (target[0] != '/')
    return refuse(fd, target.c_str(), "objects of this type cannot be saved; close it before the checkpoint");
  return {};
}

void take_offset(std::string_view info, Object* object) {
  std::string_view position;
  if (info_field(info, "pos", &position)) object->offset = parse_number(position, 10);
}

// The contents without taking them: tee(2) copies references into a pipe of ours, which is then read empty.
Status copy_contents(int fd, Object* object, std::uint64_t available) {
  int scratch[2];
  if (::pipe2(scratch, O_CLOEXEC | O_NONBLOCK) != 0)
    return refuse(fd, "pipe", "no descriptor is left for a copy of what is in it; raise ulimit -n", errno);
  if (object->capacity > 65536) ::fcntl(scratch[1], F_SETPIPE_SZ, static_cast<int>(object->capacity));
  ssize_t copied = ::tee(fd, scratch[1], available, SPLICE_F_NONBLOCK);
  std::uint64_t got = 0;
  while (copied > 0 && got < available) {
    Message message;
    message.data.resize(available - got);
    ssize_t n = ::read(scratch[0], message.data.data(), message.data.size());
    if (n <= 0) break;
    message.data.resize(static_cast<std::size_t>(n));
    got += static_cast<std::uint64_t>(n);
    object->queue.push_back(std::move(message));
  }
  raw_close(scratch[0]);
  raw_close(scratch[1]);
  if (got == available) return {};
  return refuse(fd, "pipe",
                "its contents could not be copied whole; raise fs.pipe-user-pages-soft, or empty it first");
}

}  // namespace

Status refuse_lock(int fd, const std::string& kind) {
  const bool lease = kind == "LEASE" || kind == "DELEG";
  return refuse(fd, ((lease ? "lease" : "lock " + kind) + " on " + descriptor_target(fd)).c_str(),
                lease ? "a lease cannot be taken again; give it up (F_SETLEASE, F_UNLCK) before the checkpoint"
                      : "locks of this kind cannot be taken again; unlock it before the checkpoint");
}

Status find_locks(const std::vector<int>& fds, const DescriptorInfos& infos, Locks* locks) {
  for (std::size_t i = 0; i < fds.size(); ++i) {
    std::string unknown;
    std::vector<FileLock> held;
    read_locks(infos.of(i), &held, &unknown);
    if (!unknown.empty()) return refuse_lock(fds[i], unknown);
    if (!held.empty()) (*locks)[fds[i]] = std::move(held);
  }
  return {};
}

Status capture_file(int fd, const std::string& target, std::string_view info, Object* object, Table* table) {
  object->kind = S_ISDIR(object->mode) ? Kind::kDirectory : Kind::kFile;
  object->path = target;
  struct stat st {};
  ::fstat(fd, &st);
  object->size = S_ISREG(st.st_mode) ? static_cast<std::uint64_t>(st.st_size) : 0;
  struct statfs place {};
  if (::fstatfs(fd, &place) == 0 && place.f_type == kMessageQueues)
    return refuse(fd, ("POSIX message queue " + target).c_str(),
                  "message queues cannot be saved; close it (mq_close) before the checkpoint");
  // F_NOTIFY leaves this trace: nothing else makes anybody the owner of a directory.
  if (object->kind == Kind::kDirectory && object->owner_pid != 0)
    return refuse(fd, ("directory watched by F_NOTIFY, " + target).c_str(),
                  "its watch cannot be made again; close it before the checkpoint");
  if (is_memory_file(fd, target, st, *table)) {
    take_offset(info, object);
    return capture_memory_file(fd, target, st, object, table);
  }
  SHADOWIB_TRY(refuse_nameless(fd, target, st.st_nlink));
  if (S_ISLNK(st.st_mode)) return refuse(fd, ("symbolic link " + target).c_str(), "O_PATH of a link; close it");
  struct stat named {};
  if (::stat(target.c_str(), &named) != 0 || named.st_ino != st.st_ino || named.st_dev != st.st_dev)
    return refuse(fd, ("file " + target).c_str(), "another file, or none, has that name now");
  take_offset(info, object);
  return target.starts_with("/proc/") ? capture_process_file(fd, target, object) : Status{};
}

Status capture_character_device(int fd, const std::string& target, Object* object) {
  object->path = target;
  if (is_pseudo_device(object->rdev) || object->rdev == makedev(kTtyMajor, 0)) {
    object->kind = Kind::kDevice;
    return {};
  }
  if (object->rdev == makedev(kTtyMajor, 2)) return capture_pty_master(fd, target, object);
  if (is_terminal(object->rdev)) {
    capture_terminal(fd, object);
    return {};
  }
  if (target.starts_with("/dev/infiniband/"))
    return refuse(fd, ("unshadowed RDMA device " + target).c_str(),
                  "it was opened past shadowib; open devices with libibverbs under shadowib run");
  return refuse(fd, ("device " + target).c_str(), "devices cannot be saved; close it before the checkpoint");
}

Status capture_pipe(int fd, const std::string& target, Object* object) {
  object->kind = target.starts_with("pipe:") ? Kind::kPipe : Kind::kFifo;
  object->path = target;
  object->capacity = static_cast<std::uint64_t>(std::max(0, ::fcntl(fd, F_GETPIPE_SZ)));
  if (object->kind == Kind::kFifo) {
    struct stat named {};
    if (::stat(target.c_str(), &named) != 0 || named.st_ino != object->inode || named.st_dev != object->device)
      return refuse(fd, ("FIFO " + target).c_str(), "another file, or none, has that name now");
  }
  int mode = object->flags & O_ACCMODE;
  pollfd poll_end{fd, static_cast<short>(mode == O_WRONLY ? POLLOUT : POLLIN), 0};
  ::poll(&poll_end, 1, 0);
  object->counterpart_gone = (poll_end.revents & (mode == O_WRONLY ? POLLERR : POLLHUP)) != 0 && mode != O_RDWR;
  int available = 0;
  if (mode == O_WRONLY || ::ioctl(fd, FIONREAD, &available) != 0 || available <= 0) return {};
  return copy_contents(fd, object, static_cast<std::uint64_t>(available));
}

}  // namespace shadowib::descriptors
