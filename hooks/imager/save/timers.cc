// POSIX timers, as /proc/self/timers lists them.
#include <errno.h>
#include <time.h>

#include "hooks/imager/save/process_state.h"
#include "hooks/raw/text.h"
#include "hooks/raw/x86_64/raw_syscall.h"

namespace shadowib {
namespace {

bool skip(const char** at, const char* text) {
  const char* next = find_line(*at, text);
  if (next == nullptr) return false;
  *at = next;
  while (**at == ' ') ++*at;
  return true;
}

std::int32_t parse_signed(const char** at) {
  const bool negative = **at == '-';
  if (negative) ++*at;
  const auto value = static_cast<std::int32_t>(parse_number(at, 10));
  return negative ? -value : value;
}

// "ID: 0\nsignal: 10/00000000deadbeef\nnotify: signal/pid.7\nClockID: 0\n"
bool parse_timer(const char** at, TimerRecord* t) {
  if (!skip(at, "ID:")) return false;
  t->id = parse_signed(at);
  if (!skip(at, "signal:")) return false;
  t->signal = parse_signed(at);
  if (**at != '/') return false;
  ++*at;
  t->value = parse_number(at, 16);
  if (!skip(at, "notify:")) return false;
  // SIGEV_SIGNAL 0, SIGEV_NONE 1, SIGEV_THREAD 2; the kernel adds SIGEV_THREAD_ID 4 as "tid".
  t->notify = (*at)[0] == 's' ? 0 : (*at)[0] == 'n' ? 1 : 2;
  while (**at != '\0' && **at != '/') ++*at;
  if (**at == '\0') return false;
  if ((*at)[1] == 't') t->notify |= 4;
  while (**at != '\0' && **at != '.') ++*at;
  ++*at;
  t->thread = parse_signed(at);
  if (!skip(at, "ClockID:")) return false;
  t->clock = parse_signed(at);
  return true;
}

}  // namespace

Status read_timers(TimerRecord* timers, std::uint32_t capacity, std::uint32_t* count) {
  char text[16 << 10];
  *count = 0;
  const long n = read_small_file("/proc/self/timers", text, sizeof(text));
  if (n == -ENOENT)
    return Status(
        Code::kRefused, ENOENT,
        "this kernel has no /proc/PID/timers (CONFIG_CHECKPOINT_RESTORE), so POSIX timers cannot be seen; use a "
        "kernel that has");
  if (n < 0) return Status::of(Code::kInternal, static_cast<int>(-n), "cannot read /proc/self/timers: errno %ld", -n);
  const char* at = text;
  while (*count < capacity && parse_timer(&at, &timers[*count])) {
    TimerRecord* t = &timers[*count];
    itimerspec now{};
    const long got = raw::invoke(__NR_timer_gettime, t->id, &now);
    if (got < 0)
      return Status::of(Code::kInternal, static_cast<int>(-got), "cannot read POSIX timer %d: errno %ld", t->id,
                        -got);
    t->interval_s = now.it_interval.tv_sec;
    t->interval_ns = now.it_interval.tv_nsec;
    t->remaining_s = now.it_value.tv_sec;
    t->remaining_ns = now.it_value.tv_nsec;
    ++*count;
  }
  if (*count == capacity || n + 1 >= static_cast<long>(sizeof(text)))
    return Status::of(Code::kRefused, 0,
                      "this process has more than %u POSIX timers, which cannot be captured; delete some "
                      "(timer_delete)",
                      capacity - 1);
  return {};
}

}  // namespace shadowib
