#include "hooks/imager/restore/namespaces.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "shadowib/base/log.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

namespace shadowib {
namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// What on this machine stands in the way of an unprivileged user namespace, as far as it tells.
const char* user_namespace_remedy() {
  if (first_line("/proc/sys/kernel/unprivileged_userns_clone") == "0")
    return "set kernel.unprivileged_userns_clone=1 (sysctl), or restart as root";
  if (first_line("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1")
    return "AppArmor restricts user namespaces: set kernel.apparmor_restrict_unprivileged_userns=0 (sysctl) or give "
           "shadowib a profile that allows userns";
  if (first_line("/proc/sys/user/max_user_namespaces") == "0") return "set user.max_user_namespaces above 0 (sysctl)";
  return "in a container allow unshare and clone3 in its seccomp profile (docker: --security-opt "
         "seccomp=unconfined), "
         "or restart as root";
}

Status denied(const char* call, const char* remedy, int error = errno) {
  return Status::of(Code::kPermission, error, "%s is denied: %s; %s", call, std::strerror(error), remedy);
}
// `error` before the machine is looked at, which leaves another errno.
Status user_namespace_denied(const char* call, int error = errno) {
  return denied(call, user_namespace_remedy(), error);
}

bool write_text(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool ok = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  ::close(fd);
  errno = error;
  return ok;
}

Status make_user_namespace() {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  if (::unshare(CLONE_NEWUSER) != 0) return user_namespace_denied("unshare(CLONE_NEWUSER)");
  char line[64];
  std::snprintf(line, sizeof(line), "%u %u 1", uid, uid);
  if (!write_text("/proc/self/uid_map", line)) return user_namespace_denied("writing /proc/self/uid_map");
  write_text("/proc/self/setgroups", "deny");  // kernels before 3.19 have none
  std::snprintf(line, sizeof(line), "%u %u 1", gid, gid);
  if (!write_text("/proc/self/gid_map", line)) return user_namespace_denied("writing /proc/self/gid_map");
  return {};
}

std::int64_t clock_now(clockid_t clock) {
  timespec ts{};
  ::clock_gettime(clock, &ts);
  return ts.tv_sec * 1000000000ll + ts.tv_nsec;
}

// Offsets are counted from the machine's clocks, so what the surrounding namespace has is added.
Status raise_clocks(const ClockFloor& floor) {
  const std::int64_t monotonic = floor.monotonic_ns - clock_now(CLOCK_MONOTONIC);
  const std::int64_t boottime = floor.boottime_ns - clock_now(CLOCK_BOOTTIME);
  if (monotonic <= 0 && boottime <= 0) return {};
  if (::unshare(CLONE_NEWTIME) != 0)
    return denied("unshare(CLONE_NEWTIME)",
                  "CLOCK_MONOTONIC would run back, which programs do not expect; use a kernel "
                  "with CONFIG_TIME_NS (5.6)");
  std::int64_t seconds[2] = {}, nanoseconds[2] = {};
  std::ifstream offsets("/proc/self/timens_offsets");
  std::string name;
  for (std::int64_t s, n; offsets >> name >> s >> n;) {
    const int which = name == "monotonic" || name == "1" ? 0 : 1;
    seconds[which] = s;
    nanoseconds[which] = n;
  }
  const std::int64_t add[2] = {monotonic > 0 ? monotonic : 0, boottime > 0 ? boottime : 0};
  std::string text;
  for (int which = 0; which < 2; ++which) {
    // One second more: time went on since it was measured, and saving took time as well.
    seconds[which] += add[which] / 1000000000 + (add[which] > 0 ? 1 : 0);
    char line[96];
    std::snprintf(line, sizeof(line), "%s %" PRId64 " %" PRId64 "\n", which == 0 ? "monotonic" : "boottime",
                  seconds[which], nanoseconds[which]);
    text += line;
  }
  if (!write_text("/proc/self/timens_offsets", text))
    return denied("writing /proc/self/timens_offsets", "the clock cannot be set forward here");
  return {};
}

}  // namespace

bool has_capability(int capability) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  return (data[capability / 32].effective & (1u << (capability % 32))) != 0;
}

Status enter_namespaces(const ClockFloor& floor, bool system_v) {
  if (!has_capability(CAP_SYS_ADMIN)) SHADOWIB_TRY(make_user_namespace());
  SHADOWIB_TRY(raise_clocks(floor));
  if (::unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) return user_namespace_denied("unshare(CLONE_NEWPID|CLONE_NEWNS)");
  if (system_v && ::unshare(CLONE_NEWIPC) != 0) return user_namespace_denied("unshare(CLONE_NEWIPC)");
  return {};
}

Status mount_proc() {
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return denied("making mounts private", "see the security module's log");
  if (::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0)
    return denied("mounting /proc of the new pid namespace",
                  "in a container unmask /proc (docker: --security-opt systempaths=unconfined; podman: "
                  "--security-opt unmask=ALL)");
  return {};
}

void mount_terminals() {
  if (::mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620") == 0)
    return;
  log_line(LogLevel::kWarn, "restart: no /dev/pts of its own (%s): pseudo-terminals may get other numbers",
           std::strerror(errno));
}

}  // namespace shadowib
