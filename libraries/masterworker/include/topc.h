/*
 * topc.h: master-worker jobs (task farms) with the C interface of TOP-C 2.5.2, over shadowib.
 *
 * A program of TOP-C recompiles unchanged: topcc prog.c -o prog; then shadowib run --job NAME -- ./prog.
 * Workers are forks of the master and may end at any time. `topcc --seq` links a library that runs all in one
 * process.
 *
 * Conventions
 *   - All functions belong to the program's main thread, none to signal handlers. Nothing returns an error: what
 * cannot go on prints "shadowib-mw: ..." and ends the process with 1.
 *   - Callbacks get buffers that the library owns, valid until the callback returns (its input and output in
 *     CheckTaskResult until that returns). They are aligned as malloc aligns. An empty message is NULL.
 *   - "Master", "worker": TOP-C says slave; both run the same program.
 *
 * Source: the manual of TOP-C 2.5.2, chapters 4 to 8; Cooperman, Ansel, Ma, "Adaptive Checkpointing for Master-Worker
 * Style Parallelism", section 2.
 */
#ifndef SHADOWIB_TOPC_H
#define SHADOWIB_TOPC_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOPC_VERSION "2.5.2"

typedef int TOPC_BOOL;

/* A message: a task's input or output. Made by TOPC_MSG() or TOPC_MSG_PTR() only. */
typedef struct TOPC_BUF {
  void* data;
  size_t data_size; /* bytes */
  int kind;         /* private */
} TOPC_BUF;

/* CheckTaskResult returns one. */
typedef struct TOPC_ACTION {
  int kind; /* private */
  TOPC_BUF next;
} TOPC_ACTION;

/* GenerateTaskInput: there is no task now. It is asked again after the next result; without outstanding tasks the
 * farm ends. */
extern const TOPC_BUF NOTASK;
/* The result is taken; the task is over. */
extern const TOPC_ACTION NO_ACTION;
/* And UpdateSharedData(input, output) is called in the master and in every worker, in one order. */
extern const TOPC_ACTION UPDATE;
/* The worker does the task again, with newer shared data and its private data of the last time. */
extern const TOPC_ACTION REDO;
/* The worker does another step of the task, with `next` as input. */
TOPC_ACTION CONTINUATION(TOPC_BUF next);

/* A message of data[0..bytes), copied now. bytes >= 0; NULL and 0 are NULL at the destination. */
TOPC_BUF TOPC_MSG(void* data, int bytes);
/* As TOPC_MSG, but the data are copied only when the library takes the message, as the callback returns. They must
 * live until then: not on the callback's stack. */
TOPC_BUF TOPC_MSG_PTR(void* data, int bytes);

/*
 * Starts the farm: reads and removes the --TOPC- options of argv, $TOPC_OPTS and ~/.topcrc, and makes the workers.
 * Returns in the master and in each worker. Call it once, before other threads begin.
 */
void TOPC_init(int* argc, char*** argv);

/* Ends the farm, once, after the last TOPC_master_slave(). Returns in all. */
void TOPC_finalize(void);

#ifndef __cplusplus
/*
 * Runs one farm: master and workers call it with their callbacks, and return when all tasks are over.
 *   generate_task_input  master: a task, or NOTASK
 *   do_task              worker: input -> output
 *   check_task_result    master: once per round of a task, in any order of tasks
 *   update_shared_data   all, after UPDATE; may be NULL
 * Shared data change in update_shared_data only, or else workers that are born later differ from older ones.
 */
void TOPC_master_slave(TOPC_BUF (*generate_task_input)(), TOPC_BUF (*do_task)(), TOPC_ACTION (*check_task_result)(),
                       void (*update_shared_data)());

/* A farm whose tasks arise in the master's own loops. Workers work inside of begin, and pass the rest at once.
 */
void TOPC_raw_begin_master_slave(TOPC_BUF (*do_task)(), TOPC_ACTION (*check_task_result)(),
                                 void (*update_shared_data)());
#endif
/* Hands out a task; waits, and checks results, while no worker is free. */
void TOPC_raw_submit_task_input(TOPC_BUF input);
/* Waits for one result and checks it. 0: no task is outstanding. */
TOPC_BOOL TOPC_raw_wait_for_task_result(void);
/* Waits for all results. */
void TOPC_raw_end_master_slave(void);

TOPC_BOOL TOPC_is_master(void);
int TOPC_rank(void);            /* 0: the master. A worker has the lowest number that is free when it joins */
int TOPC_node_count(void);      /* living workers, and the master */
int TOPC_num_slaves(void);      /* living workers */
int TOPC_num_idle_slaves(void); /* of them without a task */

/* CheckTaskResult: no UPDATE has come since this task was handed out. */
TOPC_BOOL TOPC_is_up_to_date(void);
/* DoTask, CheckTaskResult: this round was begun by REDO, or by CONTINUATION, at the same worker. */
TOPC_BOOL TOPC_is_REDO(void);
TOPC_BOOL TOPC_is_CONTINUATION(void);

/* Master: asks all workers to end their present tasks soon. Results are still checked; later tasks are not concerned.
 */
void TOPC_abort_tasks(void);
/* DoTask: it should return soon. One load. */
TOPC_BOOL TOPC_is_abort_pending(void);

/* One thread runs callbacks in each process, so these need do nothing. */
#define TOPC_BEGIN_ATOMIC_READ(page) \
  do {                               \
  (void)(page)
#define TOPC_END_ATOMIC_READ(page) \
  (void)(page);                    \
  }                                \
  while (0)
#define TOPC_BEGIN_ATOMIC_WRITE(page) \
  do {                                \
  (void)(page)
#define TOPC_END_ATOMIC_WRITE(page) \
  (void)(page);                     \
  }                                 \
  while (0)
#define TOPC_ATOMIC_READ(page) for (int topc_once_ = ((void)(page), 1); topc_once_; topc_once_ = 0)
#define TOPC_ATOMIC_WRITE(page) for (int topc_once_ = ((void)(page), 1); topc_once_; topc_once_ = 0)

/* Private data of the process; the program defines the type TOPC_thread_private_t. */
void* TOPC_thread_private_area(size_t bytes);
#define TOPC_thread_private (*(TOPC_thread_private_t*)TOPC_thread_private_area(sizeof(TOPC_thread_private_t)))

/* Defaults of the options; set them before TOPC_init(). */
extern int TOPC_OPT_help;    /* --TOPC-help */
extern int TOPC_OPT_stats;   /* --TOPC-stats: counts at the end */
extern int TOPC_OPT_verbose; /* --TOPC-verbose */
extern int
    TOPC_OPT_num_slaves; /* --TOPC-num-slaves=N; -1: as many as processors; 0: none, `shadowib worker` adds them */
extern int TOPC_OPT_aggregated_tasks; /* --TOPC-aggregated-tasks=N: up to N tasks are posted to each worker */
extern int TOPC_OPT_slave_wait;       /* --TOPC-slave-wait=S: workers sleep first, for a debugger to attach */
extern int TOPC_OPT_slave_timeout; /* --TOPC-slave-timeout=S: a worker silent for so long with a task is given up; 0:
                                      never */
extern int TOPC_OPT_trace; /* --TOPC-trace=0, 1, 2: tasks and actions on stderr; 2: also by the functions below */
extern char* TOPC_OPT_procgroup; /* --TOPC-procgroup=FILE: lines "HOST N PATH" of workers elsewhere */
extern char* TOPC_OPT_topc_log;  /* --TOPC-topc-log=FILE: for trace and statistics; "-": stderr */
extern int
    TOPC_OPT_keep_updates;  /* --TOPC-keep-updates=MIB: keeps so many, so that workers from elsewhere can join */
extern int TOPC_OPT_safety; /* --TOPC-safety=N: 8 and more: one task at a time; 10 and more: no aborts */

#ifdef __cplusplus
typedef void (*TOPC_trace_input_ptr)(void*);
typedef void (*TOPC_trace_result_ptr)(void*, void*);
extern TOPC_trace_input_ptr TOPC_OPT_trace_input;
extern TOPC_trace_result_ptr TOPC_OPT_trace_result;

/* For C++: callbacks have the types of their data. */
void TOPC_master_slave_untyped(TOPC_BUF (*generate)(void), TOPC_BUF (*work)(void*),
                               TOPC_ACTION (*check)(void*, void*), void (*update)(void*, void*));
void TOPC_raw_begin_untyped(TOPC_BUF (*work)(void*), TOPC_ACTION (*check)(void*, void*),
                            void (*update)(void*, void*));
} /* extern "C" */

template <typename Input, typename Output>
inline void TOPC_master_slave(TOPC_BUF (*generate_task_input)(), TOPC_BUF (*do_task)(Input*),
                              TOPC_ACTION (*check_task_result)(Input*, Output*),
                              void (*update_shared_data)(Input*, Output*)) {
  TOPC_master_slave_untyped(generate_task_input, reinterpret_cast<TOPC_BUF (*)(void*)>(do_task),
                            reinterpret_cast<TOPC_ACTION (*)(void*, void*)>(check_task_result),
                            reinterpret_cast<void (*)(void*, void*)>(update_shared_data));
}
template <typename Input, typename Output>
inline void TOPC_master_slave(TOPC_BUF (*generate_task_input)(), TOPC_BUF (*do_task)(Input*),
                              TOPC_ACTION (*check_task_result)(Input*, Output*), decltype(nullptr)) {
  TOPC_master_slave_untyped(generate_task_input, reinterpret_cast<TOPC_BUF (*)(void*)>(do_task),
                            reinterpret_cast<TOPC_ACTION (*)(void*, void*)>(check_task_result), nullptr);
}
template <typename Input, typename Output>
inline void TOPC_raw_begin_master_slave(TOPC_BUF (*do_task)(Input*),
                                        TOPC_ACTION (*check_task_result)(Input*, Output*),
                                        void (*update_shared_data)(Input*, Output*)) {
  TOPC_raw_begin_untyped(reinterpret_cast<TOPC_BUF (*)(void*)>(do_task),
                         reinterpret_cast<TOPC_ACTION (*)(void*, void*)>(check_task_result),
                         reinterpret_cast<void (*)(void*, void*)>(update_shared_data));
}
template <typename Input, typename Output>
inline void TOPC_raw_begin_master_slave(TOPC_BUF (*do_task)(Input*),
                                        TOPC_ACTION (*check_task_result)(Input*, Output*), decltype(nullptr)) {
  TOPC_raw_begin_untyped(reinterpret_cast<TOPC_BUF (*)(void*)>(do_task),
                         reinterpret_cast<TOPC_ACTION (*)(void*, void*)>(check_task_result), nullptr);
}
#else
extern void (*TOPC_OPT_trace_input)();  /* (void* input) */
extern void (*TOPC_OPT_trace_result)(); /* (void* input, void* output) */
#endif

#endif /* SHADOWIB_TOPC_H */
