#include "shadowib/objects/foreign_library.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/imports.h"
#include "shadowib/base/log.h"
#include "shadowib/base/unowned_descriptors.h"
#include "shadowib/objects/system_library.h"

namespace shadowib {
namespace {

void* g_library = nullptr;
Lmid_t g_namespace = LM_ID_NEWLM;

// libc's functions in the library's namespace, whose errno it reads.
struct {
  int* (*errno_location)();
  int (*open)(const char*, int, ...);
  int (*socket)(int, int, int);
  int (*socketpair)(int, int, int, int*);
  int (*accept)(int, sockaddr*, socklen_t*);
  int (*accept4)(int, sockaddr*, socklen_t*, int);
  int (*pipe)(int*);
  int (*pipe2)(int*, int);
  int (*epoll_create)(int);
  int (*epoll_create1)(int);
  int (*eventfd)(unsigned, int);
  int (*timerfd_create)(int, int);
  int (*inotify_init1)(int);
  int (*shm_open)(const char*, int, mode_t);
  void* (*mmap)(void*, std::size_t, int, int, int, off_t);
  int (*munmap)(void*, std::size_t);
  int (*sigaction)(int, const struct sigaction*, struct sigaction*);
} g_libc;

int fail(int error) {
  *g_libc.errno_location() = error;
  return -1;
}

// What it has opened since the last restart. Older numbers, which its abandoned objects still hold, may have come to
// be anybody's, ours as well.
class OpenNumbers {
 public:
  void add(int fd) { word(fd).fetch_or(bit(fd)); }
  // True if it was there.
  bool remove(int fd) { return fd >= 0 && fd < kMost && (word(fd).fetch_and(~bit(fd)) & bit(fd)) != 0; }
  void clear() {
    for (auto& w : words_) w.store(0);
  }

 private:
  static constexpr int kMost = 1 << 20;  // base/descriptors.cc owns none above
  static std::uint64_t bit(int fd) { return std::uint64_t{1} << (fd % 64); }
  std::atomic<std::uint64_t>& word(int fd) { return words_[fd / 64]; }
  std::atomic<std::uint64_t> words_[kMost / 64];
};
OpenNumbers g_open;

int owned_one(const UnownedDescriptors& unowned, int fd) {
  if (fd < 0) return fd;
  const int moved = unowned.own(fd);
  if (moved >= 0) {
    g_open.add(moved);
    return moved;
  }
  raw_close(fd);
  return fail(EMFILE);
}

// What `make` makes is owned before a fork of another thread.
template <typename Make>
int owned(Make make) {
  UnownedDescriptors unowned;
  return owned_one(unowned, make());
}

template <typename Make>
int owned_pair(int ends[2], Make make) {
  UnownedDescriptors unowned;
  if (const int result = make(); result != 0) return result;
  const int first = owned_one(unowned, ends[0]);
  const int second = owned_one(unowned, ends[1]);
  if (first >= 0 && second >= 0) {
    ends[0] = first;
    ends[1] = second;
    return 0;
  }
  for (int fd : {first, second})
    if (g_open.remove(fd)) close_owned_descriptor(fd);
  return fail(EMFILE);
}

int foreign_open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return owned([&] { return g_libc.open(path, flags, mode); });
}
int turned_socket(int family, int type, int protocol) {
  return owned([&] { return g_libc.socket(family, type, protocol); });
}
int turned_socketpair(int family, int type, int protocol, int ends[2]) {
  return owned_pair(ends, [&] { return g_libc.socketpair(family, type, protocol, ends); });
}
int turned_accept(int fd, sockaddr* address, socklen_t* bytes) {
  return owned([&] { return g_libc.accept(fd, address, bytes); });
}
int turned_accept4(int fd, sockaddr* address, socklen_t* bytes, int flags) {
  return owned([&] { return g_libc.accept4(fd, address, bytes, flags); });
}
int turned_pipe(int ends[2]) {
  return owned_pair(ends, [&] { return g_libc.pipe(ends); });
}
int turned_pipe2(int ends[2], int flags) {
  return owned_pair(ends, [&] { return g_libc.pipe2(ends, flags); });
}
int turned_epoll_create(int size) {
  return owned([&] { return g_libc.epoll_create(size); });
}
int turned_epoll_create1(int flags) {
  return owned([&] { return g_libc.epoll_create1(flags); });
}
int turned_eventfd(unsigned value, int flags) {
  return owned([&] { return g_libc.eventfd(value, flags); });
}
int turned_timerfd_create(int clock, int flags) {
  return owned([&] { return g_libc.timerfd_create(clock, flags); });
}
int turned_inotify_init1(int flags) {
  return owned([&] { return g_libc.inotify_init1(flags); });
}
int turned_shm_open(const char* name, int flags, mode_t mode) {
  return owned([&] { return g_libc.shm_open(name, flags, mode); });
}

int foreign_close(int fd) {
  if (!g_open.remove(fd)) return fail(EBADF);
  close_owned_descriptor(fd);
  return 0;
}

// Devices and shared memory are no part of an image. Private memory is: the library's objects lie in it.
void* turned_mmap(void* address, std::size_t bytes, int protection, int flags, int fd, off_t offset) {
  if ((flags & MAP_HUGETLB) != 0) {  // which an image could not hold; it goes on without
    fail(ENOMEM);
    return MAP_FAILED;
  }
  void* p = g_libc.mmap(address, bytes, protection, flags, fd, offset);
  if (p == MAP_FAILED || (flags & MAP_TYPE) == MAP_PRIVATE || own_mapping(p, bytes)) return p;
  g_libc.munmap(p, bytes);
  fail(ENOMEM);
  return MAP_FAILED;
}
int turned_munmap(void* address, std::size_t bytes) {
  disown_mapping(address);
  return g_libc.munmap(address, bytes);
}

int turned_sigaction(int signal, const struct sigaction*, struct sigaction* old) {
  return old == nullptr ? 0 : g_libc.sigaction(signal, nullptr, old);
}
sighandler_t turned_signal(int signal, sighandler_t) {
  struct sigaction now {};
  return g_libc.sigaction(signal, nullptr, &now) == 0 ? now.sa_handler : SIG_ERR;
}

int turned_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) {
  log_line(LogLevel::kError,
           "a library below the backend wants a thread of its own, which could not be checkpointed: refused");
  return EPERM;
}

const ImportTurn kTurns[] = {
    {"open", reinterpret_cast<void*>(foreign_open)},
    {"open64", reinterpret_cast<void*>(foreign_open)},
    {"socket", reinterpret_cast<void*>(turned_socket)},
    {"socketpair", reinterpret_cast<void*>(turned_socketpair)},
    {"accept", reinterpret_cast<void*>(turned_accept)},
    {"accept4", reinterpret_cast<void*>(turned_accept4)},
    {"pipe", reinterpret_cast<void*>(turned_pipe)},
    {"pipe2", reinterpret_cast<void*>(turned_pipe2)},
    {"epoll_create", reinterpret_cast<void*>(turned_epoll_create)},
    {"epoll_create1", reinterpret_cast<void*>(turned_epoll_create1)},
    {"eventfd", reinterpret_cast<void*>(turned_eventfd)},
    {"timerfd_create", reinterpret_cast<void*>(turned_timerfd_create)},
    {"inotify_init1", reinterpret_cast<void*>(turned_inotify_init1)},
    {"shm_open", reinterpret_cast<void*>(turned_shm_open)},
    {"close", reinterpret_cast<void*>(foreign_close)},
    {"mmap", reinterpret_cast<void*>(turned_mmap)},
    {"mmap64", reinterpret_cast<void*>(turned_mmap)},
    {"munmap", reinterpret_cast<void*>(turned_munmap)},
    {"sigaction", reinterpret_cast<void*>(turned_sigaction)},
    {"signal", reinterpret_cast<void*>(turned_signal)},
    {"pthread_create", reinterpret_cast<void*>(turned_pthread_create)},
};

template <typename F>
bool find(F& function, const char* name) {
  function = reinterpret_cast<F>(::dlsym(g_library, name));
  return function != nullptr;
}

bool find_libc() {
  return find(g_libc.errno_location, "__errno_location") && find(g_libc.open, "open") &&
         find(g_libc.socket, "socket") && find(g_libc.socketpair, "socketpair") && find(g_libc.accept, "accept") &&
         find(g_libc.accept4, "accept4") && find(g_libc.pipe, "pipe") && find(g_libc.pipe2, "pipe2") &&
         find(g_libc.epoll_create, "epoll_create") && find(g_libc.epoll_create1, "epoll_create1") &&
         find(g_libc.eventfd, "eventfd") && find(g_libc.timerfd_create, "timerfd_create") &&
         find(g_libc.inotify_init1, "inotify_init1") && find(g_libc.shm_open, "shm_open") &&
         find(g_libc.mmap, "mmap") && find(g_libc.munmap, "munmap") && find(g_libc.sigaction, "sigaction");
}

const link_map* first_of_namespace(void* handle) {
  link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) return nullptr;
  while (map->l_prev != nullptr) map = map->l_prev;
  return map;
}

// What lay in the namespace before the library came, and is nobody's to turn: names, since places may be used again.
std::vector<std::string> g_others;

bool is_system(std::string_view name) {
  for (std::string_view prefix : {"libc.so", "ld-linux", "libm.so", "libpthread.so", "libdl.so", "librt.so"})
    if (name.starts_with(prefix)) return true;
  return false;
}

void turn_all() {
  for (const link_map* map = first_of_namespace(g_library); map != nullptr; map = map->l_next) {
    if (is_system(file_name(map->l_name))) continue;
    bool other = false;
    for (const std::string& name : g_others) other |= name == map->l_name;
    if (!other) turn_imports(library_of(*map), kTurns);
  }
}

// Their constructors run before their imports can be turned.
class KeptSignals {
 public:
  KeptSignals() {
    for (int signal = 1; signal < NSIG; ++signal) known_[signal] = ::sigaction(signal, nullptr, &kept_[signal]) == 0;
  }
  ~KeptSignals() {
    for (int signal = 1; signal < NSIG; ++signal) {
      struct sigaction now {};
      if (!known_[signal] || ::sigaction(signal, nullptr, &now) != 0) continue;
      if (now.sa_sigaction != kept_[signal].sa_sigaction) ::sigaction(signal, &kept_[signal], nullptr);
    }
  }
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;

 private:
  struct sigaction kept_[NSIG];
  bool known_[NSIG] = {};
};

}  // namespace

void* open_foreign_library(void* beside, const char* name) {
  if (g_library != nullptr) {
    if (g_namespace != LM_ID_BASE) turn_all();  // there the program loads libraries, too
    return g_library;
  }
  Lmid_t where = LM_ID_BASE;
  if (::dlinfo(beside, RTLD_DI_LMID, &where) != 0) return nullptr;
  for (const link_map* map = first_of_namespace(beside); map != nullptr; map = map->l_next)
    g_others.emplace_back(map->l_name);
  {
    KeptSignals kept;
    // What it links against under this name must not be ourselves.
    if (where != LM_ID_BASE) ::dlmopen(where, system_library("libibverbs.so.1").c_str(), RTLD_NOW | RTLD_LOCAL);
    g_library = ::dlmopen(where, name, RTLD_NOW | RTLD_LOCAL);
  }
  if (g_library == nullptr) return nullptr;
  if (!find_libc()) {
    log_line(LogLevel::kError, "%s: its libc lacks functions that are to be watched", name);
    ::dlclose(g_library);
    g_library = nullptr;
    return nullptr;
  }
  g_namespace = where;
  turn_all();
  return g_library;
}

void abandon_foreign_descriptors() { g_open.clear(); }

Lmid_t namespace_of_foreign_library() { return g_namespace; }

}  // namespace shadowib
