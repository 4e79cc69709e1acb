/*
 * Optimistic concurrency: a task may be computed with old shared data; then it is done again (REDO). Greedy colouring
 * of a graph in a fixed order: vertex v gets the least colour that none of its neighbours u < v has. The result is
 * that of one process, although workers colour many vertices at once: a colour is taken (UPDATE) only when all before
 * it are. Usage: optimistic [VERTICES [SEED]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <topc.h>

static int vertices = 300;
static unsigned seed = 1;
static int* colour;  /* shared data: -1, or the colour. Only update_shared_data() changes it */
static int done = 0; /* shared data: vertices below have their colour */
static int next = 0;

static int adjacent(int u, int v) {
  unsigned x = (unsigned)u * 2654435761u ^ (unsigned)v * 40503u ^ seed * 97u;
  x ^= x >> 13;
  x *= 1274126177u;
  return (x >> 16) % 8 == 0;
}

static TOPC_BUF generate_task_input(void) {
  int v = next;
  if (next == vertices) return NOTASK;
  ++next;
  return TOPC_MSG(&v, sizeof(v));
}

typedef struct {
  int colour, seen; /* vertices that had their colour in the worker's shared data */
} Guess;

static TOPC_BUF do_task(int* v) {
  Guess guess = {0, done < *v ? done : *v};
  for (;; ++guess.colour) {
    int taken = 0;
    for (int u = 0; u < *v && !taken; ++u) taken = colour[u] == guess.colour && adjacent(u, *v);
    if (!taken) break;
  }
  return TOPC_MSG(&guess, sizeof(guess));
}

static TOPC_ACTION check_task_result(int* v, Guess* guess) {
  if (guess->seen == *v && *v == done) return UPDATE;
  return REDO;
}

static void update_shared_data(int* v, Guess* guess) {
  if (*v != done) {
    fprintf(stderr, "vertex %d is updated, %d was to be\n", *v, done);
    abort();
  }
  colour[*v] = guess->colour;
  ++done;
}

int main(int argc, char** argv) {
  TOPC_init(&argc, &argv);
  if (argc > 1) vertices = atoi(argv[1]);
  if (argc > 2) seed = (unsigned)atoi(argv[2]);
  colour = malloc((size_t)vertices * sizeof(*colour));
  memset(colour, -1, (size_t)vertices * sizeof(*colour));
  TOPC_master_slave(generate_task_input, do_task, check_task_result, update_shared_data);
  if (TOPC_is_master()) {
    unsigned sum = 0;
    int most = 0;
    for (int v = 0; v < vertices; ++v) {
      sum = sum * 31u + (unsigned)colour[v];
      if (colour[v] > most) most = colour[v];
    }
    printf("%d vertices, %d colours, checksum %08x\n", vertices, most + 1, sum);
  }
  free(colour);
  TOPC_finalize();
  return 0;
}
