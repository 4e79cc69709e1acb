#include "hooks/imager/restore/shared_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "hooks/imager/restore/system_v.h"
#include "hooks/imager/shared_memory.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x10u
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

namespace shadowib {
namespace {

using descriptors::describe_segment;
using descriptors::Segment;
using descriptors::SegmentKind;

constexpr char kShm[] = "/dev/shm";

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Kernels from 6.3 on want to be told whether it may be executed, and may be set to deny it (vm.memfd_noexec).
int make_memfd(const std::string& name) {
  int fd = -1;
  for (const unsigned kind : {MFD_EXEC, 0u, MFD_NOEXEC_SEAL})
    if (fd < 0) fd = ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | kind);
  return fd;
}

int make_nameless(const std::string& directory) {
  const int fd = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
  std::string name = directory + "/.shadowib-XXXXXX";
  const int made = ::mkostemp(name.data(), O_CLOEXEC);
  if (made >= 0) ::unlink(name.c_str());
  return made;
}

// Where a file without a name is made: as before, or at least in memory again. A directory that is gone, like a
// launcher's when that has ended, gives way to the one that it was in; who comes to the root by that lacks a whole
// file system, and is told of what is missing.
std::string place_of(const Segment& s) {
  if (s.kind == SegmentKind::kNamed) return kShm;  // it is made there, then its directories
  std::string directory = directory_of(s.path);
  while (directory != "/" && ::access(directory.c_str(), F_OK) != 0 && errno == ENOENT)
    directory = directory_of(directory);
  if (directory == "/") return directory_of(s.path);
  if (directory.starts_with(kShm) && ::access(directory.c_str(), W_OK) != 0) directory = kShm;
  return directory;
}

Status make_directories(const Segment& s) {
  for (std::size_t at = s.kind == SegmentKind::kNamed ? sizeof(kShm) : 1;
       (at = s.path.find('/', at)) != std::string::npos; ++at)
    if (::mkdir(s.path.substr(0, at).c_str(), 0700) != 0 && errno != EEXIST)
      return shared_memory_failure(Code::kRefused, s, "its directory cannot be made", errno);
  return {};
}

bool is_same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

int make_beside(const std::string& directory, std::string* beside) {
  *beside = directory + "/.shadowib-XXXXXX";
  const int fd = ::mkostemp(beside->data(), O_CLOEXEC);
  if (fd < 0) beside->clear();
  return fd;
}

// What a job has left behind under its name gives way. A link would be refused: the file was opened in another mount
// namespace.
Status give_name(const Segment& s, int fd, const std::string& beside) {
  struct stat own {
  }, there{};
  if (::fstat(fd, &own) != 0) return shared_memory_failure(Code::kIo, s, "fstat fails", errno);
  if (::lstat(s.path.c_str(), &there) == 0 && is_same_file(own, there)) return {};
  SHADOWIB_TRY(make_directories(s));
  if (::rename(beside.c_str(), s.path.c_str()) == 0) return {};
  return shared_memory_failure(Code::kRefused, s, "its name cannot be given", errno);
}

}  // namespace

Status shared_memory_failure(Code code, const Segment& s, const std::string& what, int error) {
  if (error == 0)
    return Status::of(code, 0, "cannot restore shared memory (%s): %s", describe_segment(s).c_str(), what.c_str());
  return Status::of(code, error, "cannot restore shared memory (%s): %s (%s)", describe_segment(s).c_str(),
                    what.c_str(), std::strerror(error));
}

Status make_shared_file(const Segment& s, int* fd, std::string* beside) {
  const bool memfd = s.kind == SegmentKind::kMemfd || s.kind == SegmentKind::kAnonymous;
  if (s.kind == SegmentKind::kSession) SHADOWIB_TRY(make_directories(s));
  const std::string place = memfd ? "" : place_of(s);
  *fd = s.kind == SegmentKind::kAnonymous ? make_memfd("shared-anonymous")
        : memfd                           ? make_memfd(s.path)
        : s.has_name()                    ? make_beside(place, beside)
                                          : make_nameless(place);
  if (*fd < 0)
    return shared_memory_failure(errno == ENOENT ? Code::kNotFound : Code::kRefused, s,
                                 memfd ? "memfd_create fails" : "no file can be made in " + place, errno);
  if (::ftruncate(*fd, static_cast<off_t>(s.bytes)) != 0)
    return shared_memory_failure(Code::kRefused, s, "it cannot have its size", errno);
  return {};
}

Status finish_shared_file(const Segment& s, int fd, const std::string& beside) {
  if (s.kind == SegmentKind::kAnonymous) return {};
  if (s.has_name()) SHADOWIB_TRY(give_name(s, fd, beside));
  struct stat st {};
  if (::fstat(fd, &st) != 0) return shared_memory_failure(Code::kIo, s, "fstat fails", errno);
  // Whose it was is worth nothing where that user cannot be had.
  if (st.st_uid != s.user || st.st_gid != s.group) [[maybe_unused]]
    const int changed = ::fchown(fd, s.user, s.group);
  if ((st.st_mode & 07777) != (s.mode & 07777) && ::fchmod(fd, s.mode & 07777) != 0 && errno != EPERM)
    return shared_memory_failure(Code::kRefused, s, "it cannot have its mode", errno);
  if (s.kind != SegmentKind::kMemfd || s.seals == 0) return {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals >= 0 && (static_cast<std::uint32_t>(seals) | s.seals) == static_cast<std::uint32_t>(seals)) return {};
  if (::fcntl(fd, F_ADD_SEALS, s.seals) != 0)
    return shared_memory_failure(Code::kRefused, s,
                                 "it cannot be sealed again; let processes end that have it mapped", errno);
  return {};
}

Status judge_shared_file(const Segment& s) {
  if (!s.has_name() && s.kind != SegmentKind::kUnlinked) return {};
  if (const std::string place = place_of(s); ::access(place.c_str(), W_OK | X_OK) != 0)
    return shared_memory_failure(errno == ENOENT ? Code::kNotFound : Code::kRefused, s,
                                 "no file can be made in " + place, errno);
  struct stat there {};
  if (!s.has_name() || ::lstat(s.path.c_str(), &there) != 0) return {};
  const bool left = there.st_dev == s.device && there.st_ino == s.inode;  // by a launcher that was killed
  if (!S_ISREG(there.st_mode) || there.st_uid != s.user || (there.st_mode & 07777) != (s.mode & 07777) ||
      (s.kind == SegmentKind::kSession && !left))
    return shared_memory_failure(Code::kRefused, s, "something else has that name now; remove it", 0);
  FileNumbers file;
  std::string who;
  find_user(
      {{there.st_dev, there.st_ino}}, [](std::uint64_t, int) { return false; }, &file, &who);
  if (who.empty()) return {};
  return shared_memory_failure(Code::kBusy, s, who + " uses a file of that name; let it end first", 0);
}

constexpr const char* kNoSegment = "shmget fails; see kernel.shmall, shmmax and shmmni";

// In an IPC namespace that was made for it. Where ids cannot be chosen they count up from 0.
Status make_system_v_segment(const Segment& s, int* shmid) {
  const bool chosen = set_next_system_v_id("shm", s.id);
  const int mode = static_cast<int>((s.mode & 0777) | 0600);
  key_t key = s.key;
  for (int tries = 0; tries < kMostIdTries; ++tries) {
    *shmid = ::shmget(key, s.bytes, IPC_CREAT | IPC_EXCL | mode);
    if (*shmid < 0 && errno == EEXIST && s.removed != 0 && key != IPC_PRIVATE) {
      key = IPC_PRIVATE;  // its key has passed on to another
      continue;
    }
    if (*shmid < 0) return shared_memory_failure(Code::kRefused, s, kNoSegment, errno);
    if (chosen || *shmid >= s.id) return {};
    ::shmctl(*shmid, IPC_RMID, nullptr);
  }
  *shmid = ::shmget(key, s.bytes, IPC_CREAT | IPC_EXCL | mode);
  return *shmid >= 0 ? Status() : shared_memory_failure(Code::kRefused, s, kNoSegment, errno);
}

Status finish_system_v_segment(const Segment& s, int shmid) {
  shmid_ds info{};
  if ((s.mode & SHM_LOCKED) != 0 && ::shmctl(shmid, SHM_LOCK, nullptr) != 0)
    return shared_memory_failure(Code::kRefused, s, "it cannot be locked; raise RLIMIT_MEMLOCK (ulimit -Hl)", errno);
  if (::shmctl(shmid, IPC_STAT, &info) != 0) return {};
  info.shm_perm.mode = static_cast<unsigned short>(s.mode & 0777);
  info.shm_perm.uid = s.user;
  info.shm_perm.gid = s.group;
  if (::shmctl(shmid, IPC_SET, &info) == 0) return {};
  info.shm_perm.uid = ::geteuid();
  info.shm_perm.gid = ::getegid();
  ::shmctl(shmid, IPC_SET, &info);
  return {};
}

}  // namespace shadowib
