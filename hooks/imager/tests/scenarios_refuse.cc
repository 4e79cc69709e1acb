// What check_capturable refuses. Each prints the refusal and ends with 42.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "hooks/imager/imager.h"
#include "hooks/imager/tests/subject.h"

using namespace shadowib;
using namespace shadowib::test;

namespace {

void expect_refusal() {
  const Status status = check_capturable();
  std::printf("%s\n", status.text());
  std::fflush(stdout);
  CHECK_THAT(status.code() == Code::kRefused);
}

// Shared memory has its content in a table's parts; an image without one would lose it.
SCENARIO(refuse_memory_without_table) {
  const int fd = ::memfd_create("buffer", 0);
  CHECK_THAT(::ftruncate(fd, 4096) == 0 && ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
  CHECK_THAT(check_capturable().ok());
  save_and_end();
}

SCENARIO(refuse_huge_pages) {
  void* at = ::mmap(nullptr, 2 << 20, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    std::printf("SKIP\n");
    return;
  }
  expect_refusal();
}

SCENARIO(refuse_asynchronous_io) {
  unsigned long context = 0;
  if (::syscall(SYS_io_setup, 4, &context) != 0) {
    std::printf("SKIP no asynchronous I/O here\n");
    return;
  }
  expect_refusal();
}

// As valgrind's own files are told: by their names. A directory of such a name holds anybody's data.
SCENARIO(refuse_instrumented) {
  char directory[] = "/tmp/vgpreload_shadowib_XXXXXX";
  CHECK_THAT(::mkdtemp(directory) != nullptr);
  const std::string data = std::string(directory) + "/data";
  const int below = ::open(data.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  CHECK_THAT(below >= 0 && ::ftruncate(below, 4096) == 0);
  void* const mapped = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, below, 0);
  CHECK_THAT(mapped != MAP_FAILED);
  const Status anybodys = check_capturable();
  CHECK_THAT(anybodys.ok() && ::munmap(mapped, 4096) == 0);
  CHECK_THAT(::unlink(data.c_str()) == 0 && ::rmdir(directory) == 0);
  char path[] = "/tmp/vgpreload_shadowib_XXXXXX";
  const int fd = ::mkstemp(path);
  CHECK_THAT(fd >= 0 && ::ftruncate(fd, 4096) == 0);
  CHECK_THAT(::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED);
  expect_refusal();
  ::unlink(path);
}

SCENARIO(refuse_seccomp) {
  sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  sock_fprog program{1, allow};
  CHECK_THAT(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
             ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
  expect_refusal();
}

SCENARIO(refuse_traced) {
  int ready[2];
  CHECK_THAT(::pipe(ready) == 0);
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  const pid_t tracer = ::fork();
  if (tracer == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const bool ok = ::ptrace(PTRACE_SEIZE, ::getppid(), nullptr, nullptr) == 0;
    CHECK_THAT(::write(ready[1], ok ? "y" : "n", 1) == 1);
    for (;;) ::pause();
  }
  char byte = 0;
  CHECK_THAT(::read(ready[0], &byte, 1) == 1 && byte == 'y');
  expect_refusal();
  ::kill(tracer, SIGKILL);
}

SCENARIO(refuse_first_process) {
  if (::unshare(CLONE_NEWPID) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
    std::printf("SKIP no pid namespaces here\n");
    return;
  }
  const pid_t first = ::fork();
  if (first == 0) {
    expect_refusal();
    ::_exit(42);
  }
  int status = 0;
  CHECK_THAT(::waitpid(first, &status, 0) == first && WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

SCENARIO(refuse_removed_directory) {
  // A name that only looks removed.
  char path[] = "/tmp/shadowib-imager-XXXXXX";
  CHECK_THAT(::mkdtemp(path) != nullptr);
  const std::string below = std::string(path) + "/there (deleted)";
  CHECK_THAT(::mkdir(below.c_str(), 0700) == 0 && ::chdir(below.c_str()) == 0);
  const Status there = check_capturable();
  CHECK_THAT(there.ok() && ::rmdir(below.c_str()) == 0 && ::rmdir(path) == 0);
  expect_refusal();
}

// A line of it does not fit where mappings are read, and behind it are others.
SCENARIO(refuse_path_without_end) {
  char path[] = "/tmp/shadowib-imager-XXXXXX";
  CHECK_THAT(::mkdtemp(path) != nullptr);
  const std::string name(250, '\n');  // each is told as \012
  std::vector<int> directories{::open(path, O_PATH | O_DIRECTORY)};
  for (int i = 0; i < 70; ++i) {
    CHECK_THAT(::mkdirat(directories.back(), name.c_str(), 0700) == 0);
    directories.push_back(::openat(directories.back(), name.c_str(), O_PATH | O_DIRECTORY));
  }
  const int fd = ::openat(directories.back(), "file", O_RDWR | O_CREAT, 0600);
  CHECK_THAT(::ftruncate(fd, 4096) == 0);
  CHECK_THAT(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0) != MAP_FAILED);
  CHECK_THAT(::close(fd) == 0 && ::unlinkat(directories.back(), "file", 0) == 0);
  while (directories.size() > 1) {
    CHECK_THAT(::close(directories.back()) == 0);
    directories.pop_back();
    CHECK_THAT(::unlinkat(directories.back(), name.c_str(), AT_REMOVEDIR) == 0);
  }
  CHECK_THAT(::close(directories.back()) == 0 && ::rmdir(path) == 0);
  expect_refusal();
}

SCENARIO(refuse_dead_main) {
  std::thread([] {
    std::string state;
    do {
      FILE* stat = std::fopen("/proc/self/stat", "r");
      char text[512] = {};
      CHECK_THAT(std::fgets(text, sizeof(text), stat) != nullptr);
      std::fclose(stat);
      state = text;
    } while (state.find(") Z") == std::string::npos);
    expect_refusal();
    ::_exit(42);
  }).detach();
  ::pthread_exit(nullptr);
}

}  // namespace
