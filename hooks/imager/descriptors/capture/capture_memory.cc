// Shared memory of this process: what it has mapped, and what it holds by descriptors.
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "hooks/imager/descriptors/capture/capture.h"
#include "hooks/imager/descriptors/capture/launcher_directories.h"
#include "hooks/imager/descriptors/capture/refuse.h"
#include "hooks/raw/proc.h"
#include "shadowib/base/descriptors.h"

namespace shadowib::descriptors {
namespace {

constexpr std::string_view kShm = "/dev/shm/", kMemfd = "/memfd:", kGone = " (deleted)";
// Of a file without a name on a disk, whose content goes into the image.
constexpr std::uint64_t kMostOnDisk = 1ull << 30;
constexpr char kTooMuch[] =
    "a file without a name, or of a launcher's session, goes into the image, up to 1 GiB; this one has more";

std::string without_gone(const std::string& path) {
  return path.ends_with(kGone) ? path.substr(0, path.size() - kGone.size()) : path;
}

// All of it can be seen, as a file.
void take_file(const struct stat& st, bool readable, Segment* s) {
  s->device = st.st_dev;
  s->inode = st.st_ino;
  s->mode = st.st_mode;
  s->user = st.st_uid;
  s->group = st.st_gid;
  s->bytes = static_cast<std::uint64_t>(st.st_size);
  s->exact = 1;
  if (readable) s->low = 0;
}

Status judge_disk(const Segment& s, std::uint64_t bytes) {
  if (!s.may_be_on_disk() || bytes <= kMostOnDisk) return {};
  return refuse_segment(s, kTooMuch);
}

// Asked, not tried: closing a descriptor of the file would drop the process's record locks on it.
bool can_open(const char* path) { return ::faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) == 0; }

// What the mapping's file says of itself, where the kernel lets us at it (CAP_CHECKPOINT_RESTORE).
bool stat_mapping(const SharedMapping& m, struct stat* st) {
  char path[80];
  std::snprintf(path, sizeof(path), "/proc/self/map_files/%lx-%lx", m.start, m.end);
  return ::stat(path, st) == 0;
}

Status take_system_v(const SharedMapping& m, Segment* s) {
  s->kind = SegmentKind::kSystemV;
  s->id = static_cast<std::int32_t>(m.inode);
  s->key = static_cast<std::int32_t>(parse_number(std::string_view(m.path).substr(5), 16));
  struct stat space {};
  if (::stat("/proc/self/ns/ipc", &space) == 0) s->space = space.st_ino;
  s->device = m.device;
  s->inode = m.inode;
  shmid_ds info{};
  if (::shmctl(s->id, IPC_STAT, &info) != 0)
    return refuse_segment(*s, "it may not be looked at (shmctl, IPC_STAT); give its mode read permission");
  s->mode = info.shm_perm.mode & (0777 | SHM_LOCKED);
  s->removed = (info.shm_perm.mode & SHM_DEST) != 0;
  s->user = info.shm_perm.uid;
  s->group = info.shm_perm.gid;
  s->bytes = info.shm_segsz;
  s->exact = 1;
  s->attached = info.shm_nattch;
  return {};
}

// What kind of shared memory a mapping is of. False: it is none, or not for us to judge (a file that keeps its
// content, a device).
bool name_segment(const SharedMapping& m, Segment* s) {
  s->path = without_gone(m.path);
  if (m.path.starts_with("/SYSV")) return true;
  if (m.path.starts_with("/dev/zero") && m.path.ends_with(kGone)) {
    s->kind = SegmentKind::kAnonymous;
    s->path.clear();
    return true;
  }
  if (m.path.starts_with(kMemfd)) {
    s->kind = SegmentKind::kMemfd;
    s->path.erase(0, kMemfd.size());
    return true;
  }
  if (!m.path.starts_with('/') || m.path.starts_with("/[")) return false;
  const bool shm = m.path.starts_with(kShm);
  struct stat named {};
  if (::stat(m.path.c_str(), &named) == 0 && named.st_ino == m.inode) {
    s->kind = shm ? SegmentKind::kNamed : SegmentKind::kSession;
    s->path = m.path;
    return shm || is_in_launcher_directory(m.path);
  }
  s->kind = SegmentKind::kUnlinked;
  return m.path.ends_with(kGone) && (shm || !m.path.starts_with("/dev/"));
}

Status take_mapping(const SharedMapping& m, Segment* s) {
  s->mapped_device = m.device;
  if (m.path.starts_with("/SYSV")) return take_system_v(m, s);
  s->device = m.device;
  s->inode = m.inode;
  struct stat st {};
  if (s->has_name() && ::stat(s->path.c_str(), &st) == 0) {
    take_file(st, can_open(s->path.c_str()), s);
    return judge_disk(*s, static_cast<std::uint64_t>(st.st_blocks) * 512);
  }
  if (stat_mapping(m, &st)) {
    take_file(st, true, s);
    return judge_disk(*s, static_cast<std::uint64_t>(st.st_blocks) * 512);
  }
  s->mode = S_IFREG | 0600;
  s->user = ::geteuid();
  s->group = ::getegid();
  return {};
}

Segment* find_mapped(Table* table, const SharedMapping& m) {
  const bool numbered = m.path.starts_with("/SYSV");
  for (Segment& s : table->segments)
    if ((s.kind == SegmentKind::kSystemV) == numbered && s.mapped_device == m.device && s.inode == m.inode) return &s;
  return nullptr;
}

// The number of System V memory is its id, and the first of an IPC namespace is 0.
bool has_file(const SharedMapping& m) { return m.inode != 0 || m.path.starts_with("/SYSV"); }

// Memory to be shared, between shm_open(3) and mmap(2). Who logs or reads has another mode or position, who writes
// at offsets has had the file for longer: it may be large, and others' as well.
bool may_be_mapped_next(int fd, const std::string& target) {
  const int flags = ::fcntl(fd, F_GETFL);
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return target.starts_with(kShm) && just_made(time_made(fd).tv_sec, now.tv_sec) && flags >= 0 &&
         (flags & (O_ACCMODE | O_APPEND | O_PATH)) == O_RDWR && ::lseek(fd, 0, SEEK_CUR) == 0;
}

bool is_ours(const SharedMapping& m) {
  std::uintptr_t start = 0;
  std::size_t bytes = 0;
  return find_owned_mapping(m.start, m.end - m.start, &start, &bytes) && start <= m.start && start + bytes >= m.end;
}

}  // namespace

timespec time_made(int fd) {
  struct statx st {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_BTIME | STATX_CTIME, &st) != 0) return {};
  const statx_timestamp& made = (st.stx_mask & STATX_BTIME) != 0 ? st.stx_btime : st.stx_ctime;
  return {made.tv_sec, made.tv_nsec};
}

// Making room for it may take long.
bool just_made(std::int64_t made_s, std::int64_t now_s) {
  constexpr std::int64_t kMakingS = 60;
  return now_s - made_s < kMakingS && made_s - now_s < kMakingS;
}

Status capture_shared_memory(Table* table) {
  std::vector<SharedMapping> mappings;
  if (const int error = read_shared_mappings("/proc/self/maps", &mappings); error != 0)
    return Status::of(Code::kPermission, error, "cannot read /proc/self/maps (errno %d); mount /proc", error);
  for (const SharedMapping& m : mappings) {
    if (!has_file(m) || is_ours(m)) continue;
    Segment* s = find_mapped(table, m);
    if (s == nullptr) {
      Segment fresh;
      if (!name_segment(m, &fresh)) continue;
      SHADOWIB_TRY(take_mapping(m, &fresh));
      s = &table->segments.emplace_back(std::move(fresh));
    }
    if (s->kind == SegmentKind::kSystemV) ++s->attached_here;
    if (s->exact == 0) {
      s->bytes = std::max(s->bytes, m.offset + (m.end - m.start));
      SHADOWIB_TRY(judge_disk(*s, s->bytes));
    }
    s->low = std::min(s->low, m.offset);
    if (s->exact != 0) s->low = std::min(s->low, s->bytes);  // pages may be mapped behind the end
  }
  return {};
}

bool is_memory_file(int fd, const std::string& target, const struct stat& st, const Table& table) {
  if (!S_ISREG(st.st_mode) || target.starts_with("/secretmem")) return false;
  if (target.starts_with(kMemfd) || st.st_nlink == 0 || is_in_launcher_directory(target)) return true;
  // What nobody has mapped or is about to map in /dev/shm is a file like others: its content stays in it.
  return table.segment_of_file(st.st_dev, st.st_ino) >= 0 || may_be_mapped_next(fd, target);
}

Status capture_memory_file(int fd, const std::string& target, const struct stat& st, Object* object, Table* table) {
  object->kind = Kind::kMemory;
  struct statfs system {};
  if (::fstatfs(fd, &system) == 0 && system.f_type == HUGETLBFS_MAGIC)
    return refuse(fd, ("hugetlb " + target).c_str(), "it lies in huge pages; use transparent huge pages");
  int known = table->segment_of_file(st.st_dev, st.st_ino);
  for (std::size_t i = 0; known < 0 && i < table->segments.size(); ++i) {
    // Mapped already, under the number of another device (overlay and the like).
    const Segment& s = table->segments[i];
    if (s.kind == SegmentKind::kUnlinked && s.inode == st.st_ino && s.path == without_gone(target))
      known = static_cast<int>(i);
  }
  if (known < 0) {
    known = static_cast<int>(table->segments.size());
    Segment& s = table->segments.emplace_back();
    s.kind = target.starts_with(kMemfd) ? SegmentKind::kMemfd
             : st.st_nlink == 0         ? SegmentKind::kUnlinked
             : target.starts_with(kShm) ? SegmentKind::kNamed
                                        : SegmentKind::kSession;
    s.path = s.has_name() ? target : without_gone(target);
    if (s.kind == SegmentKind::kMemfd) s.path.erase(0, kMemfd.size());
  }
  Segment& s = table->segments[static_cast<std::size_t>(known)];
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  take_file(st, can_open(path), &s);
  if (const int seals = ::fcntl(fd, F_GET_SEALS); s.kind == SegmentKind::kMemfd && seals > 0)
    s.seals = static_cast<std::uint32_t>(seals);
  if (judge_disk(s, static_cast<std::uint64_t>(st.st_blocks) * 512).ok()) return {};
  return refuse(fd, describe_segment(s).c_str(), kTooMuch);
}

}  // namespace shadowib::descriptors
