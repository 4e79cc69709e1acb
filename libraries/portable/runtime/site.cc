// Sites, and the loop around the program's main.
#include <alloca.h>
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
  bool asked = false;
  time_t last_s = 0;
  int error = 0;  // errno of the program at the site that was left
  sigset_t signals;
};

Run run;

constexpr std::uint64_t kPoisonMargin = 64 << 10;

time_t now_s() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

bool checkpoint_due() {
  if (run.asked || std::find(options().at.begin(), options().at.end(), run.visits) != options().at.end()) return true;
  return options().interval_s && now_s() - run.last_s >= static_cast<time_t>(options().interval_s);
}

// Garbage where the stack was: a variable that was not saved is then seen to be wrong.
[[gnu::noinline]] void poison(std::uint64_t bytes) {
  auto* room = static_cast<volatile unsigned char*>(alloca(bytes));
  for (std::uint64_t i = 0; i < bytes; i++) room[i] = 0xa5;
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
    poison(run.depth_bytes + kPoisonMargin);
    shadowib_portable_mode = kModeEnter;
  }
}
