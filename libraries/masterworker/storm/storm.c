/*
 * mw_storm: tasks, sizes and actions by a seed, and the ledger of what must come out. Knows nothing of shadowib.
 *
 * A task's script says how often it is done again (REDO), how many steps it has (CONTINUATION), whether it ends with
 * an UPDATE, and how long it takes. Each output says which updates the worker has and whether REDO found its private
 * data. The master checks all of it against its ledger, and exits with 3 at the first fault. The last line depends on
 * the seed alone, not on time or workers.
 *
 * Usage: mw_storm TASKS SEED [MOST_US [MOST_BYTES]] [--ahead] [--phases N] [--marks FILE] [--begun FILE] [--hurry
 * FILE]
 *                 [--hold FILE] [--least N] [--plain]
 *   --ahead   tasks are posted ahead, so private data are of another task now and then
 *   --marks   appends a line of 8 bytes for each checked round, with its number: how far a test sees the job
 *   --begun   workers append a line for each round that they begin: their process, the task's serial number, and the
 *             moment in ns of CLOCK_MONOTONIC
 *   --plain   each task has one round
 *   --hurry   holds back half of the tasks until FILE exists. Other tasks of no account keep the farm busy meanwhile
 *   --least   and until there are N workers
 *   --hold    the worker whose process FILE names removes FILE and stays in its task for ever
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <topc.h>
#include <unistd.h>

typedef unsigned long long Word;

typedef struct {
  int task, step;
  int bytes;  /* behind this struct, by content_of() */
  int serial; /* unique among tasks: those of no account take numbers again */
} Input;

typedef struct {
  int task, step, redo, continuation, has_private, bytes, updates;
  Word chain; /* of the worker's updates, in order */
} Output;

enum { kFillers = 64 }; /* tasks of no account that may be under way */
static int tasks = 100, most_us = 0, most_bytes = 64, ahead = 0, phases = 1, marks = -1, least = 0, plain = 0;
static const char *hurry = NULL, *begun = NULL, *hold = NULL;
static Word seed = 1;
/* shared data */
static int updates = 0;
static Word chain = 1;
/* of the master */
static int next = 0, limit = 0, filler = 0, rounds = 0, serial = 0, held_back = 0;
static Word* chains; /* by count of updates */
static int *finished, *redos, *steps;
static Word sum = 0;
/* private to a worker */
static int private_task = -1;

static void fault(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "mw_storm: FAULT: ");
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  _exit(3);
}

static Word mix(Word a, Word b) {
  Word x = seed * 0x9e3779b97f4a7c15ull + a * 0xbf58476d1ce4e5b9ull + b * 0x94d049bb133111ebull;
  x ^= x >> 31;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  return x;
}

static Word script(int task, int salt, int most) { return most == 0 ? 0 : mix((Word)task, (Word)salt) % (Word)most; }

static int bytes_of(int task, int step, int out) { /* few are large */
  const int most = script(task, 20, 16) == 0 ? most_bytes : most_bytes < 200 ? most_bytes : 200;
  return (int)script(task, 21 + 2 * step + out, most + 1);
}

static void fill(char* at, int bytes, int task, int step, int out) {
  const Word key = mix((Word)task, (Word)(1000 + 2 * step + out));
  for (int i = 0; i < bytes; ++i) at[i] = (char)(key >> (i % 8 * 8)) ^ (char)(i / 8);
}

static void expect(const char* at, int bytes, int task, int step, int out) {
  const Word key = mix((Word)task, (Word)(1000 + 2 * step + out));
  for (int i = 0; i < bytes; ++i)
    if (at[i] != ((char)(key >> (i % 8 * 8)) ^ (char)(i / 8)))
      fault("task %d step %d: byte %d of its message is wrong", task, step, i);
}

static TOPC_BUF input_of(int task, int step, int serial_of) {
  const int bytes = bytes_of(task, step, 0);
  Input* input = malloc(sizeof(*input) + (size_t)bytes);
  TOPC_BUF message;
  input->task = task;
  input->step = step;
  input->bytes = bytes;
  input->serial = serial_of;
  fill((char*)(input + 1), bytes, task, step, 0);
  message = TOPC_MSG(input, (int)sizeof(*input) + bytes);
  free(input);
  return message;
}

static int waits(void) {
  if (held_back) held_back = (hurry != NULL && access(hurry, F_OK) != 0) || TOPC_num_slaves() < least;
  return held_back;
}

/* One that is not under way; its ledger begins anew. */
static int next_filler(void) {
  for (int i = 0; i < kFillers; ++i) {
    const int task = tasks + (filler++ % kFillers);
    if (finished[task] == 0) continue;
    finished[task] = redos[task] = steps[task] = 0;
    return task;
  }
  fault("all %d tasks of no account are under way", kFillers);
  return 0;
}

static TOPC_BUF generate_task_input(void) {
  if (next >= limit / 2 && waits()) return input_of(next_filler(), 0, ++serial);
  return next == limit ? NOTASK : input_of(next++, 0, ++serial);
}

/* Descriptors of before the fork lead nowhere in a worker: it opens the file itself. */
static void tell_begun(int which) {
  char line[80];
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int length =
      snprintf(line, sizeof(line), "%d %d %lld%09ld\n", (int)getpid(), which, (long long)now.tv_sec, now.tv_nsec);
  const int file = open(begun, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0 || write(file, line, (size_t)length) != length) fault("nothing can be written to %s", begun);
  close(file);
}

static void stay_if_named(void) {
  char text[16] = "";
  const int file = open(hold, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  if (read(file, text, sizeof(text) - 1) < 0) fault("%s cannot be read", hold);
  close(file);
  if (atoi(text) != (int)getpid()) return;
  unlink(hold);
  for (;;) pause();
}

static void mark(void) {
  char line[16];
  snprintf(line, sizeof(line), "%07d\n", ++rounds % 10000000);
  if (write(marks, line, 8) != 8) fault("no mark can be written");
}

static TOPC_BUF do_task(Input* input) {
  const int bytes = bytes_of(input->task, input->step, 1);
  Output* output = calloc(1, sizeof(*output) + (size_t)bytes);
  TOPC_BUF message;
  expect((char*)(input + 1), input->bytes, input->task, input->step, 0);
  if (begun != NULL) tell_begun(input->serial);
  output->task = input->task;
  output->step = input->step;
  output->redo = TOPC_is_REDO();
  output->continuation = TOPC_is_CONTINUATION();
  output->has_private = private_task == input->task;
  output->updates = updates;
  output->chain = chain;
  output->bytes = bytes;
  private_task = input->task;
  fill((char*)(output + 1), bytes, input->task, input->step, 1);
  if (most_us != 0) {
    useconds_t left = (useconds_t)script(input->task, 3, most_us);
    for (; left > 1000 && !TOPC_is_abort_pending(); left -= 1000) usleep(1000);
    usleep(left % 1000);
  }
  if (hold != NULL) stay_if_named();
  message = TOPC_MSG(output, (int)sizeof(*output) + bytes);
  free(output);
  return message;
}

static TOPC_ACTION check_task_result(Input* input, Output* output) {
  const int task = input->task;
  if (output->task != task || output->step != input->step) fault("task %d: a result of task %d", task, output->task);
  expect((char*)(output + 1), output->bytes, task, input->step, 1);
  if (finished[task] != 0) fault("task %d is checked after its end", task);
  if (output->redo != TOPC_is_REDO() || output->continuation != TOPC_is_CONTINUATION())
    fault("task %d: rounds differ", task);
  if (output->redo && !output->has_private && !ahead) fault("task %d: a REDO without its private data", task);
  if (output->updates > updates) fault("task %d: a worker has %d of %d updates", task, output->updates, updates);
  if (output->chain != chains[output->updates]) fault("task %d: a worker has other updates than the master", task);
  if (TOPC_is_up_to_date() != (output->updates == updates)) fault("task %d: up to date is wrong", task);
  if (output->continuation && input->step != steps[task])
    fault("task %d: step %d after %d", task, input->step, steps[task]);
  steps[task] = input->step;
  if (marks >= 0) mark();
  if (!plain && script(task, 1, 3) == 0 && redos[task] < (int)script(task, 4, 3)) {
    ++redos[task];
    return REDO;
  }
  if (!plain && script(task, 1, 3) == 1 && input->step < (int)script(task, 5, 4)) {
    steps[task] = input->step + 1;
    return CONTINUATION(input_of(task, input->step + 1, input->serial));
  }
  ++finished[task];
  if (task >= tasks) return NO_ACTION;
  sum += mix((Word)task, (Word)(50 + input->step));
  return script(task, 6, 3) == 0 ? UPDATE : NO_ACTION;
}

static void update_shared_data(Input* input, Output* output) {
  (void)output;
  ++updates;
  chain = chain * 31u + (Word)input->task + 7u;
  if (TOPC_is_master()) chains[updates] = chain;
}

int main(int argc, char** argv) {
  int place = 0;
  TOPC_init(&argc, &argv);
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--ahead") == 0) {
      ahead = 1;
    } else if (strcmp(argv[i], "--phases") == 0 && i + 1 < argc) {
      phases = atoi(argv[++i]);
    } else if (strcmp(argv[i], "--marks") == 0 && i + 1 < argc) {
      marks = open(argv[++i], O_WRONLY | O_CREAT | O_APPEND, 0644);
    } else if (strcmp(argv[i], "--plain") == 0) {
      plain = 1;
    } else if (strcmp(argv[i], "--begun") == 0 && i + 1 < argc) {
      begun = argv[++i];
    } else if (strcmp(argv[i], "--hurry") == 0 && i + 1 < argc) {
      hurry = argv[++i];
    } else if (strcmp(argv[i], "--hold") == 0 && i + 1 < argc) {
      hold = argv[++i];
    } else if (strcmp(argv[i], "--least") == 0 && i + 1 < argc) {
      least = atoi(argv[++i]);
    } else {
      switch (place++) {
        case 0:
          tasks = atoi(argv[i]);
          break;
        case 1:
          seed = strtoull(argv[i], NULL, 10);
          break;
        case 2:
          most_us = atoi(argv[i]);
          break;
        default:
          most_bytes = atoi(argv[i]);
      }
    }
  }
  if (tasks < phases || phases < 1 || most_us < 0 || most_bytes < 0) {
    fprintf(stderr,
            "Usage: mw_storm TASKS SEED [MOST_US [MOST_BYTES]] [--ahead] [--phases N] [--marks FILE] [--begun FILE] "
            "[--hurry FILE] [--hold FILE] [--least N] [--plain]\n");
    return 2;
  }
  held_back = hurry != NULL || least != 0;
  finished = calloc((size_t)tasks + kFillers, sizeof(int));
  redos = calloc((size_t)tasks + kFillers, sizeof(int));
  steps = calloc((size_t)tasks + kFillers, sizeof(int));
  for (int i = 0; i < kFillers; ++i) finished[tasks + i] = 1;
  chains = calloc((size_t)tasks + 1, sizeof(Word));
  chains[0] = chain;
  for (int phase = 0; phase < phases; ++phase) {
    limit = phase + 1 == phases ? tasks : tasks / phases * (phase + 1);
    TOPC_master_slave(generate_task_input, do_task, check_task_result, update_shared_data);
  }
  if (TOPC_is_master()) {
    for (int task = 0; task < tasks; ++task)
      if (finished[task] != 1) fault("task %d ended %d times", task, finished[task]);
    printf("mw_storm: %d tasks, %d updates, sum %016llx\n", tasks, updates, sum);
  }
  TOPC_finalize();
  return 0;
}
