#include "hooks/imager/descriptors/capture/late.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/capture/inherited.h"
#include "hooks/imager/descriptors/file_lock.h"
#include "hooks/imager/descriptors/open_object.h"
#include "hooks/raw/proc.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace descriptors {
namespace {

struct LateFile {
  Object object;
  std::vector<int> numbers;
};
struct LateOwner {
  int fd;
  std::int32_t thread;
};
struct LateLock {
  int fd;
  FileLock lock;
};
struct Late {
  std::vector<LateFile> files;
  std::vector<LateOwner> owners;
  std::vector<LateLock> locks;
};
Late* g_late = nullptr;

std::vector<int> numbers_of(const Table& table, std::uint32_t object) {
  std::vector<int> numbers;
  for (const Descriptor& d : table.descriptors)
    if (d.object == object) numbers.push_back(d.fd);
  return numbers;
}

// In place of what stands at its numbers until now.
Status open_late(const LateFile& late) {
  int fd = -1;
  SHADOWIB_TRY(open_path(late.object, &fd));
  Status status;
  for (const int number : late.numbers) {
    const int close_on_exec = (::fcntl(number, F_GETFD) & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0;
    if (::syscall(SYS_dup3, fd, number, close_on_exec) < 0)
      status = restore_failure(Code::kInternal, late.object, "it cannot be put at its number", errno);
  }
  raw_close(fd);
  return status;
}

Late& late() {
  if (g_late == nullptr) g_late = new Late;
  return *g_late;
}

}  // namespace

void note_late(const Table& table) {
  late();
  g_late->files.clear();
  g_late->owners.clear();
  for (std::uint32_t i = 0; i < table.objects.size(); ++i) {
    const Object& o = table.objects[i];
    if (o.kind == Kind::kThreadFile) g_late->files.push_back({o, numbers_of(table, i)});
    if (o.owner_type == F_OWNER_TID && o.owner_pid != 0) g_late->owners.push_back({table.first_fd(i), o.owner_pid});
  }
}

void note_record_locks(const std::map<int, std::vector<FileLock>>& locks) {
  late().locks.clear();
  for (const auto& [fd, held] : locks)
    for (const FileLock& lock : held)
      if (lock.kind == LockKind::kRecord) late().locks.push_back({fd, lock});
}

void forget_record_locks() {
  if (g_late != nullptr) g_late->locks.clear();
}

void set_signal_owner(int fd, std::int32_t type, std::int32_t pid) {
  f_owner_ex owner{static_cast<decltype(f_owner_ex::type)>(type), pid};
  if (pid != 0 && ::fcntl(fd, F_SETOWN_EX, &owner) != 0)
    log_line(LogLevel::kWarn, "restart: descriptor %d: its signal owner %d cannot be set", fd, pid);
}

}  // namespace descriptors

Status finish_descriptors() {
  using namespace descriptors;
  renew_inherited();
  if (g_late == nullptr) return {};
  for (const LateFile& late : g_late->files) SHADOWIB_TRY(open_late(late));
  for (const LateOwner& late : g_late->owners) set_signal_owner(late.fd, F_OWNER_TID, late.thread);
  Status status = hold_record_locks();
  forget_record_locks();
  return status;
}

Status hold_record_locks() {
  using namespace descriptors;
  if (g_late == nullptr) return {};
  for (const LateLock& late : g_late->locks)
    if (const int error = take_lock(late.fd, late.lock); error != 0)
      return Status::of(error == EAGAIN ? Code::kBusy : Code::kRefused, error,
                        "cannot take again the %s on %.200s, descriptor %d of pid %d: %s",
                        describe_lock(late.lock).c_str(), descriptor_target(late.fd).c_str(), late.fd, ::getpid(),
                        error == EAGAIN ? "another process has taken a lock there" : ::strerrordesc_np(error));
  return {};
}

}  // namespace shadowib
