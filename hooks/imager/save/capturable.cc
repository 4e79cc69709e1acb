// check_capturable: what of memory, process state and children stands in the way of a checkpoint.
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "hooks/imager/arch/x86_64/raw_syscall.h"
#include "hooks/imager/imager.h"
#include "hooks/imager/save/directory.h"
#include "hooks/imager/save/mapping_table.h"
#include "hooks/imager/save/process_state.h"
#include "hooks/imager/save/raw_text.h"

namespace shadowib {
namespace {

Status check_status_file() {
  char text[8192];
  const long bytes = read_small_file("/proc/self/status", text, sizeof(text));
  if (bytes <= 0)
    return Status(Code::kPermission, static_cast<int>(-bytes), "cannot read /proc/self/status; mount /proc");
  const auto number = [&text](const char* name) -> std::uint64_t {
    const char* at = find_line(text, name);
    if (at == nullptr) return 0;
    while (*at == ' ' || *at == '\t') ++at;
    return parse_number(&at, 10);
  };
  if (const std::uint64_t tracer = number("TracerPid:"); tracer != 0)
    return Status::of(Code::kRefused, 0, "this process is traced by process %lu (a debugger or strace); detach it",
                      tracer);
  if (const std::uint64_t mode = number("Seccomp:"); mode != 0)
    return Status::of(Code::kRefused, 0,
                      "this process runs under a seccomp filter (mode %lu), which cannot be captured; "
                      "start it without",
                      mode);
  if (const char* features = find_line(text, "x86_Thread_features:")) {
    for (; *features != '\0' && *features != '\n'; ++features)
      if (features[0] == 's' && features[1] == 'h' && features[2] == 's')
        return Status(Code::kRefused, 0,
                      "this process has a shadow stack, which cannot be captured; start it with "
                      "GLIBC_TUNABLES=glibc.cpu.x86_shstk=off");
  }
  return {};
}

// The main thread may have ended with pthread_exit while others go on.
Status check_main_thread() {
  char text[1024];
  if (read_small_file("/proc/self/stat", text, sizeof(text)) <= 0) return {};
  const char* at = text;
  for (const char* c = text; *c != '\0'; ++c)
    if (*c == ')') at = c;
  if (at[0] == ')' && at[1] == ' ' && (at[2] == 'Z' || at[2] == 'X'))
    return Status(Code::kRefused, 0,
                  "the main thread of this process has ended while others run, which cannot be captured");
  return {};
}

// What kind of program a child is, as far as its file tells.
const char* kind_of_program(int pid) {
  char path[64];
  format_path(path, sizeof(path), "/proc/", pid, "/exe");
  const long fd = raw::invoke(__NR_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return "that may not be inspected (setuid?)";
  struct stat info {};
  const char* kind = "static";
  Elf64_Ehdr header{};
  if (raw::invoke(__NR_fstat, fd, &info) == 0 && (info.st_mode & 06000) != 0)
    kind = "setuid";
  else if (raw::invoke(__NR_pread64, fd, &header, sizeof(header), 0) == sizeof(header) &&
           header.e_phentsize == sizeof(Elf64_Phdr)) {
    for (unsigned i = 0; i < header.e_phnum && i < 64; ++i) {
      Elf64_Phdr p{};
      raw::invoke(__NR_pread64, fd, &p, sizeof(p), header.e_phoff + i * sizeof(p));
      if (p.p_type == PT_INTERP) kind = "dynamic";
    }
  } else {
    kind = "of another architecture";
  }
  raw::invoke(__NR_close, fd);
  return kind;
}

Status check_child(int pid) {
  char path[64], name[64] = {}, stat[512] = {};
  format_path(path, sizeof(path), "/proc/", pid, "/comm");
  long bytes = read_small_file(path, name, sizeof(name));
  if (bytes > 0 && name[bytes - 1] == '\n') name[bytes - 1] = '\0';
  format_path(path, sizeof(path), "/proc/", pid, "/stat");
  read_small_file(path, stat, sizeof(stat));
  const char* state = stat;
  for (const char* c = stat; *c != '\0'; ++c)
    if (*c == ')') state = c;
  if (state[0] == ')' && state[1] != '\0' && state[2] == 'Z')
    return Status::of(Code::kRefused, 0,
                      "child process %d (%s) has ended and waits to be reaped, which cannot be captured; "
                      "call wait()",
                      pid, name);
  return Status::of(Code::kRefused, 0,
                    "child process %d (%s, %s) cannot be captured, member of the job or not; wait for it to end", pid,
                    name, kind_of_program(pid));
}

// /proc/self/task/TID/children lists the children that thread made.
Status check_children() {
  char probe[16];
  if (read_small_file("/proc/thread-self/children", probe, sizeof(probe)) == -ENOENT)
    return Status(
        Code::kRefused, ENOENT,
        "this kernel has no /proc/PID/task/TID/children (CONFIG_PROC_CHILDREN), so child processes cannot be "
        "seen; use a kernel that has");
  Directory tasks("/proc/self/task");
  while (const char* name = tasks.next()) {
    if (name[0] < '0' || name[0] > '9') continue;
    const char* digits = name;
    char path[64], text[4096];
    format_path(path, sizeof(path), "/proc/self/task/", static_cast<int>(parse_number(&digits, 10)), "/children");
    const long bytes = read_small_file(path, text, sizeof(text));
    if (bytes == -ENOENT) continue;  // the thread has gone
    for (const char* at = text; bytes > 0 && *at != '\0';) {
      const int pid = static_cast<int>(parse_number(&at, 10));
      if (pid > 0) SHADOWIB_TRY(check_child(pid));
      while (*at == ' ') ++at;
    }
  }
  return {};
}

Status check_memory_and_timers() {
  Scratch scratch;
  if (!scratch.map(32 << 20)) return Status(Code::kInternal, ENOMEM, "no memory for the imager's scratch");
  MappingTable table;
  Status status = read_mappings(&scratch, SharedList{nullptr, 0}, &table);
  scratch.unmap();
  TimerRecord timers[64] = {};
  std::uint32_t count = 0;
  if (status.ok()) status = read_timers(timers, 64, &count);
  return status;
}

}  // namespace

Status check_capturable() {
  SHADOWIB_TRY(check_status_file());
  SHADOWIB_TRY(check_main_thread());
  SHADOWIB_TRY(check_children());
  return check_memory_and_timers();
}

}  // namespace shadowib
