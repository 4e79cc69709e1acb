/* l and g of the BSP machine: the time of an empty superstep, and of each 8-byte put above that.
 *
 *   bsprun -n P bsp_cost [SUPERSTEPS]     prints "p P l_us L g_ns G": medians over process 0's rounds
 * Source: Bisseling, "Parallel Scientific Computation" (2004), section 1.5: h-relations of growing h. */
#include <bsp.h>
#include <stdio.h>
#include <stdlib.h>

enum { kRounds = 15, kPuts = 256 };

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

/* Seconds of a superstep with `puts` puts of each process to every other. */
static double superstep_s(int supersteps, int puts, double* target) {
  const int p = bsp_nprocs(), s = bsp_pid();
  bsp_sync();
  const double start = bsp_time();
  for (int n = 0; n < supersteps; ++n) {
    for (int i = 0; i < puts; ++i)
      for (int to = (s + 1) % p, k = 1; k < p; ++k, to = (to + 1) % p)
        bsp_put(to, &start, target, (s * kPuts + i) * (int)sizeof(double), sizeof(double));
    bsp_sync();
  }
  return (bsp_time() - start) / supersteps;
}

int main(int argc, char** argv) {
  bsp_begin(bsp_nprocs());
  const int supersteps = argc > 1 ? atoi(argv[1]) : 1000, p = bsp_nprocs();
  double* target = calloc(kPuts * p, sizeof(double));
  bsp_push_reg(target, kPuts * p * (int)sizeof(double));
  bsp_sync();
  double l[kRounds], g[kRounds];
  superstep_s(supersteps / 10 + 1, kPuts, target);
  for (int round = 0; round < kRounds; ++round) {
    l[round] = superstep_s(supersteps, 0, target);
    g[round] = p > 1 ? (superstep_s(supersteps / 10 + 1, kPuts, target) - l[round]) / (kPuts * (p - 1)) : 0;
  }
  qsort(l, kRounds, sizeof(double), by_value);
  qsort(g, kRounds, sizeof(double), by_value);
  if (bsp_pid() == 0) printf("p %d l_us %.3f g_ns %.2f\n", p, 1e6 * l[kRounds / 2], 1e9 * g[kRounds / 2]);
  bsp_end();
  return 0;
}
