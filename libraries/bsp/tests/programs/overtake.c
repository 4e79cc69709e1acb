/* A process that is early in a superstep reaches for memory of one that still ends the superstep before.
 *
 *   bsprun -n 2 overtake put|land|get SUPERSTEPS
 * In each superstep process 0 is early. `put`: its put at once comes behind an older put; `land`: behind a get of
 * process 1 that lands there; `get`: its direct get reads what was put before. */
#define BSP_MULTICORE
#include <bsp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  bsp_begin(bsp_nprocs());
  const int s = (int)bsp_pid(), supersteps = atoi(argv[2]), lands = strcmp(argv[1], "land") == 0,
            gets = strcmp(argv[1], "get") == 0;
  int value = 0, source = 0;
  bsp_push_reg(&value, sizeof(value));
  bsp_push_reg(&source, sizeof(source));
  bsp_sync();
  for (int n = 1; n <= supersteps; ++n) {
    const int older = 2 * n, newer = 2 * n + 1;
    int fetched = 0;
    source = older;
    if (s == 0 && !lands) bsp_put(1, &older, &value, 0, sizeof(older));
    if (s == 1 && lands) bsp_get(0, &source, 0, &value, sizeof(value));
    bsp_sync();
    if (s == 0 && gets) bsp_direct_get(1, &value, 0, &fetched, sizeof(fetched));
    if (s == 0 && gets && fetched != older) bsp_abort("superstep %d: %d was read instead of %d", n, fetched, older);
    if (s == 0 && !gets) bsp_hpput(1, &newer, &value, 0, sizeof(newer));
    bsp_sync();
    if (s == 1 && !gets && value != newer) bsp_abort("superstep %d: %d is there instead of %d", n, value, newer);
  }
  if (s == 0) printf("right\n");
  bsp_end();
  return 0;
}
