// Sites, and the loop around the program's main.
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "libraries/portable/include/shadowib/portable.h"
#include "libraries/portable/runtime/foreign.h"
#include "libraries/portable/runtime/frames.h"
#include "libraries/portable/runtime/options.h"

namespace shadowib::portable {
namespace {

struct Run {
  const void* main_function = nullptr;
  pid_t process = 0;
  std::uint64_t visits = 0, leaves = 0, refusals = 0;
  std::uint64_t depth_bytes = 0;
  bool asked = false, poison = false;
  time_t last_s = 0;
  int error = 0;  // errno of the program at the site that was left
  sigset_t signals;
};

Run run;

constexpr std::uint64_t kPoisonMargin = 64 << 10;
constexpr std::uint64_t kReserve = 16 << 10;  // of the stack, for what the poisoning itself calls

time_t now_s() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

bool checkpoint_due() {
  if (run.asked || std::find(options().at.begin(), options().at.end(), run.visits) != options().at.end()) return true;
  return options().interval_s && now_s() - run.last_s >= static_cast<time_t>(options().interval_s);
}

// Bytes below this frame that the stack may still grow by; 0 if that is not known.
std::uint64_t stack_room() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 0;
  void* lowest = nullptr;
  std::size_t bytes = 0;
  const bool known = pthread_attr_getstack(&attributes, &lowest, &bytes) == 0;
  pthread_attr_destroy(&attributes);
  const auto* here = static_cast<char*>(__builtin_frame_address(0));
  return known && here > lowest ? here - static_cast<char*>(lowest) : 0;
}

// Garbage where the stack was, and a margin where there is room for one: a variable that was not saved is then seen
// to be wrong. For tests: it costs as much as the stack is deep.
[[gnu::noinline]] void poison(std::uint64_t depth_bytes) {
  const std::uint64_t room = stack_room(), used = depth_bytes + kReserve;
  const std::uint64_t bytes = depth_bytes + (room > used ? std::min(kPoisonMargin, room - used) : 0);
  auto* garbage = static_cast<volatile unsigned char*>(alloca(bytes));
  for (std::uint64_t i = 0; i < bytes; i++) garbage[i] = 0xa5;
}

std::string reason_to_stay(const void* begin) {
  if (!run.main_function) return "main() was not compiled by shadowib-cc";
  if (getpid() != run.process) return "this process is a child that the program forked";
  if (std::string reason = other_threads(); !reason.empty()) return reason;
  return foreign_frame(begin, run.main_function, &run.depth_bytes);
}

void refuse_checkpoint(const std::string& reason) {
  run.refusals++;
  std::fprintf(stderr, "shadowib: no checkpoint at this site: %s. The program goes on.\n", reason.c_str());
}

void report() {
  std::fprintf(stderr, "shadowib: %lu visits of sites, %lu leaves, %lu refused\n", run.visits, run.leaves,
               run.refusals);
}

void begin_leave() {
  run.leaves++;
  left_stack().frames.clear();
  left_stack().entered = 0;
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &run.signals);  // a handler must not run on half a stack
  shadowib_portable_mode = kModeLeave;
}

void end_enter() {
  LeftStack& stack = left_stack();
  if (stack.entered != stack.frames.size())
    broken("a site was reached with frames left to enter", "compile all files again");
  shadowib_portable_mode = kModeNormal;
  errno = run.error;
  sigprocmask(SIG_SETMASK, &run.signals, nullptr);
}

}  // namespace
}  // namespace shadowib::portable

using namespace shadowib::portable;

extern "C" [[gnu::noinline]] void shadowib_portable_site(void) {
  if (shadowib_portable_mode == kModeEnter) return end_enter();
  run.visits++;
  bool everywhere = run.visits <= options().everywhere, due = checkpoint_due();
  if (!everywhere && !due) return;
  run.asked = false;
  if (due) run.last_s = now_s();
  run.poison = everywhere;
  run.error = errno;
  std::string reason = reason_to_stay(__builtin_return_address(0));
  if (reason.empty()) return begin_leave();
  refuse_checkpoint(reason);
  errno = run.error;
}

extern "C" void shadowib_portable_due(void) { run.asked = true; }
extern "C" unsigned long shadowib_portable_refusals(void) { return run.refusals; }
extern "C" unsigned long shadowib_portable_leaves(void) { return run.leaves; }
extern "C" int shadowib_portable_restarted(void) { return 0; }

extern "C" int shadowib_portable_run(int (*thunk)(int, char**, char**), const void* main_function, int argc,
                                     char** argv, char** envp) {
  run.main_function = main_function;
  run.process = getpid();
  run.last_s = now_s();
  if (options().report) std::atexit(report);
  for (;;) {
    int result = thunk(argc, argv, envp);
    if (shadowib_portable_mode != kModeLeave) return result;
    if (run.poison) poison(run.depth_bytes);
    shadowib_portable_mode = kModeEnter;
  }
}
