// A thread blocked in each kind of call is stopped and released several times: it sees no EINTR, and the time of the
// stops does not count against its time-out.
#include "hooks/threads/blocked_call.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "hooks/raw/raw_signal.h"
#include "hooks/raw/tasks.h"
#include "hooks/threads/request_signals.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

constexpr int kMs = 120;
constexpr std::size_t kLarge = 1 << 20;
constexpr timespec kTimeout{0, kMs * 1000000L};
constexpr int kStops = 3;
constexpr std::int64_t kStopNs = 60000000;

// What the main thread does to let calls without a time-out end.
struct World {
  int silent[2];  // nothing is ever written
  int pipe[2];    // nothing is written before the end
  int full[2];    // a full pipe, drained at the end
  int large[2];   // a pipe that less is in than is written to it before the end
  int begun[2];   // socket pair, half of what is wanted comes before the end
  int pair[2];    // socket pair with nothing in it
  int listener;   // TCP, accepts nobody before the end
  sockaddr_in address;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
  sem_t semaphore;
  int semaphores, messages;
  std::atomic<std::uint32_t> word{0};
  int locked_path_fd;  // flock'ed
  pid_t child;
  int child_go[2];
};
World w;

enum class Length { kTimed, kTimedAbsolute, kUntilEnd };
struct Case {
  const char* name;
  Length length;               // kTimed: lasts its time-out, stops not counted
  std::function<bool()> call;  // true: the right result, errno for the message
};

timespec in_the_future(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  t.tv_nsec += kMs * 1000000L;
  if (t.tv_nsec >= 1000000000) t.tv_sec += 1, t.tv_nsec -= 1000000000;
  return t;
}

pollfd quiet() { return {w.silent[0], POLLIN, 0}; }

bool epoll_call(const std::function<int(int, epoll_event*)>& call) {
  int fd = epoll_create1(0);
  epoll_event event{};
  event.events = EPOLLIN;
  epoll_ctl(fd, EPOLL_CTL_ADD, w.silent[0], &event);
  int rc = call(fd, &event);
  int saved = errno;
  close(fd);
  errno = saved;
  return rc == 0;
}

bool receive_with_timeout() {
  int pair[2];
  socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
  timeval t{0, kMs * 1000};
  setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
  char c;
  bool ok = recv(pair[0], &c, 1, 0) == -1 && errno == EAGAIN;
  int saved = errno;
  close(pair[0]);
  close(pair[1]);
  errno = saved;
  return ok;
}

sigset_t empty_set() {
  sigset_t set;
  sigemptyset(&set);
  return set;
}
sigset_t full_set() {
  sigset_t set;
  sigfillset(&set);
  return set;
}

// A signal only this thread takes.
bool wait_for_user_signal(const std::function<int(const sigset_t*)>& wait) {
  sigset_t set = empty_set();
  sigaddset(&set, SIGUSR2);
  return wait(&set) == 0;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  auto timed = [&](const char* name, std::function<bool()> f) { all.push_back({name, Length::kTimed, f}); };
  auto absolute = [&](const char* name, std::function<bool()> f) {
    all.push_back({name, Length::kTimedAbsolute, f});
  };
  auto until_end = [&](const char* name, std::function<bool()> f) { all.push_back({name, Length::kUntilEnd, f}); };
  timed("poll", [] {
    auto p = quiet();
    return poll(&p, 1, kMs) == 0;
  });
  timed("ppoll", [] {
    auto p = quiet();
    auto s = full_set();
    return ppoll(&p, 1, &kTimeout, &s) == 0;
  });
  timed("select", [] {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(w.silent[0], &set);
    timeval t{0, kMs * 1000};
    return select(w.silent[0] + 1, &set, nullptr, nullptr, &t) == 0;
  });
  timed("pselect", [] {
    auto s = full_set();
    return pselect(0, nullptr, nullptr, nullptr, &kTimeout, &s) == 0;
  });
  timed("epoll_wait", [] { return epoll_call([](int fd, epoll_event* e) { return epoll_wait(fd, e, 1, kMs); }); });
  timed("epoll_pwait", [] {
    return epoll_call([](int fd, epoll_event* e) {
      auto s = full_set();
      return epoll_pwait(fd, e, 1, kMs, &s);
    });
  });
  timed("epoll_pwait2",
        [] { return epoll_call([](int fd, epoll_event* e) { return epoll_pwait2(fd, e, 1, &kTimeout, nullptr); }); });
  timed("nanosleep", [] { return nanosleep(&kTimeout, nullptr) == 0; });
  timed("clock_nanosleep", [] { return clock_nanosleep(CLOCK_MONOTONIC, 0, &kTimeout, nullptr) == 0; });
  timed("usleep", [] { return usleep(kMs * 1000) == 0; });
  timed("sigtimedwait", [] {
    sigset_t set = empty_set();
    sigaddset(&set, SIGUSR1);
    return sigtimedwait(&set, nullptr, &kTimeout) == -1 && errno == EAGAIN;
  });
  timed("semtimedop", [] {
    sembuf take{0, -1, 0};
    return semtimedop(w.semaphores, &take, 1, &kTimeout) == -1 && errno == EAGAIN;
  });
  timed("recv with SO_RCVTIMEO", receive_with_timeout);
  absolute("clock_nanosleep absolute", [] {
    timespec t = in_the_future(CLOCK_MONOTONIC);
    return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr) == 0;
  });
  absolute("sem_timedwait", [] {
    timespec t = in_the_future(CLOCK_REALTIME);
    return sem_timedwait(&w.semaphore, &t) == -1 && errno == ETIMEDOUT;
  });
  absolute("pthread_cond_timedwait", [] {
    timespec t = in_the_future(CLOCK_REALTIME);
    pthread_mutex_lock(&w.mutex);
    int rc;
    while ((rc = pthread_cond_timedwait(&w.condition, &w.mutex, &t)) == 0) {
    }
    pthread_mutex_unlock(&w.mutex);
    errno = rc;
    return rc == ETIMEDOUT;
  });
  timed("raw futex with time-out", [] {
    static std::uint32_t nobody_changes_it = 0;  // issued again when the others are woken
    return syscall(SYS_futex, &nobody_changes_it, FUTEX_WAIT_PRIVATE, 0, &kTimeout, nullptr, 0) == -1 &&
           errno == ETIMEDOUT;
  });
  until_end("read", [] {
    char c;
    return read(w.pipe[0], &c, 1) == 0;
  });
  until_end("write", [] {
    char c = 0;
    return write(w.full[1], &c, 1) == 1;
  });
  until_end("write of more than there is room for", [] {
    static const char block[kLarge] = {};
    return write(w.large[1], block, sizeof(block)) == sizeof(block);
  });
  until_end("recv with MSG_WAITALL", [] {
    char two[2];
    return recv(w.begun[0], two, sizeof(two), MSG_WAITALL) == sizeof(two);
  });
  until_end("recv", [] {
    char c;
    return recv(w.pair[0], &c, 1, 0) == 0;
  });
  until_end("recvmsg", [] {
    char c;
    iovec iov{&c, 1};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    return recvmsg(w.pair[0], &message, 0) == 0;
  });
  until_end("accept", [] {
    int fd = accept(w.listener, nullptr, nullptr);
    if (fd >= 0) close(fd);
    return fd >= 0;
  });
  until_end("poll without time-out", [] {
    pollfd p{w.pipe[0], POLLIN, 0};
    return poll(&p, 1, -1) == 1;
  });
  until_end("pause", [] { return pause() == -1 && errno == EINTR; });
  until_end("sigsuspend", [] {
    sigset_t all = full_set(), old;
    pthread_sigmask(SIG_BLOCK, &all, &old);
    sigset_t set = full_set();
    sigdelset(&set, SIGUSR1);
    bool ok = sigsuspend(&set) == -1 && errno == EINTR;
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    return ok;
  });
  until_end("sigwait", [] {
    int s;
    return wait_for_user_signal([&](const sigset_t* set) { return sigwait(set, &s); });
  });
  until_end("sigwaitinfo", [] {
    return wait_for_user_signal([](const sigset_t* set) { return sigwaitinfo(set, nullptr) == SIGUSR2 ? 0 : -1; });
  });
  until_end("sem_wait", [] { return sem_wait(&w.semaphore) == 0; });
  until_end("pthread_cond_wait", [] {
    pthread_mutex_lock(&w.mutex);
    while (w.word == 0) pthread_cond_wait(&w.condition, &w.mutex);
    pthread_mutex_unlock(&w.mutex);
    return true;
  });
  until_end("waitpid", [] {
    int status;
    return waitpid(w.child, &status, 0) == w.child && status == 0;
  });
  until_end("msgrcv", [] {
    struct {
      long type;
      char text[8];
    } m;
    return msgrcv(w.messages, &m, sizeof(m.text), 0, 0) == 1;
  });
  until_end("semop", [] {
    sembuf take{1, -1, 0};
    return semop(w.semaphores, &take, 1) == 0;
  });
  until_end("flock", [] {
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", w.locked_path_fd);
    int fd = open(path, O_RDWR);
    bool ok = flock(fd, LOCK_EX) == 0;
    int saved = errno;
    close(fd);
    errno = saved;
    return ok;
  });
  return all;
}

void make_world() {
  ASSERT_EQ(pipe(w.pipe), 0);
  ASSERT_EQ(pipe(w.silent), 0);
  ASSERT_EQ(pipe(w.large), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, w.begun), 0);
  ASSERT_EQ(send(w.begun[1], "1", 1, 0), 1);
  ASSERT_EQ(pipe2(w.full, O_NONBLOCK), 0);
  char block[4096] = {};
  while (write(w.full[1], block, sizeof(block)) > 0) {
  }
  fcntl(w.full[1], F_SETFL, 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, w.pair), 0);
  w.listener = socket(AF_INET, SOCK_STREAM, 0);
  w.address = {};
  w.address.sin_family = AF_INET;
  w.address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(w.listener, reinterpret_cast<sockaddr*>(&w.address), sizeof(w.address)), 0);
  socklen_t length = sizeof(w.address);
  getsockname(w.listener, reinterpret_cast<sockaddr*>(&w.address), &length);
  listen(w.listener, 4);
  sem_init(&w.semaphore, 0, 0);
  w.semaphores = semget(IPC_PRIVATE, 2, 0600);
  w.messages = msgget(IPC_PRIVATE, 0600);
  w.locked_path_fd = memfd_create("locked", 0);
  flock(w.locked_path_fd, LOCK_EX);
  ASSERT_EQ(pipe2(w.child_go, O_CLOEXEC), 0);
  w.child = fork();
  if (w.child == 0) {
    close(w.child_go[1]);
    char c;
    _exit(read(w.child_go[0], &c, 1) == 0 ? 0 : 1);
  }
}

void end_world(const std::vector<int>& tids, const std::vector<Case>& all) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::string name = all[i].name;
    // A thread that is still on its way back into pause() would take the signal there, and wait for ever: pause() has
    // no mask, and who releases threads does not wait for them.
    for (BlockedSyscall call; name == "pause" && !(read_blocked_syscall(tids[i], &call) && call.number == SYS_pause);)
      sched_yield();
    if (name == "pause" || name == "sigsuspend") syscall(SYS_tgkill, getpid(), tids[i], SIGUSR1);
    if (name == "sigwait" || name == "sigwaitinfo") syscall(SYS_tgkill, getpid(), tids[i], SIGUSR2);
  }
  close(w.pipe[1]);
  char block[65536];
  [[maybe_unused]] auto n = read(w.full[0], block, sizeof(block));
  for (std::size_t got = 0; got < kLarge;) {
    const auto part = read(w.large[0], block, sizeof(block));
    ASSERT_GT(part, 0) << "after " << got;
    got += static_cast<std::size_t>(part);
  }
  send(w.begun[1], "2", 1, 0);
  close(w.pair[1]);
  int client = socket(AF_INET, SOCK_STREAM, 0);
  connect(client, reinterpret_cast<sockaddr*>(&w.address), sizeof(w.address));
  sem_post(&w.semaphore);
  w.word = 1;
  pthread_mutex_lock(&w.mutex);
  pthread_cond_broadcast(&w.condition);
  pthread_mutex_unlock(&w.mutex);
  close(w.child_go[1]);
  struct {
    long type;
    char text[8];
  } m{1, "x"};
  msgsnd(w.messages, &m, 1, 0);
  sembuf give{1, 1, 0};
  semop(w.semaphores, &give, 1);
  flock(w.locked_path_fd, LOCK_UN);
  close(client);
}

TEST(BlockedCall, EveryKindGoesOnWithoutEintrAndWithItsTime) {
  struct sigaction nothing {};
  nothing.sa_handler = [](int) {};
  sigaction(SIGUSR1, &nothing, nullptr);
  sigset_t usr2 = empty_set();
  sigaddset(&usr2, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &usr2, nullptr);
  ASSERT_TRUE(stop_install().ok());
  make_world();
  const auto all = cases();
  struct Result {
    std::atomic<int> tid{0};
    bool ok = false;
    int error = 0;
    std::int64_t started = 0;
    std::atomic<std::int64_t> ended{0};  // read before the thread is joined
  };
  std::vector<Result> results(all.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < all.size(); ++i)
    threads.emplace_back([&, i] {
      results[i].started = monotonic_ns();
      results[i].tid = raw_gettid();
      results[i].ok = all[i].call();
      results[i].error = errno;
      results[i].ended = monotonic_ns();
    });
  std::vector<int> tids;
  for (auto& result : results) {
    while (result.tid == 0) sched_yield();
    tids.push_back(result.tid);
  }
  for (int tid : tids) {
    BlockedSyscall call;
    while (!read_blocked_syscall(tid, &call) && task_state(tid) != 0) sched_yield();
  }
  std::int64_t stops[kStops][2];  // from, to
  for (auto& [from, to] : stops) {
    Status status = stop_threads(5000);
    ASSERT_TRUE(status.ok()) << status.text();
    from = monotonic_ns();
    ASSERT_GE(parked_threads(nullptr, 0), 1);
    timespec hold{0, kStopNs};
    syscall(SYS_nanosleep, &hold, nullptr);
    to = monotonic_ns();
    release_threads();
    timespec moment{0, 2000000};  // so that the threads are blocked again, or nearly so: both are right
    syscall(SYS_nanosleep, &moment, nullptr);
  }
  // Those without a time-out are still there.
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].length == Length::kUntilEnd) {
      EXPECT_EQ(results[i].ended, 0) << all[i].name << ": " << strerror(results[i].error);
    }
  end_world(tids, all);
  for (auto& thread : threads) thread.join();
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(results[i].ok) << all[i].name << ": errno " << strerror(results[i].error);
    std::int64_t lasted = results[i].ended - results[i].started;
    if (all[i].length != Length::kUntilEnd) {
      EXPECT_GE(lasted, kMs * std::int64_t{1000000}) << all[i].name;
    }
    std::int64_t stopped_ns = 0;  // during the call; a slow machine may be late with a stop
    for (const auto& [from, to] : stops)
      if (from > results[i].started && to < results[i].ended) stopped_ns += to - from;
    if (all[i].length == Length::kTimed) {
      EXPECT_GE(lasted + 3000000, kMs * std::int64_t{1000000} + stopped_ns) << all[i].name << ": the stops counted";
    }
  }
  semctl(w.semaphores, 0, IPC_RMID);
  msgctl(w.messages, IPC_RMID, nullptr);
}

// A stop may meet the thread before it has entered its call, or on its way back into it: registers say nothing then,
// and the time it stands still must not count all the same.
TEST(BlockedCall, AStopOutsideTheCallDoesNotCountEither) {
  TimedCallScope scope(SYS_poll, std::int64_t{kMs} * 1000000);
  const std::int64_t before = t_timed_call.deadline_ns;
  ucontext_t context{};
  context.uc_mcontext.gregs[REG_RAX] = SYS_poll;
  context.uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(&empty_set);
  const greg_t rip = context.uc_mcontext.gregs[REG_RIP];
  InterruptedCall call(&context, nullptr);
  const std::int64_t stopped = monotonic_ns();
  constexpr std::int64_t kStopped = 1000000;
  while (monotonic_ns() < stopped + kStopped) cpu_pause();
  call.go_on();
  EXPECT_GE(t_timed_call.deadline_ns, before + kStopped);
  EXPECT_EQ(context.uc_mcontext.gregs[REG_RIP], rip);
  EXPECT_EQ(context.uc_mcontext.gregs[REG_RAX], SYS_poll);
}

// alarm + pause, alarm + read: a signal of the program that comes during the stop interrupts as it would have.
TEST(BlockedCall, ProgramSignalDuringTheStopStillInterrupts) {
  ASSERT_TRUE(stop_install().ok());
  struct sigaction action {};
  action.sa_handler = [](int) {};
  sigaction(SIGUSR1, &action, nullptr);  // no SA_RESTART
  int p[2];
  ASSERT_EQ(pipe(p), 0);
  for (bool with_read : {false, true}) {
    std::atomic<int> tid{0};
    int error = 0;
    std::thread thread([&] {
      tid = raw_gettid();
      char c;
      long rc = with_read ? read(p[0], &c, 1) : pause();
      error = rc == -1 ? errno : 0;
    });
    BlockedSyscall call;
    while (tid == 0 || !read_blocked_syscall(tid, &call) || call.number != (with_read ? SYS_read : SYS_pause))
      sched_yield();
    ASSERT_TRUE(stop_threads(5000).ok());
    syscall(SYS_tgkill, getpid(), tid.load(), SIGUSR1);
    release_threads();
    thread.join();  // hangs if the call was issued again
    EXPECT_EQ(error, EINTR);
  }
  close(p[0]);
  close(p[1]);
}

// It is the agent's, not the program's: the call goes on as if nothing had come, also one that the signal's handler
// would not know by the code around it, as it knows those of libc's functions.
TEST(BlockedCall, ARequestForACheckpointDuringTheStopInterruptsNothing) {
  ASSERT_TRUE(stop_install().ok());
  ASSERT_EQ(setenv("SHADOWIB_CHECKPOINT_ON", "XCPU", 1), 0);
  ASSERT_TRUE(choose_request_signals().ok());
  const std::atomic<int> wake_fd{eventfd(0, EFD_NONBLOCK)};
  install_request_signals(&wake_fd);
  int p[2];
  ASSERT_EQ(pipe(p), 0);
  std::atomic<int> tid{0};
  long found = 0;
  std::thread thread([&] {
    tid = raw_gettid();
    pollfd waits{p[0], POLLIN, 0};
    found = syscall(SYS_poll, &waits, 1, -1);
  });
  BlockedSyscall call;
  while (tid == 0 || !read_blocked_syscall(tid, &call) || call.number != SYS_poll) sched_yield();
  ASSERT_TRUE(stop_threads(5000).ok());
  syscall(SYS_tgkill, getpid(), tid.load(), SIGXCPU);
  release_threads();
  while (!take_signalled_request().checkpoint) sched_yield();
  ASSERT_EQ(write(p[1], "x", 1), 1);
  thread.join();
  EXPECT_EQ(found, 1);
  give_back_request_signals();
  unsetenv("SHADOWIB_CHECKPOINT_ON");
  for (int fd : {p[0], p[1], wake_fd.load()}) close(fd);
}

}  // namespace
}  // namespace shadowib
