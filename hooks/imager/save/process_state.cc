#include "hooks/imager/save/process_state.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/prctl.h>
#include <linux/securebits.h>
#include <sys/utsname.h>
#include <time.h>

#include "hooks/imager/save/restart_mailbox.h"
#include "hooks/raw/text.h"
#include "hooks/raw/x86_64/processor_state.h"
#include "hooks/raw/x86_64/raw_syscall.h"
#include "hooks/threads/thread_context.h"

namespace shadowib {
namespace {

Status unreadable(const char* what, long error) {
  return Status::of(Code::kInternal, static_cast<int>(-error), "cannot read %s of this process: errno %ld", what,
                    -error);
}

std::int64_t clock_ns(int clock) {
  timespec ts{};
  raw::invoke(__NR_clock_gettime, clock, &ts);
  return ts.tv_sec * 1000000000ll + ts.tv_nsec;
}

void read_identity(ProcessRecord* p) {
  p->pid = static_cast<std::int32_t>(raw::call(__NR_getpid));
  p->process_group = static_cast<std::int32_t>(raw::call(__NR_getpgid, 0));
  p->session = static_cast<std::int32_t>(raw::call(__NR_getsid, 0));
  p->agent_tid = static_cast<std::int32_t>(raw::call(__NR_gettid));
  p->personality = static_cast<std::uint32_t>(raw::call(__NR_personality, 0xffffffff));
  p->umask = static_cast<std::uint32_t>(raw::call(__NR_umask, 077));
  raw::call(__NR_umask, p->umask);
  raw::invoke(__NR_getresuid, &p->uid[0], &p->uid[1], &p->uid[2]);
  raw::invoke(__NR_getresgid, &p->gid[0], &p->gid[1], &p->gid[2]);
  p->uid[3] = static_cast<std::uint32_t>(raw::call(__NR_setfsuid, ~0ull));
  p->gid[3] = static_cast<std::uint32_t>(raw::call(__NR_setfsgid, ~0ull));
  p->realtime_ns = clock_ns(CLOCK_REALTIME);
  p->monotonic_ns = clock_ns(CLOCK_MONOTONIC);
  p->boottime_ns = clock_ns(CLOCK_BOOTTIME);
}

Status read_credentials(ProcessRecord* p) {
  const long groups = raw::invoke(__NR_getgroups, 64, p->groups);
  if (groups < 0)
    return Status(
        Code::kRefused, EINVAL,
        "this process has more than 64 supplementary groups, which cannot be captured; start it with fewer (setpriv "
        "--groups)");
  p->group_count = static_cast<std::uint32_t>(groups);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  const long got = raw::invoke(__NR_capget, &header, data);
  if (got < 0) return unreadable("capabilities", got);
  p->capabilities[0] = data[0].inheritable | static_cast<std::uint64_t>(data[1].inheritable) << 32;
  p->capabilities[1] = data[0].permitted | static_cast<std::uint64_t>(data[1].permitted) << 32;
  p->capabilities[2] = data[0].effective | static_cast<std::uint64_t>(data[1].effective) << 32;
  for (unsigned cap = 0; cap < 64; ++cap) {
    if (raw::invoke(__NR_prctl, PR_CAPBSET_READ, cap, 0, 0, 0) == 1) p->capabilities[3] |= 1ull << cap;
    if (raw::invoke(__NR_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, cap, 0, 0) == 1)
      p->capabilities[4] |= 1ull << cap;
  }
  p->secure_bits = static_cast<std::uint32_t>(raw::invoke(__NR_prctl, PR_GET_SECUREBITS, 0, 0, 0, 0));
  p->no_new_privileges = static_cast<std::uint32_t>(raw::invoke(__NR_prctl, PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
  p->dumpable = static_cast<std::uint32_t>(raw::invoke(__NR_prctl, PR_GET_DUMPABLE, 0, 0, 0, 0));
  raw::invoke(__NR_prctl, PR_GET_CHILD_SUBREAPER, &p->child_subreaper, 0, 0, 0);
  const long huge_pages = raw::invoke(__NR_prctl, PR_GET_THP_DISABLE, 0, 0, 0, 0);
  p->thp_disabled = huge_pages > 0 ? static_cast<std::uint32_t>(huge_pages) : 0;
  char text[32];
  if (read_small_file("/proc/self/oom_score_adj", text, sizeof(text)) > 0) {
    const char* at = text;
    const bool negative = *at == '-';
    if (negative) ++at;
    const auto value = static_cast<std::int32_t>(parse_number(&at, 10));
    p->oom_score_adj = negative ? -value : value;
  }
  return {};
}

// proc_pid_stat(5): fields are counted behind the command's closing parenthesis, which the name may contain as well.
Status read_memory_layout(ProcessRecord* p) {
  char text[4096];
  const long bytes = read_small_file("/proc/self/stat", text, sizeof(text));
  if (bytes <= 0) return unreadable("/proc/self/stat", bytes);
  const char* at = text + bytes;
  while (at > text && *at != ')') --at;
  ++at;
  std::uint64_t field[53] = {};
  for (int n = 3; n < 53; ++n) {
    while (*at == ' ' || *at == '-') ++at;
    if (*at == '\0' || *at == '\n') break;
    if (n == 3)
      ++at;  // the state, a letter
    else
      field[n] = parse_number(&at, 10);
  }
  p->start_code = field[26];
  p->end_code = field[27];
  p->start_stack = field[28];
  p->start_data = field[45];
  p->end_data = field[46];
  p->start_brk = field[47];
  p->arg_start = field[48];
  p->arg_end = field[49];
  p->env_start = field[50];
  p->env_end = field[51];
  p->brk = static_cast<std::uint64_t>(raw::call(__NR_brk, 0));
  const long auxv = raw::invoke(__NR_openat, AT_FDCWD, "/proc/self/auxv", O_RDONLY | O_CLOEXEC, 0);
  if (auxv < 0) return unreadable("/proc/self/auxv", auxv);
  const long n = raw::invoke(__NR_read, auxv, p->auxv, sizeof(p->auxv));
  raw::invoke(__NR_close, auxv);
  if (n <= 0) return unreadable("/proc/self/auxv", n);
  p->auxv_bytes = static_cast<std::uint64_t>(n);
  for (int resource = 0; resource < 16; ++resource)
    raw::invoke(__NR_prlimit64, 0, resource, nullptr, p->limits[resource]);
  for (int which = 0; which < 3; ++which) raw::invoke(__NR_getitimer, which, p->interval_timers[which]);
  return {};
}

void read_processor(ProcessRecord* p) {
  ProcessorState here;
  read_processor_state(&here);
  p->xcr0 = here.xcr0;
  static_assert(sizeof(p->cpu_features) == sizeof(here.features) &&
                sizeof(p->state_offsets) == sizeof(here.state_offsets));
  __builtin_memcpy(p->cpu_features, here.features, sizeof(here.features));
  __builtin_memcpy(p->state_offsets, here.state_offsets, sizeof(here.state_offsets));
}

Status add_link(ProcessState* s, const char* link) {
  const long n = raw::invoke(__NR_readlinkat, AT_FDCWD, link, s->strings + s->string_bytes, 4095);
  if (n < 0) return unreadable(link, n);
  s->string_bytes += static_cast<std::uint32_t>(n) + 1;
  return {};
}

void add_string(ProcessState* s, const char* text) {
  while (*text != '\0' && s->string_bytes + 2 < sizeof(s->strings)) s->strings[s->string_bytes++] = *text++;
  s->strings[s->string_bytes++] = '\0';
}

Status read_strings(ProcessState* s) {
  SHADOWIB_TRY(add_link(s, "/proc/self/exe"));
  SHADOWIB_TRY(add_link(s, "/proc/self/cwd"));
  SHADOWIB_TRY(add_link(s, "/proc/self/root"));
  utsname kernel{};
  raw::invoke(__NR_uname, &kernel);
  add_string(s, kernel.release);
  add_string(s, kernel.machine);
  const long n = read_small_file("/proc/self/cmdline", s->command_line, sizeof(s->command_line));
  s->command_line_bytes = n > 0 ? static_cast<std::uint32_t>(n) : 0;
  return {};
}

// Queues a signal to the process again. From a thread that is not the main one the kernel takes a siginfo with
// si_code >= 0 only through a pidfd of that thread (Linux 6.9); before, the signal comes with this process as its
// sender.
void queue_again(std::int32_t pid, const std::uint8_t* info) {
  const std::int32_t signal = *reinterpret_cast<const std::int32_t*>(info);
  if (!raw::failed(raw::invoke(__NR_rt_sigqueueinfo, pid, signal, info))) return;
  constexpr unsigned kThread = O_EXCL /* PIDFD_THREAD */, kToGroup = 2 /* PIDFD_SIGNAL_THREAD_GROUP */;
  const long pidfd = raw::invoke(__NR_pidfd_open, raw::call(__NR_gettid), kThread);
  const long sent = pidfd < 0 ? pidfd : raw::invoke(__NR_pidfd_send_signal, pidfd, signal, info, kToGroup);
  if (pidfd >= 0) raw::invoke(__NR_close, pidfd);
  if (raw::failed(sent)) raw::invoke(__NR_kill, pid, signal);
}

// Signals pending for the process as a whole. Of the standard ones at most one is pending and its sender means
// nothing after a restart, so they are noted without being touched. Real-time signals queue and carry values: they
// can only be seen by taking them out.
Status read_pending(ProcessState* s) {
  constexpr std::uint64_t kStandard = 0x7fffffff;
  std::uint64_t shared = 0;
  if (!read_status_field("/proc/thread-self/status", "ShdPnd:", &shared)) return {};
  for (std::int32_t signal = 1; signal < 32; ++signal)
    if ((shared & 1ull << (signal - 1)) != 0)
      *reinterpret_cast<std::int32_t*>(s->pending[s->pending_count++]) = signal;
  Status result;
  const std::uint32_t first_queued = s->pending_count;
  while ((shared &= ~kStandard) != 0) {
    if (s->pending_count == 64) {
      result = Status(Code::kRefused, 0,
                      "more than 64 signals are queued to this process, which cannot be captured; try again when it "
                      "has taken them");
      break;
    }
    const std::uint64_t one = shared & (~shared + 1);
    const std::int64_t zero[2] = {0, 0};
    if (raw::invoke(__NR_rt_sigtimedwait, &one, s->pending[s->pending_count], zero, 8) <= 0) break;
    ++s->pending_count;
    if (!read_status_field("/proc/thread-self/status", "ShdPnd:", &shared)) break;
  }
  for (std::uint32_t i = first_queued; i < s->pending_count; ++i) queue_again(s->process.pid, s->pending[i]);
  return result;
}

}  // namespace

Status read_process_state(ProcessState* s) {
  read_identity(&s->process);
  SHADOWIB_TRY(read_credentials(&s->process));
  SHADOWIB_TRY(read_memory_layout(&s->process));
  read_processor(&s->process);
  read_memory_state(&s->process);
  SHADOWIB_TRY(read_strings(s));
  for (int signal = 1; signal <= 64; ++signal)
    raw::invoke(__NR_rt_sigaction, signal, nullptr, &s->actions[signal - 1], 8);
  SHADOWIB_TRY(read_timers(s->timers, 64, &s->timer_count));
  SHADOWIB_TRY(read_pending(s));
  s->process.mailbox_address = reinterpret_cast<std::uint64_t>(&shadowib_restart_mailbox);
  s->process.mailbox_bytes = sizeof(shadowib_restart_mailbox);
  s->process.mailbox_layout = kMailboxLayout;
  s->process.threads_in_restorer_address = reinterpret_cast<std::uint64_t>(&shadowib_threads_in_restorer);
  return {};
}

}  // namespace shadowib
