/* Supersteps with a result that is checked, for checkpoints and restarts.
 *
 *   bsprun -n P steps N                 N supersteps; process 0 prints the sum
 *   bsprun -n P steps N SETS FILE       in the middle process 1 waits for a set in the directory SETS, makes FILE and
 *                                       is killed, unless FILE is there already */
#include <bsp.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int has_set(const char* path) {
  DIR* sets = opendir(path);
  int found = 0;
  for (const struct dirent* entry; sets != NULL && (entry = readdir(sets)) != NULL;) found |= entry->d_name[0] != '.';
  if (sets != NULL) closedir(sets);
  return found;
}

static void die_once(const char* sets, const char* file) {
  while (!has_set(sets)) usleep(1000);
  /* A restart may go on anywhere in here: the file alone tells whether this was done. */
  if (open(file, O_CREAT | O_EXCL | O_WRONLY, 0600) >= 0) raise(SIGKILL);
}

int main(int argc, char** argv) {
  const int steps = argc > 1 ? atoi(argv[1]) : 0;
  bsp_begin(bsp_nprocs());
  const int p = bsp_nprocs(), s = bsp_pid();
  long sum = 0, came = 0;
  bsp_push_reg(&came, sizeof(came));
  bsp_sync();
  for (int i = 0; i < steps; ++i) {
    const long value = (long)i * p + s;
    bsp_put((s + 1) % p, &value, &came, 0, sizeof(value));
    usleep(2000);
    bsp_sync();
    if (came != (long)i * p + (s + p - 1) % p) bsp_abort("superstep %d: %ld", i, came);
    sum += came;
    if (argc > 3 && s == 1 && i == steps / 2) die_once(argv[2], argv[3]);
  }
  if (s == 0) printf("sum %ld\n", sum);
  bsp_end();
  return 0;
}
