// Pseudo-terminals: who has which end, and, by one of those who have the master, what is in them.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "hooks/imager/descriptors/capture/capture.h"
#include "hooks/imager/descriptors/capture/refuse.h"
#include "hooks/imager/descriptors/pty.h"
#include "hooks/raw/proc.h"

namespace shadowib::descriptors {
namespace {

constexpr unsigned kFirstSlaveMajor = 136;

bool is_hung_up(int fd) {
  pollfd p{fd, 0, 0};
  return ::poll(&p, 1, 0) == 1 && (p.revents & POLLHUP) != 0;
}

// The slave of that number in the members' /dev/pts. False if there is none.
bool find_slave(std::uint64_t number, struct stat* st) {
  char path[32];
  std::snprintf(path, sizeof(path), "/dev/pts/%u", static_cast<unsigned>(number));
  return ::stat(path, st) == 0 && st->st_rdev == makedev(kFirstSlaveMajor, static_cast<unsigned>(number));
}

// The kernel tells of terminals by numbers of 32 bits, with the major one in the middle.
std::uint64_t device_number(std::uint32_t told) {
  return makedev((told >> 8) & 0xfff, (told & 0xff) | ((told >> 12) & 0xfff00));
}

// What a descriptor of another process leads to, if it is an end of a pty: its slave.
bool is_end(int pid, int fd, bool* slave, struct stat* st) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
  const std::string target = link_target(path);
  *slave = target.starts_with("/dev/pts/") && !target.ends_with("/ptmx");
  if (!*slave && !target.ends_with("/ptmx")) return false;
  if (*slave) return ::stat(path, st) == 0;
  std::snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", pid, fd);
  std::string info;
  std::string_view index;
  if (read_proc_file(path, &info) != 0 || !info_field(info, "tty-index", &index)) return false;
  return find_slave(parse_number(index, 10), st);
}

// Fills in who has which end of the table's ptys. `first`: of each master the lowest pid that has it, as /proc
// counts.
void find_users(Table* table, std::vector<int>* first) {
  std::vector<int> processes, fds;
  if (list_numbers("/proc", &processes) != 0) return;
  for (const int pid : processes) {
    char path[64];
    std::snprintf(path, sizeof(path), "/proc/%d/fd", pid);
    if (list_numbers(path, &fds) != 0) continue;
    for (const int fd : fds) {
      bool slave = false;
      struct stat st {};
      if (!is_end(pid, fd, &slave, &st)) continue;
      for (std::size_t i = 0; i < table->objects.size(); ++i) {
        Object& o = table->objects[i];
        if (o.kind != Kind::kPty || o.device != st.st_dev || o.rdev != st.st_rdev) continue;
        PtyUser user{0, pid, slave, ""};
        if (!names_of(pid, &user.space, &user.pid, &user.name)) continue;
        if (!slave && ((*first)[i] == 0 || pid < (*first)[i])) (*first)[i] = pid;
        const bool known = std::any_of(o.users.begin(), o.users.end(), [&user](const PtyUser& u) {
          return u.pid == user.pid && u.space == user.space && u.slave == user.slave;
        });
        if (!known) o.users.push_back(std::move(user));
      }
    }
  }
}

Status capture_contents(int fd, bool first, Object* o) {
  o->counterpart_gone = is_hung_up(fd);
  const bool open = std::any_of(o->users.begin(), o->users.end(), [](const PtyUser& u) { return u.slave != 0; });
  if (!o->counterpart_gone && !open) {
    o->pty_flags |= kPtyUnopened;  // opening the slave would be seen, when it is closed again
    return {};
  }
  if (!first) return {};
  const Status status = capture_pty(fd, o);
  return status.ok() ? status : refuse(fd, o->path.c_str(), status.text());
}

void capture_controlling_terminal(Table* table) {
  std::string text;
  if (read_proc_file("/proc/self/stat", &text) != 0) return;
  // Behind the name, which may be anything: state, parent, group, session, terminal, its foreground.
  std::string_view fields[6], rest = text;
  rest.remove_prefix(std::min(rest.rfind(')'), rest.size() - 1) + 1);
  for (std::string_view& field : fields) {
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    field = rest.substr(0, rest.find(' '));
    rest.remove_prefix(field.size());
  }
  const std::uint64_t slave = device_number(static_cast<std::uint32_t>(parse_number(fields[4], 10)));
  struct stat st {};
  if (major(slave) != kFirstSlaveMajor || !find_slave(minor(slave), &st)) return;
  table->terminal_device = st.st_dev;
  table->terminal = st.st_rdev;
  table->foreground = static_cast<std::int32_t>(parse_number(fields[5], 10));
}

// A descriptor of /dev/tty that leads to the controlling terminal.
bool is_controlling_terminal(int fd, const Table& table) {
  std::uint32_t device = 0;
  return table.terminal != 0 && ::ioctl(fd, TIOCGDEV, &device) == 0 && device_number(device) == table.terminal;
}

}  // namespace

Status capture_pty_master(int fd, const std::string& target, Object* object) {
  unsigned number = 0;
  struct stat st {};
  if (::ioctl(fd, TIOCGPTN, &number) != 0 || !find_slave(number, &st) ||
      (target != "/dev/ptmx" && object->device != st.st_dev))
    return refuse(fd, target.c_str(),
                  "it is a pseudo-terminal of another /dev/pts than the process has; close it before the checkpoint");
  object->kind = Kind::kPty;
  object->path = "/dev/pts/" + std::to_string(number);
  object->device = st.st_dev;
  object->rdev = st.st_rdev;
  return {};
}

void capture_terminal(int fd, Object* object) {
  object->kind = Kind::kTerminal;
  object->counterpart_gone = is_hung_up(fd);
}

Status capture_ptys(Table* table) {
  capture_controlling_terminal(table);
  bool any = false;
  for (std::uint32_t i = 0; i < table->objects.size(); ++i) {
    Object& o = table->objects[i];
    any |= o.kind == Kind::kPty;
    if (o.kind == Kind::kDevice && o.path == "/dev/tty" && is_controlling_terminal(table->first_fd(i), *table))
      o.identity = table->terminal;
  }
  if (!any) return {};
  std::vector<int> first(table->objects.size());
  find_users(table, &first);
  const std::string self = link_target("/proc/self");  // as /proc counts
  for (std::uint32_t i = 0; i < table->objects.size(); ++i)
    if (Object& o = table->objects[i]; o.kind == Kind::kPty)
      SHADOWIB_TRY(capture_contents(table->first_fd(i), std::to_string(first[i]) == self, &o));
  return {};
}

}  // namespace shadowib::descriptors
