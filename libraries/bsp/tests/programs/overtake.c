/* A process that is early in a superstep reaches for memory of one that still ends the superstep before.
 *
 *   bsprun -n 2 overtake SUPERSTEPS     process 0 is early; process 1 tells what is wrong */
#define BSP_MULTICORE
#include <bsp.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  bsp_begin(bsp_nprocs());
  const int s = (int)bsp_pid(), supersteps = atoi(argv[1]);
  int put = 0, late = 0, seen = 0, zero = 0, fetched = 0;
  bsp_push_reg(&put, sizeof(put));
  bsp_push_reg(&late, sizeof(late));
  bsp_push_reg(&seen, sizeof(seen));
  bsp_push_reg(&zero, sizeof(zero));
  bsp_sync();
  for (int n = 1; n <= supersteps; ++n) {
    const int older = 2 * n, newer = 2 * n + 1;
    if (s == 0) {
      bsp_put(1, &older, &put, 0, sizeof(older));
      bsp_put(1, &older, &seen, 0, sizeof(older));
    }
    if (s == 1 && n % 2 == 0) bsp_get(0, &zero, 0, &late, sizeof(late));
    bsp_sync();
    if (s == 0) {
      bsp_hpput(1, &newer, &put, 0, sizeof(newer));
      bsp_hpput(1, &newer, &late, 0, sizeof(newer));
      bsp_direct_get(1, &seen, 0, &fetched, sizeof(fetched));
      if (fetched != older) bsp_abort("superstep %d: a direct get read %d instead of %d", n, fetched, older);
    }
    bsp_sync();
    if (s == 1 && put != newer) bsp_abort("superstep %d: a put at once was lost: %d instead of %d", n, put, newer);
    if (s == 1 && late != newer) bsp_abort("superstep %d: a get landed late: %d instead of %d", n, late, newer);
  }
  if (s == 0) printf("right\n");
  bsp_end();
  return 0;
}
