#include "perftest/bare/backend.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <string>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/log.h"
#include "shadowib/base/unowned_descriptors.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib::bare {
namespace {

BackendOps g_ops;
Exchange* g_exchange = nullptr;  // never deleted: exiting threads may use it
pid_t g_helper_of = 0;           // the process that has the thread

void* host_map(size_t bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

int host_publish(const char* key, const void* value, size_t bytes) {
  return Exchange::errno_of(g_exchange->publish(key, {static_cast<const char*>(value), bytes}));
}

int host_lookup(const char* key, void* value, size_t capacity, size_t* bytes) {
  return g_exchange->copy(key, value, capacity, bytes);
}
int host_claim(const char* key) { return Exchange::errno_of(g_exchange->claim(key, "claimed")); }

// Whoever asks first draws it.
int host_job_key(uint8_t key[32]) {
  char drawn[32];
  size_t bytes = 0;
  if (::getrandom(drawn, sizeof(drawn), 0) != sizeof(drawn)) return EIO;
  if (int rc = Exchange::errno_of(g_exchange->claim("key", {drawn, sizeof(drawn)})); rc != 0 && rc != EEXIST)
    return rc;
  return host_lookup("key", key, 32, &bytes);
}

constexpr HostServices kHost = {
    .abi_version = kBackendAbiVersion,
    .set_errno = [](int value) { errno = value; },
    .map = host_map,
    .unmap = [](void* address, size_t bytes) { ::munmap(address, bytes); },
    .own_mapping = [](void*, size_t) {},
    .disown_mapping = [](void*) {},
    .own_descriptor = [](int fd) { return UnownedDescriptors().own(fd); },
    .close_descriptor = close_owned_descriptor,
    .publish = host_publish,
    .lookup = host_lookup,
    .claim = host_claim,
    .job_key = host_job_key,
    .config = [](const char* name) -> const char* { return ::getenv(name); },
    .log = [](int level, const char* text) { log_line(static_cast<LogLevel>(level), "%s", text); },
    .open_library = [](const char*) -> void* { return nullptr; },
    .purged = [](uint64_t) {},
    .unowned_descriptors = [](bool) {},  // what it runs takes no checkpoints
};

int load() {
  const char* directory = ::getenv("SHADOWIB_BARE_DIR");
  if (directory == nullptr || *directory == '\0') {
    log_line(LogLevel::kError, "bare verbs: SHADOWIB_BARE_DIR names no directory for the processes to meet in");
    return EINVAL;
  }
  std::unique_ptr<Exchange> exchange;
  if (Status status = Exchange::open(std::string("dir:") + directory, true, &exchange); !status.ok()) {
    log_line(LogLevel::kError, "bare verbs: %s", status.text());
    return EIO;
  }
  g_exchange = exchange.release();
  void* library = ::dlmopen(LM_ID_NEWLM, IB2TCP_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  void* entry = library != nullptr ? ::dlsym(library, "shadowib_backend_entry") : nullptr;
  if (entry == nullptr) {
    log_line(LogLevel::kError, "bare verbs: %s", ::dlerror());
    return ENOENT;
  }
  return reinterpret_cast<BackendEntry>(entry)(&kHost, &g_ops);
}

void* helper_main(void*) {
  ::prctl(PR_SET_NAME, "bare-helper");
  for (;;) g_ops.progress(-1);
  return nullptr;
}

// As the shim at a process's end: acknowledgements held back for company must still go out.
__attribute__((destructor)) void flush_at_exit() {
  if (g_helper_of == ::getpid()) g_ops.progress(0);
}

}  // namespace

const BackendOps* backend() {
  static const int error = load();
  if (error == 0) return &g_ops;
  errno = error;
  return nullptr;
}

const BackendOps& ops() { return g_ops; }

int start_helper() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> guard(mutex);
  if (g_helper_of != 0 || g_ops.progress == nullptr) return 0;
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the thread inherits it
  pthread_t thread;
  const int rc = ::pthread_create(&thread, nullptr, helper_main, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (rc != 0) return rc;
  ::pthread_detach(thread);
  g_helper_of = ::getpid();
  return 0;
}

}  // namespace shadowib::bare
