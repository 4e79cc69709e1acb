// topc.h: TOP-C's names over the runtime. Callbacks that C declares without parameters are called with those they
// have.
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "libraries/masterworker/guard.h"
#include "libraries/masterworker/include/topc.h"
#include "libraries/masterworker/messages.h"
#include "libraries/masterworker/options.h"
#include "libraries/masterworker/runtime.h"

#define MW_EXPORT __attribute__((visibility("default")))

using namespace shadowib::masterworker;

namespace {

enum BufferKind { kNothing = 0, kCopied = 1, kPointer = 2, kNoTask = 3 };
constexpr int kSafetyNoAhead = 8, kSafetyNoAborts = 10;

}  // namespace

extern "C" {

MW_EXPORT extern const TOPC_BUF NOTASK = {nullptr, 0, kNoTask};
MW_EXPORT extern const TOPC_ACTION NO_ACTION = {static_cast<int>(ActionKind::kNoAction), {}};
MW_EXPORT extern const TOPC_ACTION UPDATE = {static_cast<int>(ActionKind::kUpdate), {}};
MW_EXPORT extern const TOPC_ACTION REDO = {static_cast<int>(ActionKind::kRedo), {}};

MW_EXPORT int TOPC_OPT_help = 0;
MW_EXPORT int TOPC_OPT_stats = 0;
MW_EXPORT int TOPC_OPT_verbose = 0;
MW_EXPORT int TOPC_OPT_num_slaves = -1;
MW_EXPORT int TOPC_OPT_aggregated_tasks = 1;
MW_EXPORT int TOPC_OPT_slave_wait = 0;
MW_EXPORT int TOPC_OPT_slave_timeout = 0;
MW_EXPORT int TOPC_OPT_keep_updates = 0;
MW_EXPORT int TOPC_OPT_trace = 0;
MW_EXPORT char* TOPC_OPT_procgroup = nullptr;
MW_EXPORT char* TOPC_OPT_topc_log = nullptr;
MW_EXPORT int TOPC_OPT_safety = 0;
MW_EXPORT TOPC_trace_input_ptr TOPC_OPT_trace_input = nullptr;
MW_EXPORT TOPC_trace_result_ptr TOPC_OPT_trace_result = nullptr;

}  // extern "C"

namespace {

std::unique_ptr<Runtime> g_runtime;
std::FILE* g_log = stderr;
int g_in_callback = 0;
bool g_finalized = false;

Runtime& runtime(const char* function) {
  if (!g_runtime) give_up("%s() was called before TOPC_init()", function);
  return *g_runtime;
}

struct InCallback {
  InCallback() { ++g_in_callback; }
  ~InCallback() { --g_in_callback; }
};

// For what needs the wire: not inside a callback, and not after the end.
void outside_of_callbacks(const char* function) {
  if (g_finalized) give_up("%s() was called after TOPC_finalize()", function);
  if (g_in_callback != 0 && guarded(Guard::kForkOutside))
    give_up("%s() was called inside a callback; only the program's own loop may", function);
}

// Takes over what a callback has returned.
Payload payload_of(const TOPC_BUF& buffer) {
  return buffer.kind == kCopied ? Payload::adopt(buffer.data) : Payload::copy(buffer.data, buffer.data_size);
}

bool traces(int level) { return TOPC_OPT_trace >= level; }

const char* name_of(const TOPC_ACTION& action) {
  static constexpr const char* kNames[] = {"NO_ACTION", "UPDATE", "REDO", "CONTINUATION"};
  return action.kind >= 0 && action.kind < 4 ? kNames[action.kind] : "no action";
}

std::optional<Payload> generated(const TOPC_BUF& buffer) {
  if (buffer.kind == kNoTask) return std::nullopt;
  Payload payload = payload_of(buffer);
  if (traces(1)) {
    std::fprintf(g_log, "topc: task of %zu bytes\n", payload.size());
    if (traces(2) && TOPC_OPT_trace_input != nullptr) TOPC_OPT_trace_input(payload.data());
  }
  return payload;
}

Action checked(const TOPC_ACTION& action, const Payload& input, const Payload& output) {
  if (action.kind < 0 || action.kind > static_cast<int>(ActionKind::kContinuation))
    give_up("CheckTaskResult returned %d, which is no action", action.kind);
  if (traces(1)) {
    std::fprintf(g_log, "topc: result of %zu bytes: %s\n", output.size(), name_of(action));
    if (traces(2) && TOPC_OPT_trace_result != nullptr) TOPC_OPT_trace_result(input.data(), output.data());
  }
  Action taken;
  taken.kind = static_cast<ActionKind>(action.kind);
  if (taken.kind == ActionKind::kContinuation) taken.next = payload_of(action.next);
  return taken;
}

Callbacks callbacks_of(TOPC_BUF (*generate)(void), TOPC_BUF (*work)(void*), TOPC_ACTION (*check)(void*, void*),
                       void (*update)(void*, void*)) {
  if (work == nullptr || check == nullptr) give_up("DoTask and CheckTaskResult must not be NULL");
  Callbacks callbacks;
  if (generate != nullptr)
    callbacks.generate = [generate] {
      const InCallback in;
      return generated(generate());
    };
  callbacks.work = [work](void* input) {
    const InCallback in;
    return payload_of(work(input));
  };
  callbacks.check = [check](const Payload& input, const Payload& output) {
    const InCallback in;
    return checked(check(input.data(), output.data()), input, output);
  };
  if (update != nullptr)
    callbacks.update = [update](const Payload& input, const Payload& output) {
      const InCallback in;
      update(input.data(), output.data());
    };
  return callbacks;
}

std::vector<Option> all_options() {
  return {
      {"help", &TOPC_OPT_help, nullptr, "prints this"},
      {"stats", &TOPC_OPT_stats, nullptr, "prints counts at the end"},
      {"verbose", &TOPC_OPT_verbose, nullptr, "tells of workers"},
      {"num-slaves", &TOPC_OPT_num_slaves, nullptr, "workers on this host; -1: one per processor", -1},
      {"aggregated-tasks", &TOPC_OPT_aggregated_tasks, nullptr, "tasks posted ahead to each worker", 0},
      {"slave-wait", &TOPC_OPT_slave_wait, nullptr, "seconds that a new worker sleeps", 0},
      {"slave-timeout", &TOPC_OPT_slave_timeout, nullptr, "seconds with a task and silent; 0: no limit", 0},
      {"keep-updates", &TOPC_OPT_keep_updates, nullptr, "MiB of updates kept for workers from elsewhere", 0},
      {"trace", &TOPC_OPT_trace, nullptr, "1: tasks and actions; 2: also trace functions"},
      {"procgroup", nullptr, &TOPC_OPT_procgroup, "file of hosts for workers"},
      {"topc-log", nullptr, &TOPC_OPT_topc_log, "file for trace and counts; -: stderr"},
      {"safety", &TOPC_OPT_safety, nullptr, "8: one task at a time; 10: no aborts"},
  };
}

void read_options(int* argc, char*** argv) {
  const std::vector<Option> options = all_options();
  const auto take = [&options](std::vector<std::string>& words, const char* where) {
    const std::string wrong = take_options(words, options);
    if (!wrong.empty()) give_up("%s%s", where, wrong.c_str());
  };
  if (const char* home = std::getenv("HOME")) {
    std::ifstream file(std::string(home) + "/.topcrc");
    std::vector<std::string> words = words_of(std::string(std::istreambuf_iterator<char>(file), {}));
    take(words, "~/.topcrc: ");
  }
  if (const char* variable = std::getenv("TOPC_OPTS")) {
    std::vector<std::string> words = words_of(variable);
    take(words, "TOPC_OPTS: ");
  }
  if (argc == nullptr || argv == nullptr) return;
  // Pointers stay those of the process's arguments: programs may keep them.
  int left = 0;
  for (int i = 0; i < *argc; ++i) {
    std::vector<std::string> word{(*argv)[i]};
    if (i != 0) take(word, "");
    if (!word.empty()) (*argv)[left++] = (*argv)[i];
  }
  *argc = left;
  (*argv)[left] = nullptr;
}

int processors() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

extern "C" {

MW_EXPORT TOPC_ACTION CONTINUATION(TOPC_BUF next) { return {static_cast<int>(ActionKind::kContinuation), next}; }

MW_EXPORT TOPC_BUF TOPC_MSG(void* data, int bytes) {
  if (bytes < 0) give_up("TOPC_MSG: %d bytes", bytes);
  if (data == nullptr || bytes == 0) return {nullptr, 0, kNothing};
  const auto size = static_cast<std::size_t>(bytes);
  try {
    return {Payload::copy(data, size).release(), size, kCopied};
  } catch (const std::bad_alloc&) {
    give_up("TOPC_MSG: no memory for %d bytes", bytes);
  }
}

MW_EXPORT TOPC_BUF TOPC_MSG_PTR(void* data, int bytes) {
  if (bytes < 0) give_up("TOPC_MSG_PTR: %d bytes", bytes);
  if (data == nullptr || bytes == 0) return {nullptr, 0, kNothing};
  return {data, static_cast<std::size_t>(bytes), kPointer};
}

MW_EXPORT void TOPC_init(int* argc, char*** argv) {
  if (g_runtime) give_up("TOPC_init() was called twice");
  read_options(argc, argv);
  if (TOPC_OPT_help != 0) {
    std::fputs(help_text(argv != nullptr && *argc > 0 ? (*argv)[0] : "this program", all_options()).c_str(), stdout);
    std::exit(0);
  }
  if (TOPC_OPT_topc_log != nullptr && std::strcmp(TOPC_OPT_topc_log, "-") != 0) {
    g_log = std::fopen(TOPC_OPT_topc_log, "ae");
    if (g_log == nullptr) give_up("--TOPC-topc-log=%s: the file cannot be written", TOPC_OPT_topc_log);
  }
  if (TOPC_OPT_num_slaves < 0) TOPC_OPT_num_slaves = processors();
  if (static_cast<unsigned long>(TOPC_OPT_num_slaves) > kMostWorkers)
    give_up("--TOPC-num-slaves=%d: 0 to %lu workers may be asked for at once", TOPC_OPT_num_slaves, kMostWorkers);
  Settings settings;
  settings.workers = TOPC_OPT_num_slaves;
  settings.ahead = TOPC_OPT_safety >= kSafetyNoAhead || TOPC_OPT_aggregated_tasks < 1 ? 1 : TOPC_OPT_aggregated_tasks;
  settings.wait_s = TOPC_OPT_slave_wait;
  settings.keep_mib = TOPC_OPT_keep_updates < 0 ? 0 : TOPC_OPT_keep_updates;
  settings.timeout_s = TOPC_OPT_slave_timeout;
  settings.aborts = TOPC_OPT_safety < kSafetyNoAborts;
  settings.verbose = TOPC_OPT_verbose != 0;
  g_runtime = make_runtime(settings);
}

MW_EXPORT void TOPC_finalize(void) {
  Runtime& farm = runtime("TOPC_finalize");
  outside_of_callbacks("TOPC_finalize");
  farm.finalize();
  g_finalized = true;
  if (farm.is_master() && TOPC_OPT_stats != 0) {
    const Counts counts = farm.counts();
    std::fprintf(g_log,
                 "topc: tasks %llu, results checked %llu, redos %llu, continuations %llu, updates %llu, copies %llu, "
                 "late results %llu, workers lost %llu, buffer bytes %llu, spins alone %llu\n",
                 static_cast<unsigned long long>(counts.tasks), static_cast<unsigned long long>(counts.checks),
                 static_cast<unsigned long long>(counts.redos), static_cast<unsigned long long>(counts.continuations),
                 static_cast<unsigned long long>(counts.updates), static_cast<unsigned long long>(counts.copies),
                 static_cast<unsigned long long>(counts.late), static_cast<unsigned long long>(counts.deaths),
                 static_cast<unsigned long long>(counts.buffer_bytes),
                 static_cast<unsigned long long>(counts.spins_alone));
    std::fflush(g_log);
  }
}

MW_EXPORT void TOPC_master_slave_untyped(TOPC_BUF (*generate)(void), TOPC_BUF (*work)(void*),
                                         TOPC_ACTION (*check)(void*, void*), void (*update)(void*, void*)) {
  Runtime& farm = runtime("TOPC_master_slave");
  outside_of_callbacks("TOPC_master_slave");
  if (generate == nullptr) give_up("TOPC_master_slave: GenerateTaskInput is NULL");
  farm.run(callbacks_of(generate, work, check, update));
}

MW_EXPORT void TOPC_raw_begin_untyped(TOPC_BUF (*work)(void*), TOPC_ACTION (*check)(void*, void*),
                                      void (*update)(void*, void*)) {
  Runtime& farm = runtime("TOPC_raw_begin_master_slave");
  outside_of_callbacks("TOPC_raw_begin_master_slave");
  farm.raw_begin(callbacks_of(nullptr, work, check, update));
}

MW_EXPORT void TOPC_raw_submit_task_input(TOPC_BUF input) {
  Runtime& farm = runtime("TOPC_raw_submit_task_input");
  outside_of_callbacks("TOPC_raw_submit_task_input");
  if (std::optional<Payload> task = generated(input)) farm.submit(std::move(*task));
}

MW_EXPORT TOPC_BOOL TOPC_raw_wait_for_task_result(void) {
  Runtime& farm = runtime("TOPC_raw_wait_for_task_result");
  outside_of_callbacks("TOPC_raw_wait_for_task_result");
  return farm.wait_for_result() ? 1 : 0;
}

MW_EXPORT void TOPC_raw_end_master_slave(void) {
  Runtime& farm = runtime("TOPC_raw_end_master_slave");
  outside_of_callbacks("TOPC_raw_end_master_slave");
  farm.raw_end();
}

MW_EXPORT TOPC_BOOL TOPC_is_master(void) { return runtime("TOPC_is_master").is_master() ? 1 : 0; }
MW_EXPORT int TOPC_rank(void) { return runtime("TOPC_rank").rank(); }
MW_EXPORT int TOPC_node_count(void) { return runtime("TOPC_node_count").workers() + 1; }
MW_EXPORT int TOPC_num_slaves(void) { return runtime("TOPC_num_slaves").workers(); }
MW_EXPORT int TOPC_num_idle_slaves(void) { return runtime("TOPC_num_idle_slaves").idle_workers(); }
MW_EXPORT TOPC_BOOL TOPC_is_up_to_date(void) { return runtime("TOPC_is_up_to_date").up_to_date() ? 1 : 0; }
MW_EXPORT TOPC_BOOL TOPC_is_REDO(void) { return runtime("TOPC_is_REDO").round() == Round::kRedo ? 1 : 0; }
MW_EXPORT TOPC_BOOL TOPC_is_CONTINUATION(void) {
  return runtime("TOPC_is_CONTINUATION").round() == Round::kContinuation ? 1 : 0;
}
MW_EXPORT void TOPC_abort_tasks(void) { runtime("TOPC_abort_tasks").abort_tasks(); }
MW_EXPORT TOPC_BOOL TOPC_is_abort_pending(void) { return runtime("TOPC_is_abort_pending").abort_pending() ? 1 : 0; }

// For masterworker.h, whose callbacks may throw.
MW_EXPORT void shadowib_mw_abandon(void) { runtime("shadowib_mw_abandon").abandon(); }

MW_EXPORT void* TOPC_thread_private_area(size_t bytes) {
  static std::vector<char> area;
  if (area.size() < bytes) area.resize(bytes);
  return area.data();
}

}  // extern "C"

// The names of C, whose callbacks are declared without parameters there. In C++ they are templates.
namespace {
void master_slave_c(TOPC_BUF (*generate)(void), TOPC_BUF (*work)(void*), TOPC_ACTION (*check)(void*, void*),
                    void (*update)(void*, void*)) {
  TOPC_master_slave_untyped(generate, work, check, update);
}
void raw_begin_c(TOPC_BUF (*work)(void*), TOPC_ACTION (*check)(void*, void*), void (*update)(void*, void*)) {
  TOPC_raw_begin_untyped(work, check, update);
}
}  // namespace
extern "C" {
MW_EXPORT void topc_c_master_slave(TOPC_BUF (*generate)(void), TOPC_BUF (*work)(void*),
                                   TOPC_ACTION (*check)(void*, void*),
                                   void (*update)(void*, void*)) __asm__("TOPC_master_slave");
MW_EXPORT void topc_c_raw_begin(TOPC_BUF (*work)(void*), TOPC_ACTION (*check)(void*, void*),
                                void (*update)(void*, void*)) __asm__("TOPC_raw_begin_master_slave");
void topc_c_master_slave(TOPC_BUF (*generate)(void), TOPC_BUF (*work)(void*), TOPC_ACTION (*check)(void*, void*),
                         void (*update)(void*, void*)) {
  master_slave_c(generate, work, check, update);
}
void topc_c_raw_begin(TOPC_BUF (*work)(void*), TOPC_ACTION (*check)(void*, void*), void (*update)(void*, void*)) {
  raw_begin_c(work, check, update);
}
}  // extern "C"
