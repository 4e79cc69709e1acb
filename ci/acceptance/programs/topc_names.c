/* Every name of topc.h, for C17 and for C++20. Runs a farm, a raw farm, and a second one without UpdateSharedData,
 * all with results that must come out. Prints "all names" at its end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <topc.h>

typedef struct {
  int tasks;
} TOPC_thread_private_t;

static int next_task, last = 20, checked, updates, redone, continued;

static TOPC_BUF generate(void) {
  ++next_task;
  return next_task > last ? NOTASK : TOPC_MSG_PTR(&next_task, (int)sizeof(next_task));
}
static TOPC_BUF work(int* task) {
  static int result;
  TOPC_thread_private.tasks += 1;
  TOPC_ATOMIC_READ(0) { result = *task * 10; }
  TOPC_BEGIN_ATOMIC_READ(0);
  if (TOPC_is_abort_pending()) result = -1;
  TOPC_END_ATOMIC_READ(0);
  TOPC_ATOMIC_WRITE(0) { result += TOPC_is_REDO() ? 1 : 0; }
  TOPC_BEGIN_ATOMIC_WRITE(0);
  result += TOPC_is_CONTINUATION() ? 2 : 0;
  TOPC_END_ATOMIC_WRITE(0);
  return TOPC_MSG(&result, (int)sizeof(result));
}
static TOPC_ACTION check(int* task, int* result) {
  if (*result / 10 != *task) exit(3);
  ++checked;
  if (TOPC_is_REDO()) ++redone;
  if (TOPC_is_CONTINUATION()) ++continued;
  if (*result % 10 != 0) return NO_ACTION;
  if (*task % 4 == 1) return REDO;
  if (*task % 4 == 2) return CONTINUATION(TOPC_MSG(task, (int)sizeof(*task)));
  if (*task % 4 == 3) return UPDATE;
  if (!TOPC_is_up_to_date() && updates == 0) exit(4);
  return NO_ACTION;
}
static void update(int* task, int* result) {
  (void)task;
  (void)result;
  ++updates;
}
static void trace_input(void* input) { (void)input; }
static void trace_result(void* input, void* output) {
  (void)input;
  (void)output;
}
static TOPC_ACTION abort_all(int* task, int* result) {
  (void)task;
  (void)result;
  TOPC_abort_tasks();
  return NO_ACTION;
}

int main(int argc, char** argv) {
  TOPC_BOOL more = 1;
  static char log[] = "-";
  if (strcmp(TOPC_VERSION, "2.5.2") != 0) return 5;
  TOPC_OPT_help = TOPC_OPT_stats = TOPC_OPT_verbose = TOPC_OPT_slave_wait = TOPC_OPT_slave_timeout =
      TOPC_OPT_keep_updates = 0;
  TOPC_OPT_trace = TOPC_OPT_safety = 0;
  TOPC_OPT_aggregated_tasks = 2;
  TOPC_OPT_num_slaves = 2;
  TOPC_OPT_procgroup = NULL;
  TOPC_OPT_topc_log = log;
  TOPC_OPT_trace_input = trace_input;
  TOPC_OPT_trace_result = trace_result;
  TOPC_init(&argc, &argv);
  TOPC_master_slave(generate, work, check, update);
  if (TOPC_is_master()) {
    if (updates != 5 || redone < 5 || continued < 5 || checked < 30) return 6;
    if (TOPC_rank() != 0 || TOPC_node_count() != TOPC_num_slaves() + 1 || TOPC_num_idle_slaves() > TOPC_num_slaves())
      return 7;
  }
  next_task = 0;
  TOPC_master_slave(generate, work, abort_all, NULL);
  checked = 0;
  TOPC_raw_begin_master_slave(work, check, update);
  for (int task = 1; task <= last; ++task) TOPC_raw_submit_task_input(TOPC_MSG(&task, (int)sizeof(task)));
  while (more) more = TOPC_raw_wait_for_task_result();
  TOPC_raw_end_master_slave();
  if (TOPC_is_master()) {
    if (checked < 30) return 8;
    printf("all names\n");
  }
  TOPC_finalize();
  return 0;
}
