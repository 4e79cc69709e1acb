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
#include "hooks/imager/descriptors/capture/sharing.h"
#include "hooks/imager/descriptors/file_lock.h"
#include "hooks/raw/proc.h"
#include "shadowib/base/descriptors.h"

namespace shadowib {
namespace descriptors {
namespace {

// The kernel tells O_CLOEXEC there as well, which is the number's and not the description's.
int flags_of(int fd, std::string_view info) {
  std::string_view value;
  if (info_field(info, "flags", &value)) return static_cast<int>(parse_number(value, 8));
  return ::fcntl(fd, F_GETFL) | ((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0);
}

void capture_common(int fd, int flags, const struct stat& st, Object* object) {
  object->flags = flags & ~O_CLOEXEC;
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

// The path of the device that st is of, if `device`, an index into the table's objects, is of it.
const std::string* known_path(const struct stat& st, const Table& table, std::size_t device) {
  if (!S_ISCHR(st.st_mode) || device >= table.objects.size()) return nullptr;
  const Object& o = table.objects[device];
  return o.rdev == st.st_rdev && o.inode == st.st_ino && o.device == st.st_dev ? &o.path : nullptr;
}

// *device: the latest object of kind kDevice.
Status capture_object(int fd, const struct stat& st, std::string_view info, std::size_t* device, Object* object,
                      Table* table) {
  if (S_ISSOCK(st.st_mode) && is_launcher_descriptor(fd)) {
    capture_launcher_socket(object);
    return {};
  }
  if (S_ISSOCK(st.st_mode)) return capture_socket(fd, object);
  if (is_eventfd(info)) return capture_eventfd(fd, info, object);
  if (const std::string* path = known_path(st, *table, *device)) return capture_character_device(fd, *path, object);
  std::string target = descriptor_target(fd);
  if (target.empty()) return refuse(fd, "unknown", "its link in /proc/self/fd cannot be read; mount /proc");
  if (target.starts_with("anon_inode:")) return capture_anonymous(fd, target, info, object);
  if (S_ISFIFO(st.st_mode)) return capture_pipe(fd, target, object);
  if (S_ISCHR(st.st_mode)) {
    SHADOWIB_TRY(capture_character_device(fd, target, object));
    if (object->kind == Kind::kDevice) *device = table->objects.size();
    return {};
  }
  if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode) || S_ISLNK(st.st_mode))
    return capture_file(fd, target, info, object, table);
  return refuse(fd, target.c_str(), "objects of this type cannot be saved; close it before the checkpoint");
}

// Standard streams that may have led outside, and other descriptors of the same terminal, pipe or socket.
void mark_standard_streams(Table* table) {
  auto leads_out = [](const Object& o) {
    return o.kind == Kind::kTerminal || o.kind == Kind::kPipe || o.kind == Kind::kFifo || o.kind == Kind::kUnix ||
           o.kind == Kind::kTcp;
  };
  std::vector<std::uint32_t> streams;
  for (const Descriptor& d : table->descriptors) {
    if (d.fd > 2) break;
    Object& o = table->objects[d.object];
    if (!leads_out(o) || o.stdio >= 0) continue;
    o.stdio = d.fd;
    streams.push_back(d.object);
  }
  for (Object& o : table->objects)
    for (const std::uint32_t stream : streams) {
      const Object& other = table->objects[stream];
      if (o.stdio >= 0) break;
      if (leads_out(o) && other.kind == o.kind && other.device == o.device && other.inode == o.inode &&
          (o.flags & O_ACCMODE) == (other.flags & O_ACCMODE))
        o.stdio = other.stdio;
    }
  for (Object& o : table->objects)  // opened with another mode: a terminal opened for reading and writing
    for (const std::uint32_t stream : streams) {
      const Object& other = table->objects[stream];
      if (o.stdio >= 0) break;
      if (o.kind == Kind::kTerminal && other.kind == Kind::kTerminal && o.rdev == other.rdev) o.stdio = other.stdio;
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
  DescriptorInfos infos;
  Locks locks;
  SHADOWIB_TRY(list_descriptors(&fds));
  std::erase_if(fds, is_left_out);
  SHADOWIB_TRY(infos.read(fds));
  SHADOWIB_TRY(find_locks(fds, infos, &locks));
  note_record_locks(locks);
  SHADOWIB_TRY(capture_family(table));
  SHADOWIB_TRY(capture_shared_memory(table));
  SHADOWIB_TRY(capture_system_v(table));
  begin_launcher_capture();
  Sharing sharing(fds);
  std::size_t device = ~std::size_t{0};
  for (std::size_t i = 0; i < fds.size(); ++i) {
    const int fd = fds[i];
    struct stat st {};
    if (::fstat(fd, &st) != 0) return refuse(fd, "unknown", "fstat fails on it; close it before the checkpoint");
    const int flags = flags_of(fd, infos.of(i));
    Object object;
    capture_common(fd, flags, st, &object);
    Descriptor d{fd, static_cast<std::uint32_t>(table->objects.size()), (flags & O_CLOEXEC) != 0};
    int shared = sharing.find_or_add(i, object, table->objects, d.object);
    if (shared >= 0) {
      d.object = static_cast<std::uint32_t>(shared);
    } else {
      SHADOWIB_TRY(capture_object(fd, st, infos.of(i), &device, &object, table));
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

void look_at_descriptors() { descriptors::sort_descriptors(); }

Status capture_descriptors(std::uint32_t member, std::string* bytes) {
  using namespace descriptors;
  abandon_descriptors();
  Table table;
  const Status captured = capture_table(member, &table);
  forget_sorted_descriptors();
  SHADOWIB_TRY(captured);
  note_late(table);
  encode_table(table, bytes);
  return {};
}

}  // namespace shadowib
