#include "hooks/imager/descriptors/capture/launcher_socket.h"

#include <linux/filter.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/open_object.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace descriptors {
namespace {

struct Noted {
  int fd = -1;
  std::uint64_t device = 0, inode = 0;
  bool captured = false;  // by the latest checkpoint
  bool left_out = false;
};
constexpr int kMostNoted = 1024;  // Hydra leaves some for each rank of a host
Noted g_noted[kMostNoted];

bool identify(int fd, Noted* noted) {
  struct stat st {};
  if (::fstat(fd, &st) != 0 || (!S_ISSOCK(st.st_mode) && !S_ISFIFO(st.st_mode))) return false;
  noted->fd = fd;
  noted->device = st.st_dev;
  noted->inode = st.st_ino;
  return true;
}

Noted* find(int fd) {
  Noted now;
  if (!identify(fd, &now)) return nullptr;
  for (Noted& noted : g_noted)
    if (noted.fd == fd && noted.inode == now.inode && noted.device == now.device) return &noted;
  return nullptr;
}

}  // namespace

bool is_launcher_descriptor(int fd) { return find(fd) != nullptr; }

bool is_left_out(int fd) {
  const Noted* const noted = find(fd);
  return noted != nullptr && noted->left_out;
}

void begin_launcher_capture() {
  for (Noted& noted : g_noted) noted.captured = false;
}

void capture_launcher_socket(Object* o) {
  o->kind = Kind::kLauncher;
  for (Noted& noted : g_noted)
    if (noted.fd >= 0 && noted.inode == o->inode && noted.device == o->device) noted.captured = true;
}

// A datagram socket that is connected to itself and lets nothing in: one descriptor, and no other end that somebody
// would have to hold.
Status open_silent_socket(const Object& o, int* fd) {
  *fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (*fd < 0) return restore_failure(Code::kIo, o, "socket fails", errno);
  sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog program{1, nothing};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socklen_t length = sizeof(address.sun_family);  // the kernel chooses an abstract name
  const auto name = reinterpret_cast<sockaddr*>(&address);
  if (::setsockopt(*fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0 &&
      ::bind(*fd, name, length) == 0 && (length = sizeof(address), ::getsockname(*fd, name, &length)) == 0 &&
      ::connect(*fd, name, length) == 0)
    return {};
  const int error = errno;
  ::close(*fd);
  *fd = -1;
  return restore_failure(Code::kIo, o, "no silent socket can be made", error);
}

}  // namespace descriptors

namespace {

bool note(int fd, bool left_out) {
  using namespace descriptors;
  Noted now;
  if (!identify(fd, &now)) return false;
  now.left_out = left_out;
  for (Noted& noted : g_noted) {
    if (noted.fd >= 0 && noted.fd != fd && is_launcher_descriptor(noted.fd)) continue;  // another one that still is
    noted = now;
    return true;
  }
  return false;
}

}  // namespace

bool note_launcher_descriptor(int fd) { return note(fd, false); }

bool leave_out_descriptor(int fd) { return note(fd, true); }

void note_restored_launcher_descriptors() {
  using namespace descriptors;
  for (Noted& noted : g_noted) {
    if (noted.fd < 0) continue;
    if (!noted.captured || !identify(noted.fd, &noted)) noted = {};
  }
}

}  // namespace shadowib
