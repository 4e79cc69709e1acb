/* Tells in which superstep each process is when a checkpoint is taken.
 *
 *   bsprun -n P --interval S lockstep FILE    FILE.<process>.<n>: the superstep at checkpoint n; ends when FILE.stop
 * exists */
#include <bsp.h>
#include <shadowib/shadowib.h>
#include <stdio.h>
#include <unistd.h>

static const char* path;
static volatile int superstep, checkpoints, self;

static void tell(int event, void* unused) {
  (void)unused;
  if (event != SHADOWIB_BEFORE_CHECKPOINT || checkpoints > 2) return;
  char name[4096], next[4096];
  snprintf(next, sizeof(next), "%s.new.%d", path, self);
  snprintf(name, sizeof(name), "%s.%d.%d", path, self, checkpoints);
  FILE* file = fopen(next, "w");
  if (file == NULL) return;
  fprintf(file, "%d\n", superstep);
  fclose(file);
  rename(next, name);
  ++checkpoints;
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  path = argv[1];
  bsp_begin(bsp_nprocs());
  self = bsp_pid();
  shadowib_add_hook(tell, NULL);
  int end = 0;
  bsp_push_reg(&end, sizeof(end));
  bsp_sync();
  char stop[4096];
  snprintf(stop, sizeof(stop), "%s.stop", path);
  while (!end) {
    const int is_end = access(stop, F_OK) == 0;
    for (int i = 0; i < bsp_nprocs() && self == 0; ++i) bsp_put(i, &is_end, &end, 0, sizeof(end));
    ++superstep;
    bsp_sync();
    usleep(500);
  }
  bsp_end();
  return 0;
}
