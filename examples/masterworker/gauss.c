/*
 * Data parallelism: Gaussian elimination modulo a prime. Each worker has the whole matrix; a task reduces one row by
 * the pivots so far, an UPDATE makes it the next pivot. Prints the rank and a checksum of the reduced rows, which do
 * not depend on timing: rows become pivots in order. Usage: gauss [ROWS [COLUMNS]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <topc.h>

enum { kPrime = 10007 };
static int rows = 60, columns = 80;
static int *matrix, *lead; /* shared: rows below `done` are reduced; lead: the first column that is not 0, or -1 */
static int done = 0, next = 0;

static int inverse(int a) {
  int result = 1, power = a, e = kPrime - 2;
  for (; e != 0; e >>= 1, power = (int)((long)power * power % kPrime))
    if (e & 1) result = (int)((long)result * power % kPrime);
  return result;
}

static TOPC_BUF generate_task_input(void) {
  int row = next;
  if (next == rows) return NOTASK;
  ++next;
  return TOPC_MSG(&row, sizeof(row));
}

/* Output: how many pivots were used, then the row. */
static TOPC_BUF do_task(int* row) {
  int* out = malloc(((size_t)columns + 1) * sizeof(*out));
  int* a = out + 1;
  TOPC_BUF message;
  memcpy(a, matrix + (size_t)*row * (size_t)columns, (size_t)columns * sizeof(*a));
  out[0] = done < *row ? done : *row;
  for (int p = 0; p < out[0]; ++p) {
    const int* pivot = matrix + (size_t)p * (size_t)columns;
    if (lead[p] < 0 || a[lead[p]] == 0) continue;
    const long factor = (long)a[lead[p]] * inverse(pivot[lead[p]]) % kPrime;
    for (int c = 0; c < columns; ++c) a[c] = (int)((a[c] + (kPrime - factor) * pivot[c]) % kPrime);
  }
  message = TOPC_MSG(out, (int)(((size_t)columns + 1) * sizeof(*out)));
  free(out);
  return message;
}

static TOPC_ACTION check_task_result(int* row, int* out) { return *row == done && out[0] == *row ? UPDATE : REDO; }

static void update_shared_data(int* row, int* out) {
  int* a = matrix + (size_t)*row * (size_t)columns;
  memcpy(a, out + 1, (size_t)columns * sizeof(*a));
  lead[*row] = -1;
  for (int c = columns; c-- > 0;)
    if (a[c] != 0) lead[*row] = c;
  ++done;
}

int main(int argc, char** argv) {
  unsigned x = 12345, sum = 0;
  int rank = 0;
  TOPC_init(&argc, &argv);
  if (argc > 1) rows = atoi(argv[1]);
  if (argc > 2) columns = atoi(argv[2]);
  matrix = malloc((size_t)rows * (size_t)columns * sizeof(*matrix));
  lead = malloc((size_t)rows * sizeof(*lead));
  for (int i = 0; i < rows * columns; ++i) {
    x = x * 1103515245u + 12345u;
    matrix[i] = (int)((x >> 16) % kPrime);
  }
  /* Some rows are sums of others, so that the rank is not that of all. */
  for (int r = 5; r < rows; r += 7)
    for (int c = 0; c < columns; ++c)
      matrix[r * columns + c] = (matrix[(r - 1) * columns + c] + matrix[(r - 3) * columns + c]) % kPrime;
  TOPC_master_slave(generate_task_input, do_task, check_task_result, update_shared_data);
  if (TOPC_is_master()) {
    for (int r = 0; r < rows; ++r) rank += lead[r] >= 0;
    for (int i = 0; i < rows * columns; ++i) sum = sum * 31u + (unsigned)matrix[i];
    printf("%d x %d modulo %d: rank %d, checksum %08x\n", rows, columns, kPrime, rank, sum);
  }
  free(matrix);
  free(lead);
  TOPC_finalize();
  return 0;
}
