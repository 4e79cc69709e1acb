#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "shadowib/cli/in_child.h"
#include "shadowib/cli/machine.h"
#include "shadowib/cli/output.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

namespace shadowib::cli {
namespace {

int write_text(const char* path, const std::string& text) {
  int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  int err = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : errno;
  ::close(fd);
  return err;
}

// As the restart does: a user namespace where we are not privileged, our own id mapped onto itself.
int enter_user_namespace() {
  uid_t uid = ::geteuid();
  gid_t gid = ::getegid();
  if (::unshare(CLONE_NEWUSER) != 0) return errno;
  (void)write_text("/proc/self/setgroups", "deny");
  if (int err = write_text("/proc/self/uid_map", std::to_string(uid) + " " + std::to_string(uid) + " 1"); err != 0)
    return err;
  return write_text("/proc/self/gid_map", std::to_string(gid) + " " + std::to_string(gid) + " 1");
}

// As root no user namespace is needed, unless a container has taken root's privileges.
int privileges(int flags) {
  if (::geteuid() == 0 && ::unshare(flags) == 0) return 0;
  if (int err = enter_user_namespace(); err != 0) return err;
  return ::unshare(flags) == 0 ? 0 : errno;
}

int try_user_namespace() { return in_child(enter_user_namespace); }

// A process with a pid of choice, in a pid namespace of our own.
int chosen_pid() {
  constexpr pid_t kPid = 4321;
  pid_t wanted[1] = {kPid};
  clone_args arguments{};
  arguments.exit_signal = SIGCHLD;
  arguments.set_tid = reinterpret_cast<std::uintptr_t>(wanted);
  arguments.set_tid_size = 1;
  long child = ::syscall(SYS_clone3, &arguments, sizeof(arguments));
  if (child < 0) return errno;
  if (child == 0) ::_exit(::getpid() == kPid ? 0 : EINVAL);
  int status = 0;
  ::waitpid(static_cast<pid_t>(child), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : EINVAL;
}

template <typename Body>
int in_pid_namespace(int more, Body body) {
  return in_child([&] {
    int err = privileges(more | CLONE_NEWPID);
    return err != 0 ? err : in_child(body);
  });
}

int try_proc_mount() {
  return in_pid_namespace(CLONE_NEWNS, [] {
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return errno;
    return ::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) == 0 ? 0 : errno;
  });
}

int try_time_namespace() {
  return in_child([] {
    if (int err = privileges(CLONE_NEWTIME); err != 0) return err;
    return write_text("/proc/self/timens_offsets", "monotonic 1 0\n");
  });
}

int try_memory_map() {
  unsigned size = 0;
  return ::prctl(PR_SET_MM, PR_SET_MM_MAP_SIZE, &size, 0, 0) == 0 && size > 0 ? 0 : errno;
}

struct KernelPages {
  std::uint64_t start, bytes;
  std::string name;
};

// What the kernel maps into each process: "vvar" and the like, and "vdso".
std::vector<KernelPages> kernel_pages() {
  std::vector<KernelPages> pages;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uint64_t start = 0, end = 0;
    char name[32] = {};
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %*s %*s %*s %*s [%31[^]]", &start, &end, name) == 3 &&
        (std::strncmp(name, "vvar", 4) == 0 || std::strcmp(name, "vdso") == 0))
      pages.push_back({start, end - start, name});
  }
  return pages;
}

// The restorer moves them to where the image has them; some kernels seal them. In the child nothing is called
// afterwards that would look for them.
int try_moving(const std::vector<KernelPages>& pages) {
  return in_child([&pages] {
    for (const KernelPages& p : pages) {
      void* room = ::mmap(nullptr, p.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (room == MAP_FAILED) return errno;
      if (::mremap(reinterpret_cast<void*>(p.start), p.bytes, p.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, room) != room)
        return errno;
    }
    return 0;
  });
}

Finding vdso() {
  const std::vector<KernelPages> pages = kernel_pages();
  std::string text;
  for (const KernelPages& p : pages) text += (text.empty() ? "" : ", ") + p.name + " of " + human_bytes(p.bytes);
  if (pages.empty()) return {"vdso", Verdict::kOk, "none; a set needs the same", ""};
  const int error = try_moving(pages);
  if (error == 0) return {"vdso", Verdict::kOk, text + ": can be moved; a set needs the same", ""};
  return {"vdso", Verdict::kMissing, text + ": " + std::strerror(error),
          "this kernel seals its vdso (CONFIG_MSEAL_SYSTEM_MAPPINGS): boot one that does not"};
}

std::string user_namespace_remedy() {
  if (first_line("/proc/sys/user/max_user_namespaces") == "0") return "sysctl user.max_user_namespaces=15000";
  if (first_line("/proc/sys/kernel/unprivileged_userns_clone") == "0")
    return "sysctl kernel.unprivileged_userns_clone=1";
  if (first_line("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1")
    return "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for shadowib";
  return "a container or seccomp filter denies unshare(2): allow it (docker run --security-opt seccomp=unconfined), "
         "or "
         "restart as root";
}

Finding finding(const char* what, int err, const std::string& good, const std::string& remedy) {
  if (err == 0) return {what, Verdict::kOk, good, ""};
  return {what, Verdict::kMissing, std::strerror(err), remedy};
}

}  // namespace

Findings examine_restart() {
  Findings findings;
  int user = try_user_namespace();
  if (user != 0 && ::geteuid() == 0)
    findings.push_back({"user namespaces", Verdict::kOk, "denied, not needed by root", ""});
  else
    findings.push_back(finding("user namespaces", user, "allowed", user_namespace_remedy()));
  findings.push_back(finding("recorded pids", in_pid_namespace(0, chosen_pid),
                             "pid namespace and clone3(set_tid) work",
                             "needs Linux 5.5 and a seccomp filter that allows clone3; or restart as root"));
  findings.push_back(finding("a /proc of its own", try_proc_mount(), "can be mounted in the namespace",
                             "a container masks /proc: start it with an unmasked one (docker run --security-opt "
                             "systempaths=unconfined)"));
  findings.push_back(finding("memory layout", try_memory_map(), "prctl(PR_SET_MM) available",
                             "needs a kernel with CONFIG_CHECKPOINT_RESTORE"));
  const int time = try_time_namespace();
  if (time == 0)
    findings.push_back({"time namespace", Verdict::kOk, "CLOCK_MONOTONIC can go on", ""});
  else
    findings.push_back(
        {"time namespace", Verdict::kNote, std::strerror(time),
         "only sets from a machine that has been up longer are refused; needs Linux 5.6 with CONFIG_TIME_NS"});
  findings.push_back(vdso());
  return findings;
}

}  // namespace shadowib::cli
