/* A library that knows nothing of shadowib: it does what libfabric's providers do. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static void handler(int number) { (void)number; }

static void* thread(void* argument) { return argument; }

__attribute__((constructor)) static void start(void) { signal(SIGUSR2, handler); }

int foreign_socket(void) { return socket(AF_INET, SOCK_DGRAM, 0); }
int foreign_close(int fd) { return close(fd) == 0 ? 0 : errno; }
int foreign_handler(void) {
  struct sigaction action = {.sa_handler = handler};
  return sigaction(SIGUSR1, &action, NULL);
}
int foreign_thread(void) {
  pthread_t id;
  return pthread_create(&id, NULL, thread, NULL);
}
void* foreign_map(int shared) {
  return mmap(NULL, 4096, PROT_READ | PROT_WRITE, (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0);
}
