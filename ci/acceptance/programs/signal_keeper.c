/* Installs handlers of its own, opens an RDMA device (and, if a library is named, loads that first and asks libfabric
 * for its providers), and checks that every handler is still its own and works. Usage: signal_keeper [LIBFABRIC] */
#include <infiniband/verbs.h>
#include <signal.h>

#include "member.h"

static const int kSignals[] = {SIGINT,  SIGILL,  SIGABRT, SIGBUS,  SIGSEGV, SIGTERM,
                               SIGUSR1, SIGUSR2, SIGHUP,  SIGALRM, SIGFPE};
#define SIGNALS (sizeof(kSignals) / sizeof(kSignals[0]))
static volatile sig_atomic_t g_seen;

static void handler(int signal) { g_seen = signal; }

static void use_libfabric(const char* path) {
  void* library = dlopen(path, RTLD_NOW);
  if (library == NULL) leave(EXIT_SKIPPED, "SKIPPED: %s", dlerror());
  int (*getinfo)(uint32_t, const char*, const char*, uint64_t, const void*, void**) =
      (int (*)(uint32_t, const char*, const char*, uint64_t, const void*, void**))dlsym(library, "fi_getinfo");
  if (getinfo == NULL) leave(1, "no fi_getinfo in %s", path);
  void* info = NULL;
  printf("fi_getinfo: %d\n", getinfo(1u << 16 | 17, NULL, NULL, 0, NULL, &info));
}

int main(int argc, char** argv) {
  struct sigaction action = {.sa_handler = handler};
  for (size_t i = 0; i < SIGNALS; ++i) sigaction(kSignals[i], &action, NULL);
  if (argc > 1) use_libfabric(argv[1]);
  for (size_t i = 0; i < SIGNALS && argc > 1; ++i)
    sigaction(kSignals[i], &action, NULL); /* what libfabric does is its own */
  struct ibv_device** list = ibv_get_device_list(NULL);
  struct ibv_context* context = list != NULL && list[0] != NULL ? ibv_open_device(list[0]) : NULL;
  if (context == NULL) leave(1, "no device can be opened: %s", strerror(errno));
  if (argc > 1) use_libfabric(argv[1]);
  for (size_t i = 0; i < SIGNALS; ++i) {
    struct sigaction now;
    sigaction(kSignals[i], NULL, &now);
    if (now.sa_handler != handler) leave(1, "the handler of signal %d is gone", kSignals[i]);
    g_seen = 0;
    raise(kSignals[i]);
    if (g_seen != kSignals[i]) leave(1, "the handler of signal %d did not run", kSignals[i]);
  }
  leave(0, "%zu handlers kept", SIGNALS);
}
