/* LU decomposition with partial pivoting of an N x N matrix, whose rows are dealt to the processes in turn.
 *
 *   bsprun -n P lu [N]      Checked by L U = P A. Prints the sum of U's diagonal.
 * RING_PAUSE_US rests in each step. */
#include <bsp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct best {
  double value;
  int row;
};

static double element(int i, int j) { return (i * 37 + j * 11) % 23 - 11 + (i == j ? 0.5 : 0) + (i * j % 7) / 8.0; }

static void rest(void) {
  const char* pause_us = getenv("RING_PAUSE_US");
  if (pause_us) nanosleep(&(struct timespec){0, atol(pause_us) * 1000}, NULL);
}

/* The row below k with the largest element of column k, by all processes. */
static int pivot_of(int n, int k, double* rows, int* order, struct best* all) {
  const int p = bsp_nprocs(), s = bsp_pid();
  struct best own = {-1, k};
  for (int i = s; i < n; i += p)
    if (i >= k && fabs(rows[i / p * n + k]) > own.value) own.value = fabs(rows[i / p * n + k]), own.row = i;
  for (int i = 0; i < p; i++) bsp_put(i, &own, all, s * (int)sizeof own, sizeof own);
  bsp_sync();
  int best = 0;
  for (int i = 1; i < p; i++)
    if (all[i].value > all[best].value || (all[i].value == all[best].value && all[i].row < all[best].row)) best = i;
  const int row = all[best].row, kept = order[k];
  order[k] = order[row];
  order[row] = kept;
  return row;
}

int main(int argc, char** argv) {
  bsp_begin(bsp_nprocs());
  const int n = argc > 1 ? atoi(argv[1]) : 40, p = bsp_nprocs(), s = bsp_pid(), own = (n + p - 1) / p;
  double* rows = calloc((size_t)own * n, sizeof *rows);
  double* top = calloc(n, sizeof *top);
  double* swapped = calloc(n, sizeof *swapped);
  struct best* all = calloc(p, sizeof *all);
  int* order = calloc(n, sizeof *order);
  for (int i = 0; i < n; i++) order[i] = i;
  for (int i = s; i < n; i += p)
    for (int j = 0; j < n; j++) rows[i / p * n + j] = element(i, j);
  const int bytes = n * (int)sizeof(double);
  bsp_push_reg(rows, own * bytes);
  bsp_push_reg(top, bytes);
  bsp_push_reg(all, p * (int)sizeof *all);
  bsp_sync();
  for (int k = 0; k < n; k++) {
    const int row = pivot_of(n, k, rows, order, all);
    if (row % p == s && row != k) bsp_get(k % p, rows, k / p * bytes, swapped, bytes);
    if (row % p == s)
      for (int i = 0; i < p; i++) bsp_put(i, rows + row / p * n, top, 0, bytes);
    bsp_sync();
    if (row % p == s && row != k)
      for (int j = 0; j < n; j++) rows[row / p * n + j] = swapped[j];
    if (k % p == s)
      for (int j = 0; j < n; j++) rows[k / p * n + j] = top[j];
    for (int i = s; i < n; i += p) {
      if (i <= k) continue;
      double* line = rows + i / p * n;
      line[k] /= top[k];
      for (int j = k + 1; j < n; j++) line[j] -= line[k] * top[j];
    }
    rest();
  }
  double* whole = calloc((size_t)own * p * n, sizeof *whole);
  for (int i = 0; s == 0 && i < p; i++) bsp_get(i, rows, 0, whole + (size_t)i * own * n, own * bytes);
  bsp_sync();
  double worst = 0, sum = 0;
  for (int i = 0; s == 0 && i < n; i++) {
    for (int j = 0; j < n; j++) {
      double value = 0;
      for (int k = 0; k <= i && k <= j; k++)
        value += (k == i ? 1 : whole[((size_t)(i % p) * own + i / p) * n + k]) *
                 whole[((size_t)(k % p) * own + k / p) * n + j];
      worst = fmax(worst, fabs(value - element(order[i], j)));
    }
    sum += whole[((size_t)(i % p) * own + i / p) * n + i];
  }
  if (worst > 1e-9 * n) bsp_abort("L U is off by %g\n", worst);
  if (s == 0) printf("lu: %d x %d: right, %a\n", n, n, sum);
  bsp_end();
  return 0;
}
