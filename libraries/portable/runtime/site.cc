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
#include <new>
#include <string>

#include "libraries/portable/include/shadowib/portable.h"
#include "libraries/portable/runtime/exceptions.h"
#include "libraries/portable/runtime/foreign.h"
#include "libraries/portable/runtime/frames.h"
#include "libraries/portable/runtime/job.h"
#include "libraries/portable/runtime/options.h"
#include "libraries/portable/runtime/restart.h"
#include "libraries/portable/runtime/save.h"
#include "libraries/portable/runtime/saver.h"
#include "libraries/portable/runtime/state.h"

namespace shadowib::portable {
namespace {

struct Run {
  const void* main_function = nullptr;
  pid_t process = 0;
  std::uint64_t visits = 0, leaves = 0, refusals = 0;
  std::uint64_t depth_bytes = 0;
  bool asked = false, poison = false, save = false, restarted = false;
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

bool due_at(std::uint64_t visit) {
  return std::find(options().at.begin(), options().at.end(), visit) != options().at.end();
}

bool checkpoint_due() {
  if (run.asked || due_at(run.visits)) return true;
  return options().interval_s && !saver_runs() && now_s() - run.last_s >= static_cast<time_t>(options().interval_s);
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
  if (std::string reason = exception_at_hand(); !reason.empty()) return reason;
  return foreign_frame(begin, run.main_function, &run.depth_bytes);
}

void tell_refused(const std::string& reason) {
  std::fprintf(stderr, "shadowib: no checkpoint at this site: %s. The program goes on.\n", reason.c_str());
}

void refuse_checkpoint(const std::string& reason) {
  run.refusals++;
  if (has_order() && getpid() == run.process) answer_refused(reason);  // a child answers nothing
  tell_refused(reason);
}

// A saver that refused has told it by itself.
void note_saver(Saved what, const std::string& reason) {
  run.refusals += what == Saved::kRefused || what == Saved::kDied;
  if (what != Saved::kDied) return;
  answer_for_saver(reason);
  tell_refused(reason);
}

void await_saver() {
  if (getpid() != run.process) return;  // of a child that the program forked it is none
  std::string reason;
  const Saved what = end_saver(&reason);
  note_saver(what, reason);
}

void report() {
  std::fprintf(stderr, "shadowib: %llu visits of sites, %llu leaves, %llu refused\n",
               static_cast<unsigned long long>(run.visits), static_cast<unsigned long long>(run.leaves),
               static_cast<unsigned long long>(run.refusals));
}

void mask_signals() {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &run.signals);  // a handler must not run on half a stack
}

void begin_leave() {
  run.leaves++;
  left_stack().frames.clear();
  left_stack().entered = 0;
  mask_signals();
  shadowib_portable_mode = kModeLeave;
}

void end_enter() {
  LeftStack& stack = left_stack();
  if (stack.entered != stack.frames.size())
    broken("a site was reached with frames left to enter", "compile all files again");
  if (restarting()) end_restart();
  shadowib_portable_mode = kModeNormal;
  errno = run.error;
  sigprocmask(SIG_SETMASK, &run.signals, nullptr);
}

// Returns why not, or an empty text.
std::string write_images() {
  try {
    if (!options().directory.empty()) save_image(options().directory, options().member, run.visits);
    if (!has_order()) return "";
    save_image(order_directory(), options().member, run.visits);
    answer_saved(run.visits, run.process);
    return "";
  } catch (const Refused& refused) {
    return refused.text;
  } catch (const std::bad_alloc&) {
    return "there is no memory for its tables";
  }
}

std::string write_images_or_tell() {
  std::string reason = write_images();
  if (reason.empty()) return reason;
  if (has_order()) answer_refused(reason);
  tell_refused(reason);
  return reason;
}

// With the stack left: output that the program has made is out, so a restart does not make it again.
void save() {
  run.save = false;
  flush_streams();
  std::fflush(nullptr);
  await_saver();  // its image must not come after this one
  // A process that is to end with its checkpoint has nothing to go on with.
  if (!order_kills() && begin_saver(write_images_or_tell)) return hand_over_order();
  if (!write_images_or_tell().empty()) run.refusals++;
}

void begin_from(const std::string& path) {
  mask_signals();
  try {
    run.visits = begin_restart(path, options().exact);
  } catch (const Refused& refused) {
    std::fprintf(stderr, "shadowib: %s cannot be restarted: %s\n", path.c_str(), refused.text.c_str());
    std::exit(kExitImage);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "shadowib: %s cannot be restarted: there is no memory for it\n", path.c_str());
    std::exit(kExitImage);
  }
  run.restarted = true;
  shadowib_portable_mode = kModeEnter;
}

// A site was reached, in whatever mode.
void visit(const void* caller, bool due) {
  const bool everywhere = run.visits <= options().everywhere;
  if (!everywhere && !due) return;
  run.asked = false;
  if (due) run.last_s = now_s();
  run.poison = everywhere;
  run.save = due && (!options().directory.empty() || has_order());
  run.error = errno;
  std::string reason = reason_to_stay(caller);
  if (reason.empty()) return begin_leave();
  refuse_checkpoint(reason);
  errno = run.error;
}

}  // namespace
}  // namespace shadowib::portable

using namespace shadowib::portable;

extern "C" [[gnu::noinline]] void shadowib_portable_site(void) noexcept {
  const void* caller = __builtin_return_address(0);
  if (shadowib_portable_mode == kModeEnter) {
    const bool first = restarting();
    end_enter();
    if (first && due_at(0)) visit(caller, true);
    return;
  }
  run.visits++;
  if (saver_runs() && getpid() == run.process) {
    std::string reason;
    note_saver(look_at_saver(&reason), reason);
  }
  if (job_asks() && getpid() == run.process) take_order();
  visit(caller, has_order() || checkpoint_due());
}

extern "C" void shadowib_portable_due(void) noexcept { run.asked = true; }
extern "C" unsigned long shadowib_portable_refusals(void) noexcept {
  await_saver();
  return run.refusals;
}
extern "C" unsigned long shadowib_portable_leaves(void) noexcept { return run.leaves; }
extern "C" int shadowib_portable_restarted(void) noexcept { return run.restarted; }

extern "C" int shadowib_portable_run(int (*thunk)(int, char**, char**), const void* main_function, int argc,
                                     char** argv, char** envp) {
  run.main_function = main_function;
  run.process = getpid();
  run.last_s = now_s();
  join_job();  // first, so that its end is noted last
  if (options().report) std::atexit(report);
  std::atexit(await_saver);  // before the report, which counts it
  if (!options().from.empty()) {
    begin_from(options().from);
  } else if (!options().directory.empty() || in_job()) {
    argv = keep_arguments(argc, argv);
  }
  for (;;) {
    int result = thunk(argc, argv, envp);
    if (shadowib_portable_mode != kModeLeave) return result;
    if (run.poison) poison(run.depth_bytes);
    if (run.save) save();
    shadowib_portable_mode = kModeEnter;
  }
}
