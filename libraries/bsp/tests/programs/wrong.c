/* Wrong uses, by name: the library ends the job with one message.
 *
 *   bsprun -n P wrong CASE
 * Each process writes "started" first, without a line's end: it must come out once, whatever happens. */
#include <bsp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char** argv) {
  const char* name = argc > 1 ? argv[1] : "";
#define CASE(text) else if (strcmp(name, text) == 0)
  int x = 0, y = 0;
  if (strcmp(name, "put_before_begin") == 0) bsp_put(0, &x, &x, 0, 4);
  if (strcmp(name, "sync_before_begin") == 0) bsp_sync();
  const char* number = getenv("SHADOWIB_BSP_PROCESS");
  if (strcmp(name, "last_ends_before_begin") == 0) { /* and no other one is a member of the job by then */
    if (atoi(number) == bsp_nprocs() - 1) exit(3);
    usleep(300000);
  }
  if (strcmp(name, "last_breaks_off") == 0 && atoi(number) == bsp_nprocs() - 1) _exit(3);
  if (strcmp(name, "first_ends_before_begin") == 0 && atoi(number) == 0) return 3;
  if (strcmp(name, "all_end_before_begin") == 0) return 3;
  if (strcmp(name, "fewer_begin") == 0) { /* the last one comes when they have ended */
    if (atoi(number) == bsp_nprocs() - 1) sleep(1);
    bsp_begin(bsp_nprocs() - 1);
    bsp_end();
    return 0;
  }
  bsp_begin(bsp_nprocs());
  const int p = bsp_nprocs(), s = bsp_pid(), last = s == p - 1;
  if (s == p - 1) printf("started");
  bsp_push_reg(&x, sizeof(x));
  bsp_sync();
  if (strcmp(name, "not_registered") == 0) {
    bsp_put(0, &x, &y, 0, 4);
  }
  CASE("beyond") { bsp_put(0, &x, &x, 2, 4); }
  CASE("negative") { bsp_put(0, &x, &x, -4, 4); }
  CASE("no_process") { bsp_put(p, &x, &x, 0, 4); }
  CASE("get_beyond") { bsp_get(0, &x, 4, &y, 4); }
  CASE("too_early") {
    bsp_push_reg(&y, sizeof(y));
    bsp_hpput(0, &x, &y, 0, 4);
  }
  CASE("pop_unknown") { bsp_pop_reg(&y); }
  CASE("other_order") {
    bsp_push_reg(&y, sizeof(y));
    if (last) bsp_pop_reg(&x);
    bsp_sync();
  }
  CASE("other_tag_size") {
    int bytes = last ? 8 : 4;
    bsp_set_tagsize(&bytes);
    bsp_sync();
  }
  CASE("end_and_sync") {
    if (last)
      bsp_end();
    else
      bsp_sync();
  }
  CASE("move_nothing") { bsp_move(&x, 4); }
  CASE("begin_twice") { bsp_begin(1); }
  CASE("abort") {
    if (last) bsp_abort("the answer is %d", 42);
    bsp_sync();
  }
  CASE("exit_early") {
    if (last) exit(3);
    bsp_sync();
  }
  CASE("exit_at_once") {
    if (last) {
      fflush(stdout);
      _exit(3);
    }
    bsp_sync();
  }
  CASE("killed") {
    if (last) {
      fflush(stdout);
      raise(9);
    }
    bsp_sync();
  }
  CASE("sync_after_end") {
    bsp_end();
    bsp_sync();
  }
  CASE("child_exits") { /* of a fork: no process of the job */
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) exit(5);
    int status = 0;
    waitpid(child, &status, 0);
    bsp_sync();
    bsp_end();
    return WEXITSTATUS(status) == 5 ? 0 : 1;
  }
  CASE("own_code") {
    bsp_end();
    return last ? atoi(argv[2]) : 0;
  }
  bsp_end();
  return 0;
}
