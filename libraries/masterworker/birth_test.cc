#include "libraries/masterworker/birth.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "libraries/masterworker/guard.h"

namespace shadowib::masterworker {
namespace {

class Birth : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/masterworker-birth-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    directory_ = path;
  }
  void TearDown() override {
    for (const Guard guard : {Guard::kOwnDescriptors, Guard::kFlushStreams, Guard::kPrivateMappings})
      switch_guard(guard, true);
    for (const char* name : {"text", "done", "go"}) ::unlink(file(name).c_str());
    ::rmdir(directory_.c_str());
  }
  std::string file(const char* name) const { return directory_ + "/" + name; }
  pid_t worker() const { return worker_; }

  // Runs `work` in a new worker. Returns when it has run; the worker lives on until let_go().
  void in_worker(const std::function<void()>& work) {
    const Born born = fork_worker(&worker_);
    ASSERT_NE(born, Born::kFailed);
    if (born == Born::kWorker) {
      work();
      make("done");
      // Until "go" is there, or its directory is gone with it. A worker that waited on would hold the test's output.
      while (::access(file("go").c_str(), F_OK) != 0 && ::access(directory_.c_str(), F_OK) == 0) ::usleep(10'000);
      ::_exit(0);
    }
    ASSERT_TRUE(wait_for("done"));
  }
  void let_go() const { make("go"); }
  void make(const char* name) const { ::close(::open(file(name).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)); }
  bool wait_for(const char* name) const {
    for (int i = 0; i < 12'000; ++i) {
      if (::access(file(name).c_str(), F_OK) == 0) return true;
      ::usleep(10'000);
    }
    return false;
  }

  // Whether the end of a pipe comes although a worker lives that was born while it was open.
  bool pipe_ends() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    in_worker([] {});
    ::close(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    char byte;
    const ssize_t got = ::read(ends[0], &byte, 1);
    ::close(ends[0]);
    let_go();
    return got == 0;
  }
  // The master's offset in a file of which a worker has read 3 bytes; it is 2 before.
  off_t offset_after_worker_reads() {
    const int out = ::open(file("text").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    EXPECT_EQ(::write(out, "0123456789", 10), 10);
    ::close(out);
    const int in = ::open(file("text").c_str(), O_RDONLY | O_CLOEXEC);
    char bytes[3];
    EXPECT_EQ(::read(in, bytes, 2), 2);
    in_worker([&] {
      if (::read(in, bytes, 3) != 3 || bytes[0] != '2') ::_exit(1);  // and it begins where the master is
    });
    const off_t at = ::lseek(in, 0, SEEK_CUR);
    ::close(in);
    let_go();
    return at;
  }
  // Size of a file of "hello" when a worker has flushed its streams.
  off_t size_after_worker_flushes() {
    std::FILE* stream = std::fopen(file("text").c_str(), "we");
    std::fputs("hello", stream);
    in_worker([] { std::fflush(nullptr); });
    std::fclose(stream);
    let_go();
    const int in = ::open(file("text").c_str(), O_RDONLY | O_CLOEXEC);
    const off_t size = ::lseek(in, 0, SEEK_END);
    ::close(in);
    return size;
  }
  int mapping_after_worker_writes() {
    void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    volatile int* number = static_cast<int*>(memory);
    *number = 5;
    in_worker([&] { *number = *number == 5 ? 7 : 9; });
    const int now = *number;
    ::munmap(memory, 4096);
    let_go();
    return now;
  }

 private:
  std::string directory_;
  pid_t worker_ = 0;
};

TEST_F(Birth, TellsWhoseEndCanBeSeen) {
  in_worker([] {});
  ASSERT_GT(worker(), 0);
  EXPECT_FALSE(is_gone(worker()));
  ASSERT_EQ(::kill(worker(), SIGKILL), 0);
  for (int i = 0; i < 12'000 && !is_gone(worker()); ++i) ::usleep(10'000);
  EXPECT_TRUE(is_gone(worker()));
}

// Nobody may wait for a worker: a container's first process often does not.
TEST_F(Birth, WhomNobodyHasWaitedForIsGone) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(is_gone(child));
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(is_gone(child));
}

TEST_F(Birth, GuardM10WorkersHoldNoPipe) { EXPECT_TRUE(pipe_ends()); }
TEST_F(Birth, GuardM10WithoutItWorkersHoldPipes) {
  switch_guard(Guard::kOwnDescriptors, false);
  EXPECT_FALSE(pipe_ends());
}
TEST_F(Birth, GuardM10WorkersHaveOwnOffsets) { EXPECT_EQ(offset_after_worker_reads(), 2); }
TEST_F(Birth, GuardM10WithoutItOffsetsAreShared) {
  switch_guard(Guard::kOwnDescriptors, false);
  EXPECT_EQ(offset_after_worker_reads(), 5);
}
TEST_F(Birth, GuardM10StreamsAreWrittenOnce) { EXPECT_EQ(size_after_worker_flushes(), 5); }
TEST_F(Birth, GuardM10WithoutItStreamsAreWrittenTwice) {
  switch_guard(Guard::kFlushStreams, false);
  switch_guard(Guard::kOwnDescriptors, false);
  EXPECT_EQ(size_after_worker_flushes(), 10);
}
TEST_F(Birth, GuardM10MappingsArePrivate) { EXPECT_EQ(mapping_after_worker_writes(), 5); }
TEST_F(Birth, GuardM10WithoutItMappingsAreShared) {
  switch_guard(Guard::kPrivateMappings, false);
  EXPECT_EQ(mapping_after_worker_writes(), 7);
}
// A load beyond the end of the file is SIGBUS; a worker must come to life all the same.
TEST_F(Birth, MappingsMayReachBeyondTheirFile) {
  const int file_of = ::open(file("text").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  ASSERT_EQ(::ftruncate(file_of, 4096), 0);
  void* memory = ::mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file_of, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ::close(file_of);
  volatile char* text = static_cast<char*>(memory);
  text[5] = 'a';
  in_worker([&] {
    if (text[5] != 'a') ::_exit(1);
    text[5] = 'b';
  });
  EXPECT_EQ(text[5], 'a');
  ::munmap(memory, 3 * 4096);
  let_go();
}
void forbid(unsigned call, unsigned error) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{4, program};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    ::_exit(77);
}

// A container may forbid the call: the worker had zeroes for the master's shared memory.
TEST_F(Birth, NobodyWorksWithoutTheMastersMemory) {
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_EXIT((forbid(SYS_process_vm_readv, EPERM), separate_mappings(), ::_exit(0)), ::testing::ExitedWithCode(1),
              "cannot copy its shared memory.*not permitted");
  ::munmap(memory, 4096);
}

// Exits with the errno of a birth whose process between does this before it forks. The program ignores SIGCHLD, so
// nobody hears of that process's end.
[[noreturn]] void errno_of_a_birth_unheard_of(void (*before_it_forks)()) {
  static const pid_t kMaster = ::getpid();
  static void (*const kBefore)() = before_it_forks;
  ::pthread_atfork(
      [] {
        if (::getpid() != kMaster) kBefore();
      },
      nullptr, nullptr);
  ::signal(SIGCHLD, SIG_IGN);
  ::alarm(30);
  pid_t worker = 0;
  ::_exit(fork_worker(&worker) == Born::kFailed ? errno : 0);
}

// The master waited for ever.
TEST_F(Birth, IsOverWithTheProcessBetween) {
  EXPECT_EXIT(errno_of_a_birth_unheard_of([] { ::raise(SIGKILL); }), ::testing::ExitedWithCode(EINTR), "");
  EXPECT_EXIT(errno_of_a_birth_unheard_of([] { forbid(SYS_clone, EAGAIN); }), ::testing::ExitedWithCode(EAGAIN), "");
}

void forbid_more_descriptors() {
  const rlimit few{3, 3};
  if (::setrlimit(RLIMIT_NOFILE, &few) != 0) ::_exit(77);
}

// At the limit of descriptors the worker went on with the master's pipes and offsets.
TEST_F(Birth, NobodyWorksWithTheMastersDescriptors) {
  EXPECT_EXIT((forbid_more_descriptors(), separate_descriptors(), ::_exit(0)), ::testing::ExitedWithCode(1),
              "a worker cannot open /dev/null: Too many open files");
  EXPECT_EXIT((forbid_more_descriptors(), separate_mappings(), ::_exit(0)), ::testing::ExitedWithCode(1),
              "a worker cannot list its mappings: Too many open files");
}

// M15: the number stays taken, and what is written there is lost.
TEST_F(Birth, WritersLeadNowhere) {
  const int out = ::open(file("text").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  in_worker([&] {
    if (::write(out, "worker", 6) != 6) ::_exit(1);
  });
  EXPECT_EQ(::lseek(out, 0, SEEK_END), 0);
  ::close(out);
  let_go();
}

}  // namespace
}  // namespace shadowib::masterworker
