// Stand-ins for pipes and sockets that a job was started with.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "hooks/imager/descriptors/open_object.h"
#include "hooks/imager/descriptors/remake/restore.h"
#include "shadowib/base/log.h"

namespace shadowib::descriptors {
namespace {

// What the command has opened itself closes on exec.
bool has_inherited(int fd, int flags) {
  const int own = ::fcntl(fd, F_GETFD);
  if (own < 0 || (own & FD_CLOEXEC) != 0) return false;
  const int mode = ::fcntl(fd, F_GETFL) & O_ACCMODE;
  return mode == O_RDWR || mode == (flags & O_ACCMODE);
}

// One end, with what waited there to be read.
int half_a_pipe(const Object& o) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return -1;
  const bool reads = (o.flags & O_ACCMODE) == O_RDONLY;
  if (reads && o.capacity > 0)
    ::fcntl(ends[1], F_SETPIPE_SZ, static_cast<int>(std::min<std::uint64_t>(o.capacity, 1u << 30)));
  set_status_flags(ends[1], O_NONBLOCK);
  for (const Message& m : o.queue)
    if (reads && ::write(ends[1], m.data.data(), m.data.size()) < 0) break;
  ::close(ends[reads ? 1 : 0]);
  return ends[reads ? 0 : 1];
}

int half_a_connection() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return -1;
  ::close(ends[1]);
  return ends[0];
}

}  // namespace

Status restore_inherited(const Table& table, std::uint32_t object, int* fd) {
  const Object& o = table.objects[object];
  const int number = table.first_fd(object);
  if (has_inherited(number, o.flags)) {
    *fd = ::fcntl(number, F_DUPFD_CLOEXEC, 3);
    if (*fd >= 0) return {};
  }
  *fd = o.kind == Kind::kPipe ? half_a_pipe(o) : half_a_connection();
  if (*fd < 0) return restore_failure(Code::kIo, o, "no stand-in for it can be made", errno);
  set_status_flags(*fd, o.flags);
  log_line(LogLevel::kWarn,
           "restart: descriptor %d of member %u (%s), which the job was started with, has nobody at its other end "
           "any more",
           number, table.member, describe_object(o).c_str());
  return {};
}

}  // namespace shadowib::descriptors
