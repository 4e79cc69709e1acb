/* Matrices: each process has rows of A and B, and gets the rows of B of all others.
 *
 *   bsprun -n P matrix_multiply [N]     N x N, checked in whole numbers; prints the sum of C
 * Source: the application of de Camargo, Kon, Goldman, "Portable checkpointing and communication for BSP applications
 * on dynamic heterogeneous Grid environments" (2005), section 5.1. */
#include <bsp.h>
#include <stdio.h>
#include <stdlib.h>

static int first_row(int n, int process) { return (int)((long)n * process / bsp_nprocs()); }
static long double a_of(int i, int j) { return (i * 7 + j * 3) % 11; }
static long double b_of(int i, int j) { return (i * 5 + j * 2) % 13; }

int main(int argc, char** argv) {
  bsp_begin(bsp_nprocs());
  const int n = argc > 1 ? atoi(argv[1]) : 120, p = bsp_nprocs(), s = bsp_pid();
  const int first = first_row(n, s), rows = first_row(n, s + 1) - first;
  long double* a = malloc(sizeof(*a) * (rows * n + 1));
  long double* b = malloc(sizeof(*b) * (rows * n + 1));
  long double* c = calloc(rows * n + 1, sizeof(*c));
  long double* theirs = malloc(sizeof(*theirs) * ((n / p + 1) * n + 1));
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < n; ++j) a[i * n + j] = a_of(first + i, j), b[i * n + j] = b_of(first + i, j);
  bsp_push_reg(b, (int)sizeof(*b) * rows * n);
  bsp_sync();
  for (int turn = 0; turn < p; ++turn) {
    const int whose = (s + turn) % p, from = first_row(n, whose), count = first_row(n, whose + 1) - from;
    bsp_get(whose, b, 0, theirs, (int)sizeof(*b) * count * n);
    bsp_sync();
    for (int i = 0; i < rows; ++i)
      for (int k = 0; k < count; ++k)
        for (int j = 0; j < n; ++j) c[i * n + j] += a[i * n + from + k] * theirs[k * n + j];
  }
  bsp_pop_reg(b);
  long double own = 0;
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < n; ++j) {
      long double sum = 0;
      for (int k = 0; k < n && (i * n + j) % 17 == 0; ++k) sum += a_of(first + i, k) * b_of(k, j);
      if ((i * n + j) % 17 == 0 && sum != c[i * n + j])
        bsp_abort("element %d, %d is %.0Lf instead of %.0Lf", first + i, j, c[i * n + j], sum);
      own += c[i * n + j];
    }
  bsp_send(0, NULL, &own, sizeof(own));
  bsp_sync();
  long double total = 0, part;
  int messages, bytes;
  for (bsp_qsize(&messages, &bytes); messages > 0; --messages) {
    bsp_move(&part, sizeof(part));
    total += part;
  }
  if (s == 0) printf("matrix_multiply: %d x %d: right, sum %.0Lf\n", n, n, total);
  bsp_end();
  return 0;
}
