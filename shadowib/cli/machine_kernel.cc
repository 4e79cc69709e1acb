// The kernel, the C library and the processor, and the kernel calls and files that a checkpoint depends on.
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <linux/close_range.h>
#include <linux/kcmp.h>
#include <linux/netlink.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/rseq.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "hooks/imager/processor.h"
#include "shadowib/base/proc_queries.h"
#include "shadowib/cli/in_child.h"
#include "shadowib/cli/machine.h"
#include "shadowib/cli/output.h"

#pragma weak __rseq_size

namespace shadowib::cli {
namespace {

constexpr unsigned long long kUsualMapCount = 65530;
constexpr unsigned long long kUsualLowestAddress = 65536;
constexpr std::size_t kMostGroups = 64;  // an image has room for (hooks/imager/image_format.h)

int error_of(long result) { return result >= 0 ? 0 : errno; }

int try_open(const char* path) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  ::close(fd);
  return 0;
}

int try_query(const char* path, unsigned long query) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  const int error = ::ioctl(fd, query, nullptr) == 0 || errno == EFAULT ? 0 : errno;
  ::close(fd);
  return error;
}

// In a child each, since a filter may kill who calls.
std::vector<Trial> try_calls() {
  const char* filter = "allow it in the container's seccomp profile (docker run --security-opt seccomp=unconfined)";
  const char* proc = "mount /proc without hidepid and unmasked, and see the security module's log";
  const char* config = "use a kernel with that option";
  std::vector<Trial> trials;
  auto add = [&trials](const char* name, bool required, const char* without, const char* remedy, auto body) {
    trials.push_back({name, in_child(body), required, without, remedy});
  };
  add("/proc/self/mem", true, "memory cannot be saved", proc, [] { return try_open("/proc/self/mem"); });
  add("/proc/self/pagemap", true, "memory cannot be saved", proc, [] { return try_open("/proc/self/pagemap"); });
  add("/proc/PID/timers", true, "timers cannot be saved (CONFIG_CHECKPOINT_RESTORE)", config,
      [] { return try_open("/proc/self/timers"); });
  add("/proc/PID/task/TID/children", true, "child processes cannot be seen (CONFIG_PROC_CHILDREN)", config,
      [] { return try_open("/proc/thread-self/children"); });
  add("sock_diag", true, "sockets cannot be saved (CONFIG_INET_DIAG, CONFIG_UNIX_DIAG)", config,
      [] { return error_of(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)); });
  add("memfd_create", true, "descriptor numbers cannot be kept free in a restart", filter,
      [] { return error_of(::syscall(SYS_memfd_create, "shadowib-doctor", 1u)); });
  add("kcmp", false, "which descriptors are copies of each other is found out by moving file offsets", filter, [] {
    const long self = ::syscall(SYS_getpid);
    return ::syscall(SYS_kcmp, self, self, KCMP_FILE, 1ul, 1ul) >= 0 || errno == EBADF ? 0 : errno;
  });
  add("close_range", false, "descriptors are closed one by one", filter,
      [] { return error_of(::syscall(SYS_close_range, UINT_MAX, UINT_MAX, 0)); });
  add("inotify", false, "the exchange looks again at a bounded rate", "raise fs.inotify.max_user_instances",
      [] { return error_of(::inotify_init1(IN_CLOEXEC)); });
  add("pidfd_open", false, "queued signals of a process lose their sender", filter,
      [] { return error_of(::syscall(SYS_pidfd_open, ::getpid(), 0)); });
  // Where the question is known its missing argument is noticed.
  const char* newer = "nothing to do without it; newer kernels have it";
  add("PAGEMAP_SCAN", false, "pages are found one by one, which takes longer in a checkpoint (Linux 6.7)", newer,
      [] { return try_query("/proc/self/pagemap", kPagemapScan); });
  add("PROCMAP_QUERY", false, "all mappings are read as text, which takes longer in a checkpoint (Linux 6.11)", newer,
      [] { return try_query("/proc/self/maps", kProcmapQuery); });
  add("native AIO", false, "images are written to disks one record after the other (CONFIG_AIO)",
      "raise fs.aio-max-nr, or use a kernel with that option", [] {
        unsigned long queue = 0;
        return error_of(::syscall(SYS_io_setup, 8, &queue));
      });
  add("huge pages", false, "images are written to disks in small pieces, which takes a third longer",
      "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled", [] {
        char text[64] = {};
        const int fd = ::open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
        if (fd < 0 || ::read(fd, text, sizeof(text) - 1) <= 0) return errno;
        return std::strstr(text, "[never]") == nullptr ? 0 : ENOTSUP;
      });
  return trials;
}

// The value of "NAME:\tVALUE" in /proc/PID/status.
std::string status_field(const std::string& status, const std::string& name) {
  std::istringstream lines(status);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, name.size() + 1, name + ":") != 0) continue;
    const std::size_t at = line.find_first_not_of(" \t", name.size() + 1);
    return at == std::string::npos ? std::string() : line.substr(at);
  }
  return {};
}

Finding kernel() {
  utsname name{};
  ::uname(&name);
  return {"kernel", Verdict::kOk, std::string(name.sysname) + " " + name.release + " " + name.machine, ""};
}

Finding c_library() {
  const bool rseq = &__rseq_size != nullptr && __rseq_size != 0;
  return {"C library", Verdict::kOk,
          std::string("glibc ") + ::gnu_get_libc_version() + (rseq ? ", rseq registered" : ", rseq not registered") +
              "; a set needs the version it was made with",
          ""};
}

Finding processor() {
  return {"processor", Verdict::kOk, describe_processor() + "; a set needs the features of its machine", ""};
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

Findings judge_trials(const std::vector<Trial>& trials) {
  Findings findings;
  std::string works;
  for (const Trial& t : trials) {
    if (t.error == 0)
      works += (works.empty() ? "" : ", ") + std::string(t.name);
    else
      findings.push_back({t.name, t.required ? Verdict::kMissing : Verdict::kNote,
                          std::string(std::strerror(t.error)) + ": " + t.without, t.remedy});
  }
  if (!works.empty()) findings.insert(findings.begin(), {"kernel interfaces", Verdict::kOk, works, ""});
  return findings;
}

Finding judge_inheritance(const std::string& status) {
  const char* what = "inherited state";
  if (const std::string mode = status_field(status, "Seccomp"); !mode.empty() && mode != "0")
    return {what, Verdict::kMissing,
            "programs started here are under a seccomp filter (mode " + mode + "), which no checkpoint captures",
            "start the container without one (docker run --security-opt seccomp=unconfined)"};
  if (status_field(status, "x86_Thread_features").find("shstk") != std::string::npos)
    return {what, Verdict::kMissing, "programs started here get a shadow stack, which no checkpoint captures",
            "GLIBC_TUNABLES=glibc.cpu.x86_shstk=off"};
  std::istringstream groups(status_field(status, "Groups"));
  std::size_t count = 0;
  for (std::string group; groups >> group;) ++count;
  if (count > kMostGroups)
    return {what, Verdict::kMissing,
            "this user is in " + std::to_string(count) + " supplementary groups; an image has room for 64",
            "start programs with fewer (setpriv --groups)"};
  return {what, Verdict::kOk, "no seccomp filter, no shadow stack, " + std::to_string(count) + " groups", ""};
}

Finding judge_memory_map(const Places& places) {
  const std::string vm = places.proc + "/sys/vm/";
  const std::string maps = first_line(vm + "max_map_count"), lowest = first_line(vm + "mmap_min_addr"),
                    overcommit = first_line(vm + "overcommit_memory");
  const std::string text = "vm.max_map_count " + (maps.empty() ? "unknown" : maps) + ", vm.mmap_min_addr " +
                           (lowest.empty() ? "unknown" : lowest) + ", vm.overcommit_memory " +
                           (overcommit.empty() ? "unknown" : overcommit);
  const char* what = "memory map limits";
  if (!maps.empty() && std::strtoull(maps.c_str(), nullptr, 10) < kUsualMapCount)
    return {what, Verdict::kNote, text + ": programs with many mappings cannot be restarted",
            "sysctl vm.max_map_count=" + std::to_string(kUsualMapCount)};
  if (!lowest.empty() && std::strtoull(lowest.c_str(), nullptr, 10) > kUsualLowestAddress)
    return {what, Verdict::kNote, text + ": programs with memory below that cannot be restarted",
            "sysctl vm.mmap_min_addr=" + std::to_string(kUsualLowestAddress)};
  if (overcommit == "2")
    return {what, Verdict::kNote, text + ": programs that reserve more memory than they use cannot be restarted",
            "sysctl vm.overcommit_memory=0"};
  return {what, Verdict::kOk, text, ""};
}

Findings examine_kernel(const Places& places) {
  Findings findings{kernel(), c_library(), processor()};
  const Findings interfaces = judge_trials(try_calls());
  findings.insert(findings.end(), interfaces.begin(), interfaces.end());
  findings.push_back(judge_inheritance(text_of(places.proc + "/self/status")));
  findings.push_back(judge_memory_map(places));
  return findings;
}

}  // namespace shadowib::cli
