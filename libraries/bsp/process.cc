#include "libraries/bsp/process.h"

#include <sched.h>
#include <shadowib/shadowib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>

#include "libraries/bsp/complain.h"
#include "libraries/bsp/environment.h"
#include "libraries/bsp/meeting.h"
#include "libraries/bsp/sabotage.h"

namespace shadowib::bsp {

Supersteps* supersteps = nullptr;

namespace {

#ifdef SHADOWIB_BSP_PORTABLE
constexpr bool kIsPortable = true;
#else
constexpr bool kIsPortable = false;
#endif
constexpr int kExitImage = 5;  // as of all commands: an image cannot be used

enum class Stage { kBefore, kParallel, kAfter };

// Never destroyed: queue pairs live until the process ends.
Environment* environment = nullptr;
Mesh* mesh = nullptr;
Stage stage = Stage::kBefore;
int processes = 0;
pid_t owner = 0;
timespec began{}, saved{};
double seconds_before = 0;  // of bsp_time(), in the processes before the image

const Environment& surroundings() {
  if (environment == nullptr) {
    environment = new Environment(read_environment());
    own_number = environment->process;
  }
  return *environment;
}

double seconds_since(const timespec& then) {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec - then.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec - then.tv_nsec);
}

void tell_abort() { mesh->tell(Mesh::End::kAbort); }

// A child of a fork has neither queue pairs nor a place in the job.
bool is_own() { return ::getpid() == owner; }

void left_too_early(int status, void*) {
  if (stage == Stage::kParallel && is_own()) fail("ended with exit code %d before bsp_end()", status & 0xff);
}

// Process 0 says how many begin: the others may not know what it has read.
int agree_on_count(int wanted) {
  const Environment& here = surroundings();
  if (here.processes == 1) return 1;
  const std::string name = name_of_run(here.epoch, "begin");
  unsigned char bytes[4];  // lowest first: others may have another order
  if (here.process == 0) {
    if (wanted < here.processes) note_count(wanted);
    for (int i = 0; i < 4; ++i) bytes[i] = static_cast<unsigned char>(wanted >> (8 * i));
    show(name, bytes, sizeof(bytes));
    return wanted;
  }
  int count = noted_count();
  if (count > 0 && here.process >= count) return count;
  if (await(here.epoch, 0, name, bytes, sizeof(bytes)) != sizeof(bytes)) fail("process 0 has another library");
  count = 0;
  for (int i = 0; i < 4; ++i) count |= bytes[i] << (8 * i);
  return count;
}

int processors() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

void ask_for_checkpoint() {
  const int outcome = shadowib_checkpoint(0, 0, nullptr, 0);
  if (outcome < 0) say("no checkpoint after superstep %" PRIu64 ": %s", supersteps->number(), shadowib_last_error());
  ::clock_gettime(CLOCK_MONOTONIC, &saved);
}

// All are at the end of one superstep, and stay there until the set is committed.
void checkpoint() {
  supersteps->barrier();
  if (surroundings().process == 0) ask_for_checkpoint();
  supersteps->barrier();
}

}  // namespace

void outside(const char* call) {
  surroundings();
  if (stage == Stage::kBefore) fail("%s() was called before bsp_begin()", call);
  fail("%s() was called after bsp_end()", call);
}

bool is_other() {
  if (stage != Stage::kBefore) fail("bsp_init() was called after bsp_begin()");
  return surroundings().process != 0;
}

void init(void (*spmd)()) {
  if (stage != Stage::kBefore) fail("bsp_init() was called after bsp_begin()");
  if (surroundings().process == 0) return;
  spmd();
  std::exit(0);
}

namespace {

// All processes of the parallel part are known.
void connect() {
  const Environment& here = surroundings();
  if (processes > 1) {
    mesh = new Mesh(here.process, processes, here.epoch, spins_for(here.here, processors()));
    mesh->connect();
    tell_peers = tell_abort;
  }
  supersteps = new Supersteps(here.process, processes, mesh);
  owner = ::getpid();
  stage = Stage::kParallel;
  ::on_exit(left_too_early, nullptr);
  ::clock_gettime(CLOCK_MONOTONIC, &began);
  saved = began;
  if constexpr (kIsPortable) ask_to_save();  // from now on this library answers for the program
}

}  // namespace

void begin(long wanted) {
  const Environment& here = surroundings();
  if (stage != Stage::kBefore) fail("bsp_begin() was called twice");
  if (here.process == 0 && wanted < 1) fail("bsp_begin(%ld): at least one process is needed", wanted);
  // A member of the job from now on, whatever devices it opens, or has opened.
  if (std::getenv("SHADOWIB_JOB") != nullptr && shadowib_join() != 0)
    fail("cannot join the job: %s", shadowib_last_error());
  processes = agree_on_count(static_cast<int>(wanted < here.processes ? wanted : here.processes));
  if (here.process >= processes) std::exit(0);
  connect();
}

void begin_again(const shadowib_bsp_kept& kept) {
  const Environment& here = surroundings();
  if (here.process != kept.process)
    refuse("the image is of process %d; SHADOWIB_BSP_PROCESS is %d", kept.process, here.process);
  if (here.processes < kept.processes)
    refuse("the image's job has %d processes; bsprun has started %d", kept.processes, here.processes);
  processes = kept.processes;
  seconds_before = kept.seconds;
  connect();
}

void refuse(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsay(format, arguments);
  va_end(arguments);
  std::fflush(nullptr);
  // No orderly end: the set is at fault, and not the program.
  for (;;) ::syscall(SYS_exit_group, kExitImage);
}

void end() {
  inside("bsp_end").end();
  stage = Stage::kAfter;
  tell_peers = nullptr;
  supersteps = nullptr;
}

void end_superstep() {
  Supersteps& all = inside("bsp_sync");
  const Environment& here = *environment;
  if constexpr (kIsPortable) return note_due(all.sync(here.process == 0 && ask_to_save()));
  const bool due = here.interval_s > 0 && here.process == 0 && seconds_since(saved) >= here.interval_s;
  if (without("due_flag")) {
    all.sync(false);
    if (due) ask_for_checkpoint();
    return;
  }
  if (all.sync(due)) checkpoint();
}

int process_number() {
  if (supersteps == nullptr && stage == Stage::kBefore) outside("bsp_pid");
  return environment->process;
}

int process_count() { return stage == Stage::kBefore ? surroundings().processes : processes; }

double seconds_since_begin() {
  inside("bsp_time");
  return seconds_before + seconds_since(began);
}

}  // namespace shadowib::bsp
