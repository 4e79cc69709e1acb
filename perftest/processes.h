// Members of a measurement, each a process, and the memory that they share. For one thread.
#pragma once

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "shadowib/base/status.h"

namespace shadowib {

[[noreturn]] inline void give_up(const char* what, const Status& status) {
  std::fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, status.text());
  std::_Exit(1);
}
inline void must(const char* what, const Status& status) {
  if (!status.ok()) give_up(what, status);
}

// For this process and for those it forks from now on. Never unmapped.
template <typename T>
T* make_shared() {
  void* memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) give_up("mmap", Status(Code::kIo, errno, "no memory"));
  return new (memory) T{};
}

// A barrier in shared memory, for so many threads of any process.
inline void init_barrier(pthread_barrier_t* barrier, unsigned threads) {
  pthread_barrierattr_t attributes;
  ::pthread_barrierattr_init(&attributes);
  ::pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_barrier_init(barrier, &attributes, threads);
}

class Processes {
 public:
  // Calls `body` in a process of its own, which ends when it returns, and at the latest with this process.
  template <typename Body>
  void start(Body body) {
    const pid_t pid = ::fork();
    if (pid < 0) give_up("fork", Status(Code::kIo, errno, "no process"));
    if (pid > 0) {
      processes_.push_back(pid);
      return;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    std::_Exit(0);
  }

  // Waits until all have ended. False: a process has failed, and said why.
  bool wait() {
    bool well = true;
    for (std::size_t left = processes_.size(); left > 0; --left) {
      int status = 0;
      ::wait(&status);
      if (status != 0 && well)  // the others would wait for it for ever
        for (const pid_t pid : processes_) ::kill(pid, SIGKILL);
      well = well && status == 0;
    }
    return well;
  }

 private:
  std::vector<pid_t> processes_;
};

}  // namespace shadowib
