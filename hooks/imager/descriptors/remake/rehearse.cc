// Looking at the files of descriptor tables without restoring anything.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <tuple>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/match/match.h"
#include "hooks/imager/descriptors/remake/lock_holders.h"
#include "hooks/imager/descriptors/remake/restore.h"

namespace shadowib {
namespace descriptors {
namespace {

Status check_fifo(const Object& o) {
  struct stat st {};
  if (::lstat(o.path.c_str(), &st) != 0)
    return restore_failure(errno == ENOENT ? Code::kNotFound : Code::kRefused, o, "it cannot be opened", errno);
  return S_ISFIFO(st.st_mode) ? Status{}
                              : restore_failure(Code::kRefused, o, "there is no FIFO of that name any more", 0);
}

Status check_file(const Object& o) {
  // A terminal of the command stands in for /dev/tty where there is none.
  if (o.path == "/dev/tty" || o.path.starts_with("/proc/")) return {};
  if (o.kind == Kind::kFifo) return check_fifo(o);
  if (o.kind != Kind::kFile && o.kind != Kind::kDirectory && o.kind != Kind::kDevice) return {};
  int fd = -1;
  Status status = open_path(o, &fd);
  for (const FileLock& lock : o.locks) {
    const int error = status.ok() ? try_lock(fd, lock) : 0;
    if (error != 0 && inherited_flock(fd, lock) < 0) status = lock_failure(o, lock, fd, error);
  }
  if (fd >= 0) ::close(fd);
  return status;
}

}  // namespace
}  // namespace descriptors

Status check_files(const std::map<std::uint32_t, std::string>& encoded, const std::set<std::uint32_t>& here,
                   const std::function<void(const Status&)>& obstacle) {
  using namespace descriptors;
  Plan plan;
  SHADOWIB_TRY(decode_tables(encoded, &plan.tables));
  SHADOWIB_TRY(link_tables(plan.tables, &plan.links));
  SHADOWIB_TRY(keep_members(here, &plan));
  // What another member has mapped comes out of the image.
  std::set<std::tuple<std::string, std::uint64_t, std::uint64_t>> memory;
  for (const auto& [member, table] : plan.tables)
    for (const Segment& s : table.segments)
      if (s.kind != SegmentKind::kSystemV) memory.emplace(table.kernel, s.device, s.inode);
  for (int stream = 0; stream < 3; ++stream) plan.standard[stream] = stream;
  for (const auto& [member, table] : plan.tables)
    for (std::uint32_t i = 0; i < table.objects.size(); ++i)
      if (const Object& o = table.objects[i]; !plan.links.outside.contains(&o) &&
                                              !memory.contains({table.kernel, o.device, o.inode}) &&
                                              own_stream(plan, table, i) < 0)
        if (Status status = check_file(o); !status.ok()) obstacle(status);
  return {};
}

Status check_ports(const std::map<std::uint32_t, std::string>& encoded, const std::set<std::uint32_t>& here,
                   const std::function<void(const Status&)>& obstacle) {
  using namespace descriptors;
  Plan plan;
  SHADOWIB_TRY(decode_tables(encoded, &plan.tables));
  SHADOWIB_TRY(link_tables(plan.tables, &plan.links));
  SHADOWIB_TRY(keep_members(here, &plan));
  for (const auto& [inode, holder] : plan.links.sockets)
    if (!plan.links.outside.contains(&holder.object()))
      if (Status status = try_port(holder.object()); !status.ok()) obstacle(status);
  return {};
}

Status highest_descriptor(const std::string& encoded, int* highest) {
  descriptors::Table table;
  SHADOWIB_TRY(descriptors::decode_table(encoded, &table));
  *highest = table.descriptors.empty() ? -1 : table.descriptors.back().fd;
  return {};
}

Status count_descriptors(const std::map<std::uint32_t, std::string>& tables, const std::set<std::uint32_t>& here,
                         std::uint64_t* count) {
  using descriptors::Kind;
  std::set<std::tuple<std::string, Kind, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, int>> objects;
  for (const auto& [member, encoded] : tables) {
    if (!here.contains(member) || encoded.empty()) continue;
    descriptors::Table table;
    SHADOWIB_TRY(descriptors::decode_table(encoded, &table));
    for (const descriptors::Object& o : table.objects) {
      const bool in_member = o.kind == Kind::kTimerfd || o.kind == Kind::kSignalfd || o.kind == Kind::kEpoll ||
                             o.kind == Kind::kLauncher || o.kind == Kind::kThreadFile || o.path.starts_with("/proc/");
      if (!in_member) objects.emplace(table.kernel, o.kind, o.device, o.inode, o.identity, o.offset, o.flags);
    }
  }
  *count = objects.size();
  return {};
}

}  // namespace shadowib
