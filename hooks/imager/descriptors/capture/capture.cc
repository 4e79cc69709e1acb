// capture_descriptors(): every descriptor of this process becomes a row of the table, or the checkpoint is refused.
#include "hooks/imager/descriptors/capture/capture.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/capture/inherited.h"
#include "hooks/imager/descriptors/capture/late.h"
#include "hooks/imager/descriptors/capture/launcher_socket.h"
#include "hooks/imager/descriptors/capture/refuse.h"
#include "hooks/imager/descriptors/file_lock.h"
#include "hooks/raw/proc.h"
#include "shadowib/base/descriptors.h"

namespace shadowib {
namespace descriptors {
namespace {

// Finds which numbers share an open file description. kcmp orders descriptions, so a sorted list does.
class Sharing {
 public:
  // Index into objects of the description behind `fd`, or -1 after noting that it will be `next`.
  int find_or_add(int fd, const Object& object, const std::vector<Object>& objects, std::uint32_t next) {
    std::size_t low = 0, high = sorted_.size();
    while (low < high) {
      std::size_t middle = (low + high) / 2;
      int order = compare_descriptions(fd, sorted_[middle].fd);
      if (order == 0) return static_cast<int>(sorted_[middle].object);
      if (order < 0) return find_without_kcmp(fd, object, objects, next);
      (order == 1 ? high : low) = order == 1 ? middle : middle + 1;
    }
    sorted_.insert(sorted_.begin() + static_cast<long>(low), Seen{fd, next});
    return -1;
  }

 private:
  struct Seen {
    int fd;
    std::uint32_t object;
  };

  // Where a filter denies kcmp: a socket is one description; a file shares its offset, so move it and look.
  int find_without_kcmp(int fd, const Object& object, const std::vector<Object>& objects, std::uint32_t next) {
    for (const Seen& seen : sorted_) {
      const Object& other = objects[seen.object];
      if (other.inode != object.inode || other.device != object.device || other.flags != object.flags) continue;
      if (S_ISSOCK(object.mode) || S_ISFIFO(object.mode) || S_ISCHR(object.mode))
        return static_cast<int>(seen.object);
      if (S_ISREG(object.mode) && share_offset(fd, seen.fd)) return static_cast<int>(seen.object);
    }
    sorted_.push_back({fd, next});
    return -1;
  }

  static bool share_offset(int a, int b) {
    off_t before = ::lseek(a, 0, SEEK_CUR), other = ::lseek(b, 0, SEEK_CUR);
    if (before < 0 || before != other || ::lseek(a, before + 1, SEEK_SET) < 0) return false;
    bool shared = ::lseek(b, 0, SEEK_CUR) == before + 1;
    ::lseek(a, before, SEEK_SET);
    return shared;
  }

  std::vector<Seen> sorted_;
};

void capture_common(int fd, const struct stat& st, Object* object) {
  object->flags = ::fcntl(fd, F_GETFL);
  object->device = st.st_dev;
  object->inode = st.st_ino;
  object->rdev = st.st_rdev;
  object->mode = st.st_mode;
  f_owner_ex owner{};
  if (::fcntl(fd, F_GETOWN_EX, &owner) == 0 && owner.pid != 0) {
    object->owner_type = owner.type;
    object->owner_pid = owner.pid;
  }
  object->signal = std::max(0, ::fcntl(fd, F_GETSIG));
  object->inherited = is_inherited(fd, st);
}

Status capture_object(int fd, const struct stat& st, Object* object, Table* table) {
  if (S_ISSOCK(st.st_mode) && is_launcher_descriptor(fd)) {
    capture_launcher_socket(object);
    return {};
  }
  if (S_ISSOCK(st.st_mode)) return capture_socket(fd, object);
  std::string target = descriptor_target(fd);
  if (target.empty()) return refuse(fd, "unknown", "its link in /proc/self/fd cannot be read");
  if (target.starts_with("anon_inode:")) return capture_anonymous(fd, target, object);
  if (S_ISFIFO(st.st_mode)) return capture_pipe(fd, target, object);
  if (S_ISCHR(st.st_mode)) return capture_character_device(fd, target, object);
  if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode) || S_ISLNK(st.st_mode))
    return capture_file(fd, target, object, table);
  return refuse(fd, target.c_str(), "objects of this type cannot be saved; close it before the checkpoint");
}

// Standard streams that may have led outside, and other descriptors of the same terminal, pipe or socket.
void mark_standard_streams(Table* table) {
  auto leads_out = [](const Object& o) {
    return o.kind == Kind::kTerminal || o.kind == Kind::kPipe || o.kind == Kind::kFifo || o.kind == Kind::kUnix ||
           o.kind == Kind::kTcp;
  };
  for (const Descriptor& d : table->descriptors) {
    if (d.fd > 2) break;
    Object& o = table->objects[d.object];
    if (leads_out(o) && o.stdio < 0) o.stdio = d.fd;
  }
  for (Object& o : table->objects)
    for (const Object& other : table->objects) {
      if (o.stdio >= 0) break;
      if (leads_out(o) && other.stdio >= 0 && other.kind == o.kind && other.device == o.device &&
          other.inode == o.inode && (o.flags & O_ACCMODE) == (other.flags & O_ACCMODE))
        o.stdio = other.stdio;
    }
  for (Object& o : table->objects)  // opened with another mode: a terminal opened for reading and writing
    for (const Object& other : table->objects) {
      if (o.stdio >= 0) break;
      if (o.kind == Kind::kTerminal && other.kind == Kind::kTerminal && other.stdio >= 0 && o.rdev == other.rdev)
        o.stdio = other.stdio;
    }
}

// Those that cannot be the slave of a pty of the job, which match_descriptors() judges.
Status judge_terminals(const Table& table) {
  for (std::uint32_t i = 0; i < table.objects.size(); ++i)
    if (table.objects[i].kind == Kind::kTerminal && table.objects[i].stdio < 0 && !is_pty_slave(table.objects[i]))
      return refuse(
          table.first_fd(i), table.objects[i].path.c_str(),
          "a terminal that is not the one of standard input, output or error; close it before the checkpoint");
  return {};
}

// Those on other things than files would be lost: the restarted member has another pipe, socket or device.
Status take_locks(int fd, const Locks& all, Object* object) {
  const auto at = all.find(fd);
  if (at == all.end()) return {};
  const bool lockable =
      (object->kind == Kind::kFile || object->kind == Kind::kDirectory || object->kind == Kind::kMemory) &&
      !object->path.starts_with("/proc/");
  if (!lockable)
    return refuse(fd, (describe_lock(at->second.front()) + " on " + describe_object(*object)).c_str(),
                  "only locks on files and directories can be taken again; unlock it before the checkpoint");
  object->locks = at->second;
  return {};
}

Status capture_epoll_sets(Table* table) {
  for (std::uint32_t i = 0; i < table->objects.size(); ++i)
    if (table->objects[i].kind == Kind::kEpoll)
      SHADOWIB_TRY(capture_epoll_entries(table->first_fd(i), &table->objects[i]));
  return {};
}

std::uint64_t namespace_number(const char* path) {
  struct stat st {};
  return ::stat(path, &st) == 0 ? st.st_ino : 0;
}

std::string boot_id() {
  char text[64];
  const int fd = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  const ssize_t n = fd < 0 ? 0 : ::read(fd, text, sizeof(text));
  if (fd >= 0) raw_close(fd);
  return std::string(text, n > 0 ? static_cast<std::size_t>(n - 1) : 0);  // without its newline
}

Status capture_table(std::uint32_t member, Table* table) {
  table->member = member;
  table->pid = ::getpid();
  table->kernel = boot_id();
  table->network = namespace_number("/proc/self/ns/net");
  table->processes = namespace_number("/proc/self/ns/pid");
  table->working_directory = link_target("/proc/self/cwd");
  std::vector<int> fds;
  Locks locks;
  SHADOWIB_TRY(list_descriptors(&fds));
  std::erase_if(fds, is_left_out);
  SHADOWIB_TRY(capture_locks(fds, &locks));
  note_record_locks(locks);
  SHADOWIB_TRY(capture_family(table));
  SHADOWIB_TRY(capture_shared_memory(table));
  SHADOWIB_TRY(capture_system_v(table));
  begin_launcher_capture();
  Sharing sharing;
  for (int fd : fds) {
    struct stat st {};
    if (::fstat(fd, &st) != 0) return refuse(fd, "unknown", "fstat fails on it");
    Object object;
    capture_common(fd, st, &object);
    int flags = ::fcntl(fd, F_GETFD);
    Descriptor d{fd, static_cast<std::uint32_t>(table->objects.size()), (flags & FD_CLOEXEC) != 0};
    int shared = sharing.find_or_add(fd, object, table->objects, d.object);
    if (shared >= 0) {
      d.object = static_cast<std::uint32_t>(shared);
    } else {
      SHADOWIB_TRY(capture_object(fd, st, &object, table));
      SHADOWIB_TRY(take_locks(fd, locks, &object));
      table->objects.push_back(std::move(object));
    }
    table->descriptors.push_back(d);
  }
  SHADOWIB_TRY(capture_epoll_sets(table));
  SHADOWIB_TRY(capture_ptys(table));
  mark_standard_streams(table);
  return judge_terminals(*table);
}

}  // namespace
}  // namespace descriptors

Status capture_descriptors(std::uint32_t member, std::string* bytes) {
  using namespace descriptors;
  abandon_descriptors();
  Table table;
  SHADOWIB_TRY(capture_table(member, &table));
  note_late(table);
  encode_table(table, bytes);
  return {};
}

}  // namespace shadowib
