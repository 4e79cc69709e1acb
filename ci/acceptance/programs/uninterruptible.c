// Sleeps in the kernel as who waits for a disk does, uninterruptibly, for as many seconds as named: the parent of a
// vfork.
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char** argv) {
  const unsigned seconds = argc > 1 ? (unsigned)atoi(argv[1]) : 1;
  const pid_t child = vfork();
  if (child == 0) {
    sleep(seconds);
    _exit(0);
  }
  return child < 0;
}
