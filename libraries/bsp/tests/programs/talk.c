/* What bsprun passes on: input to process 0, output of all, exit codes.
 *
 *   bsprun -n P talk read              process 0 reads a number N, and begins with N processes
 *   bsprun -n P talk code CODE         the last process exits with CODE after bsp_end()
 *   bsprun -n P talk output LINES      each process writes so many lines
 *   bsprun -n P talk wait FILE         writes its pid to FILE.<process>, then waits in a superstep */
#include <bsp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int wanted;

static void spmd(void) {
  bsp_begin(wanted);
  bsp_sync();
  printf("process %d of %d\n", bsp_pid(), bsp_nprocs());
  bsp_end();
}

int main(int argc, char** argv) {
  if (strcmp(argv[1], "read") == 0) {
    bsp_init(spmd, argc, argv);
    if (scanf("%d", &wanted) != 1) return 9;
    spmd();
    printf("read %d\n", wanted);
    return 0;
  }
  bsp_begin(bsp_nprocs());
  const int s = bsp_pid(), last = s == bsp_nprocs() - 1;
  setlinebuf(stdout); /* lines of several processes stay whole in one pipe */
  if (strcmp(argv[1], "output") == 0)
    for (int i = 0; i < atoi(argv[2]); ++i) printf("line %d of process %d\n", i, s);
  if (strcmp(argv[1], "wait") == 0) {
    char name[4096];
    snprintf(name, sizeof(name), "%s.%d.new", argv[2], s);
    FILE* file = fopen(name, "w");
    fprintf(file, "%d\n", (int)getpid());
    fclose(file);
    char final[4096];
    snprintf(final, sizeof(final), "%s.%d", argv[2], s);
    rename(name, final);
    if (s == 0) pause();
    bsp_sync();
  }
  bsp_end();
  return strcmp(argv[1], "code") == 0 && last ? atoi(argv[2]) : 0;
}
