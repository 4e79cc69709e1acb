// Sleeps in the kernel as who waits for a disk does, uninterruptibly, for as many seconds as named: the parent of a
// vfork. Its output ends with itself: a child that lets it go on may have to wait for a processor before it ends.
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char** argv) {
  const unsigned seconds = argc > 1 ? (unsigned)atoi(argv[1]) : 1;
  const pid_t child = vfork();
  if (child == 0) {
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    sleep(seconds);
    _exit(0);
  }
  return child < 0;
}
