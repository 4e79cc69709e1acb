// One thread: identity, memory, clocks, the heap, exceptions, loading.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "hooks/imager/tests/subject.h"

using namespace shadowib::test;

namespace {

std::string contents(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}
std::string link_of(const char* path) {
  char text[4096] = {};
  return ::readlink(path, text, sizeof(text) - 1) < 0 ? "" : text;
}
std::int64_t monotonic() {
  timespec ts{};
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * 1000000000ll + ts.tv_nsec;
}

SCENARIO(single) {
  const pid_t pid = ::getpid();
  int local = 4711;
  save_and_end();
  CHECK_THAT(local == 4711);
  CHECK_THAT(::getpid() == pid);
  CHECK_THAT(::syscall(SYS_gettid) == pid);
}

SCENARIO(member_one) {
  set_member(1);
  const pid_t group = ::getpgrp(), session = ::getsid(0);
  save_and_end();
  CHECK_THAT(::getpgrp() == group && ::getsid(0) == session);
}

SCENARIO(member_one_without_directory) {
  set_member(1);
  char path[] = "/tmp/shadowib-imager-XXXXXX";
  CHECK_THAT(::mkdtemp(path) != nullptr && ::chdir(path) == 0);
  if (!save()) {
    CHECK_THAT(::rmdir(path) == 0);
    ::_exit(10);
  }
}

SCENARIO(identity) {
  ::umask(027);
  CHECK_THAT(::sbrk(4096) !=
             reinterpret_cast<void*>(-1));  // a malloc that is not libc's may never have asked for [heap]
  const std::string exe = link_of("/proc/self/exe"), cwd = link_of("/proc/self/cwd"),
                    line = contents("/proc/self/cmdline"), environment = contents("/proc/self/environ"),
                    name = contents("/proc/self/comm"), auxv = contents("/proc/self/auxv");
  const pid_t group = ::getpgrp(), session = ::getsid(0);
  const uid_t uid = ::getuid();
  rlimit files{100, 200};
  ::setrlimit(RLIMIT_NOFILE, &files);
  const std::int64_t before = monotonic();
  save_and_end();
  CHECK_THAT(link_of("/proc/self/exe") == exe);
  CHECK_THAT(link_of("/proc/self/cwd") == cwd);
  CHECK_THAT(contents("/proc/self/cmdline") == line);
  CHECK_THAT(contents("/proc/self/environ") == environment);
  CHECK_THAT(contents("/proc/self/comm") == name);
  CHECK_THAT(contents("/proc/self/auxv") == auxv);
  CHECK_THAT(::getpgrp() == group);
  CHECK_THAT(::getsid(0) == session);
  CHECK_THAT(::getuid() == uid);
  CHECK_THAT(::umask(0) == 027);
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  CHECK_THAT(now.rlim_cur == 100 && now.rlim_max == 200);
  CHECK_THAT(monotonic() >= before);
  CHECK_THAT(contents("/proc/self/maps").find("[stack]") != std::string::npos);
  CHECK_THAT(contents("/proc/self/maps").find("[heap]") != std::string::npos);
  CHECK_THAT(contents("/proc/self/maps").find("libc.so") != std::string::npos);
  CHECK_THAT(contents("/proc/self/maps").find("[vdso]") != std::string::npos);
}

SCENARIO(heap) {
  std::vector<std::string> strings;
  for (int i = 0; i < 10000; ++i)
    strings.push_back(std::string(static_cast<unsigned>(i % 97), 'x') + std::to_string(i));
  void* const top = ::sbrk(0);
  save_and_end();
  CHECK_THAT(::sbrk(0) == top);
  CHECK_THAT(::sbrk(1 << 20) == top);
  std::memset(top, 1, 1 << 20);
  for (int i = 0; i < 10000; ++i)
    CHECK_THAT(strings[static_cast<unsigned>(i)] ==
               std::string(static_cast<unsigned>(i % 97), 'x') + std::to_string(i));
  std::vector<void*> blocks;
  for (std::size_t bytes = 1; bytes < (64 << 20); bytes *= 2) blocks.push_back(std::malloc(bytes));
  for (void* block : blocks) std::free(block);
}

SCENARIO(language) {
  volatile double x = 2;
  save_and_end();
  bool caught = false;
  try {
    throw std::runtime_error("after restart");
  } catch (const std::exception& e) {
    caught = std::string(e.what()) == "after restart";
  }
  CHECK_THAT(caught);
  CHECK_THAT(std::sqrt(x) > 1.41);
  void* library = ::dlopen("libm.so.6", RTLD_NOW);
  CHECK_THAT(library != nullptr);
  void* another = ::dlopen("libresolv.so.2", RTLD_NOW);
  CHECK_THAT(another != nullptr && ::dlsym(another, "ns_name_ntop") != nullptr);
  timespec a{}, b{};
  for (int i = 0; i < 1000; ++i) {
    ::clock_gettime(CLOCK_MONOTONIC, &a);
    ::syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &b);
    CHECK_THAT(b.tv_sec > a.tv_sec || (b.tv_sec == a.tv_sec && b.tv_nsec >= a.tv_nsec));
    CHECK_THAT(b.tv_sec - a.tv_sec < 2);
  }
  // The loader says where the vdso is; it must be mapped there.
  FILE* pipe = ::popen("echo child", "r");
  char text[16] = {};
  CHECK_THAT(std::fgets(text, sizeof(text), pipe) != nullptr && std::strcmp(text, "child\n") == 0);
  CHECK_THAT(::pclose(pipe) == 0);
}

char* map(std::size_t bytes, int protection, int flags) {
  void* at = ::mmap(nullptr, bytes, protection, flags, -1, 0);
  CHECK_THAT(at != MAP_FAILED);
  return static_cast<char*>(at);
}

SCENARIO(memory) {
  constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(__SANITIZE_THREAD__)
  constexpr std::size_t kSparse = 1ull << 38;  // it leaves a program 1.5 TiB of addresses
#else
  constexpr std::size_t kSparse = 16ull << 40;
#endif
  char* sparse = map(kSparse, PROT_READ | PROT_WRITE, kPrivate | MAP_NORESERVE);
  for (int i = 0; i < 1000; ++i) sparse[static_cast<std::size_t>(i) * (kSparse / 1000)] = static_cast<char>(i);
  char* hidden = map(1 << 16, PROT_READ | PROT_WRITE, kPrivate);
  std::strcpy(hidden, "behind no protection");
  CHECK_THAT(::mprotect(hidden, 1 << 16, PROT_NONE) == 0);
  char* frozen = map(1 << 16, PROT_READ | PROT_WRITE, kPrivate);
  std::strcpy(frozen, "read only");
  CHECK_THAT(::mprotect(frozen, 1 << 16, PROT_READ) == 0);
  char* shared = map(1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  std::strcpy(shared + (1 << 19), "shared");
  char* large = map(64 << 20, PROT_READ | PROT_WRITE, kPrivate);
  for (std::size_t i = 0; i < (64 << 20); i += 4096) large[i] = static_cast<char>(i >> 12 | 1);
  char* holes = map(8 << 20, PROT_READ | PROT_WRITE, kPrivate);
  for (std::size_t i = 0; i < (8 << 20); i += 8192) holes[i] = 5;
  char* guarded = map(16 << 12, PROT_READ | PROT_WRITE, kPrivate);
  std::memset(guarded, 3, 16 << 12);
  const bool guard = ::madvise(guarded + (4 << 12), 2 << 12, 102 /* MADV_GUARD_INSTALL */) == 0;
  char* unforked = map(1 << 16, PROT_READ | PROT_WRITE, kPrivate);
  std::strcpy(unforked, "not forked");
  CHECK_THAT(::madvise(unforked, 1 << 16, MADV_DONTFORK) == 0);
  const std::string before = contents("/proc/self/smaps");
  const auto flagged = [](const std::string& smaps) {
    std::size_t n = 0, at = 0;
    while ((at = smaps.find(" dc ", at)) != std::string::npos) ++n, ++at;
    return n;
  };
  save_and_end();
  for (int i = 0; i < 1000; ++i)
    CHECK_THAT(sparse[static_cast<std::size_t>(i) * (kSparse / 1000)] == static_cast<char>(i));
  CHECK_THAT(sparse[1 << 20] == 0);
  CHECK_THAT(std::strcmp(frozen, "read only") == 0);
  CHECK_THAT(::mprotect(hidden, 1 << 16, PROT_READ) == 0 && std::strcmp(hidden, "behind no protection") == 0);
  CHECK_THAT(std::strcmp(shared + (1 << 19), "shared") == 0 && shared[0] == 0);
  for (std::size_t i = 0; i < (64 << 20); i += 4096) CHECK_THAT(large[i] == static_cast<char>(i >> 12 | 1));
  for (std::size_t i = 0; i < (8 << 20); i += 4096) CHECK_THAT(holes[i] == (i % 8192 == 0 ? 5 : 0));
  if (guard) {
    int pipe[2];
    CHECK_THAT(::pipe(pipe) == 0);
    CHECK_THAT(::write(pipe[1], guarded + (4 << 12), 1) < 0 && errno == EFAULT);
    CHECK_THAT(::write(pipe[1], guarded + (6 << 12), 1) == 1);
  }
  CHECK_THAT(flagged(contents("/proc/self/smaps")) == flagged(before) && flagged(before) > 0);
}

SCENARIO(files) {
  char path[] = "/tmp/shadowib-imager-XXXXXX";
  const int fd = ::mkstemp(path);
  std::vector<char> data(3 * 4096 + 100, 'a');
  CHECK_THAT(::write(fd, data.data(), data.size()) == static_cast<ssize_t>(data.size()));
  auto* shared = static_cast<char*>(::mmap(nullptr, data.size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  auto* copy = static_cast<char*>(::mmap(nullptr, data.size() + 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
  CHECK_THAT(shared != MAP_FAILED && copy != MAP_FAILED);
  std::memset(copy + 4096, 0, 4096);  // a page of zeros over a page that is not
  shared[0] = 's';
  ::close(fd);
  save_and_end();
  CHECK_THAT(shared[0] == 's' && copy[0] == 's' && copy[1] == 'a');
  CHECK_THAT(copy[4096] == 0 && copy[8191] == 0 && copy[8192] == 'a' && copy[data.size() - 1] == 'a');
  shared[1] = 't';
  CHECK_THAT(contents(path)[1] == 't');
  CHECK_THAT(::unlink(path) == 0);
}

SCENARIO(changed_file) {
  char path[] = "/tmp/shadowib-imager-XXXXXX";
  const int fd = ::mkstemp(path);
  std::vector<char> data(4 * 4096, 'a');
  CHECK_THAT(::write(fd, data.data(), data.size()) == static_cast<ssize_t>(data.size()));
  auto* copy = static_cast<char*>(::mmap(nullptr, data.size(), PROT_READ, MAP_PRIVATE, fd, 0));
  CHECK_THAT(copy != MAP_FAILED && copy[5] == 'a');
  const bool restarted = save();
  if (!restarted) {
    CHECK_THAT(::pwrite(fd, "upgraded", 8, 4) == 8);
    ::_exit(10);
  }
  CHECK_THAT(copy[5] == 'a' && copy[4 * 4096 - 1] == 'a');
  for (int open = 0; open < 100; ++open)
    CHECK_THAT(link_of(("/proc/self/fd/" + std::to_string(open)).c_str()) != path);
  CHECK_THAT(::unlink(path) == 0);
}

// Only for a copy of this program.
std::string remove_program() {
  const std::string exe = link_of("/proc/self/exe");
  CHECK_THAT(exe.ends_with("/replaceable") && ::unlink(exe.c_str()) == 0);
  return exe;
}
void write_program(const std::string& path, mode_t mode) {
  std::ofstream(path) << "another\n";
  CHECK_THAT(::chmod(path.c_str(), mode) == 0);
}

SCENARIO(program_replaced) {
  const std::string exe = remove_program();
  write_program(exe, 0700);
  save_and_end();
  CHECK_THAT(link_of("/proc/self/exe") == exe && contents("/proc/self/exe") == "another\n");
}

SCENARIO(program_replaced_by_data) {
  write_program(remove_program(), 0600);
  save_and_end();
}

SCENARIO(program_removed) {
  remove_program();
  save_and_end();
}

__attribute__((noinline)) int deep(int n) {
  volatile char frame[512];
  std::memset(const_cast<char*>(frame), n & 0x7f, sizeof(frame));
  if (n == 0) {
    save_and_end();
    return 0;
  }
  const int result = deep(n - 1) + 1;
  for (const volatile char& c : frame) CHECK_THAT(c == (n & 0x7f));
  return result;
}

__attribute__((noinline)) void grow_stack() {
  volatile char more[2 << 20];
  for (std::size_t i = sizeof(more); i >= 4096; i -= 4096) more[i - 1] = 1;
  CHECK_THAT(more[4095] == 1);
}

SCENARIO(deep_stack) {
  CHECK_THAT(deep(6000) == 6000);
  grow_stack();
}

SCENARIO(again) {
  int generation = 0;
  while (generation < 3) {
    if (!save()) ::_exit(10);
    ++generation;
  }
}

}  // namespace
