/*
 * Search trees: CONTINUATION and TOPC_abort_tasks(). Counts the placements of N queens: a task places the first two
 * rows; a worker counts one row's subtree a round and goes on with the next (CONTINUATION). With --first the first
 * solution found aborts all. Usage: search [N] [--first]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <topc.h>

static int n = 8, only_first = 0;
static int next = 0;
static long solutions = 0;
static int found = 0;

typedef struct {
  int first, second; /* columns of the first two queens */
  long solutions;    /* of the rows before: a task may begin anew, so the total gets them at its end */
} Place;

static int free_place(const int* columns, int row, int column) {
  for (int r = 0; r < row; ++r)
    if (columns[r] == column || abs(columns[r] - column) == row - r) return 0;
  return 1;
}

static long count(int* columns, int row) {
  long sum = 0;
  if (row == n) return 1;
  for (int c = 0; c < n; ++c) {
    if (TOPC_is_abort_pending()) return sum;
    if (!free_place(columns, row, c)) continue;
    columns[row] = c;
    sum += count(columns, row + 1);
    if (only_first && sum != 0) break;
  }
  return sum;
}

static TOPC_BUF generate_task_input(void) {
  Place place = {next, 0, 0};
  if (next == n || found) return NOTASK;
  ++next;
  return TOPC_MSG(&place, sizeof(place));
}

static TOPC_BUF do_task(Place* place) {
  int columns[32];
  long sum = 0;
  if (TOPC_is_CONTINUATION() != (place->second != 0)) exit(4);
  columns[0] = place->first;
  columns[1] = place->second;
  if (free_place(columns, 1, place->second)) sum = count(columns, 2);
  return TOPC_MSG(&sum, sizeof(sum));
}

static TOPC_ACTION check_task_result(Place* place, long* sum) {
  Place after = *place;
  if (only_first && found) return NO_ACTION;
  after.solutions += *sum;
  if (only_first && *sum != 0) {
    found = 1;
    TOPC_abort_tasks();
    return NO_ACTION;
  }
  if (++after.second == n) {
    solutions += after.solutions;
    return NO_ACTION;
  }
  return CONTINUATION(TOPC_MSG(&after, sizeof(after)));
}

int main(int argc, char** argv) {
  TOPC_init(&argc, &argv);
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--first") == 0)
      only_first = 1;
    else
      n = atoi(argv[i]);
  }
  if (n < 4 || n > 20) {
    fprintf(stderr, "Usage: search [N] [--first], with N from 4 to 20\n");
    return 2;
  }
  TOPC_master_slave(generate_task_input, do_task, check_task_result, NULL);
  if (TOPC_is_master()) {
    if (only_first)
      printf("%d queens: %s\n", n, found ? "there is a solution" : "there is none");
    else
      printf("%d queens: %ld solutions\n", n, solutions);
  }
  TOPC_finalize();
  return 0;
}
