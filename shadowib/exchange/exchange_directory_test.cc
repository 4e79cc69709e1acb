// What is particular to the engine `dir:`: modes, descriptors, loss of the directory, no inotify, and its speed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/testing/forked_child.h"
#include "shadowib/exchange/bell.h"
#include "shadowib/exchange/bundle.h"
#include "shadowib/exchange/directory_waiter.h"
#include "shadowib/exchange/exchange.h"
#include "shadowib/exchange/raw_files.h"

namespace shadowib {
namespace {

namespace fs = std::filesystem;

class DirectoryExchangeTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/shadowib-directory-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    top_ = name;
    ASSERT_TRUE(Exchange::open("dir:" + top_ + "/a/x", true, &exchange_).ok());
  }
  void TearDown() override {
    exchange_.reset();
    fs::remove_all(top_);
  }
  std::string top_;
  std::unique_ptr<Exchange> exchange_;
};

TEST_F(DirectoryExchangeTest, ModesHoldWhateverTheUmask) {
  for (mode_t mask : {0077, 0777, 0000}) {
    mode_t before = ::umask(mask);
    std::string name = "m" + std::to_string(mask) + "/n";
    Status published = exchange_->publish(name, "secret");
    ::umask(before);
    ASSERT_TRUE(published.ok()) << published.text();
  }
  for (const auto& entry : fs::recursive_directory_iterator(top_)) {
    unsigned mode = static_cast<unsigned>(entry.status().permissions());
    if (entry.path().filename() == ".exchange") continue;  // empty
    EXPECT_EQ(mode, entry.is_directory() ? 0700u : 0600u) << entry.path();
  }
}

TEST_F(DirectoryExchangeTest, NoDescriptorIsLeftLow) {
  ASSERT_TRUE(exchange_->publish("a/b", "v").ok());
  std::uint64_t token = 0;
  ASSERT_TRUE(exchange_->watch("a", &token, 0, -1).ok());
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    std::string target = fs::read_symlink(entry.path(), gone).string();
    int fd = std::stoi(entry.path().filename());
    if (target.find(top_) != std::string::npos || target.find("inotify") != std::string::npos) {
      EXPECT_TRUE(is_owned_descriptor(fd)) << fd << " " << target;
      EXPECT_GE(fd, lowest_owned_descriptor());
    }
  }
}

// A thread of ours uses the exchange while the program forks: it would be in the child's image.
TEST_F(DirectoryExchangeTest, NoChildHasADescriptorThatIsNotKnown) {
  const int before = unknown_descriptors();
  std::atomic<bool> over{false};
  std::thread user([&] {
    while (!over.load()) {
      EXPECT_TRUE(exchange_->publish("a/b", "v").ok());
      std::unique_ptr<Exchange> another;
      EXPECT_TRUE(Exchange::open(exchange_->uri(), false, &another).ok());
      std::uint64_t token = 0;
      EXPECT_TRUE(another->watch("a", &token, 0, -1).ok());
    }
  });
  const int strange = children_with_unknown_descriptors(before);
  over = true;
  user.join();
  EXPECT_EQ(strange, 0);
}

TEST_F(DirectoryExchangeTest, ClosingGivesEveryDescriptorBack) {
  auto count = [] { return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()); };
  auto before = count();
  for (int i = 0; i < 20; ++i) {
    std::unique_ptr<Exchange> other;
    ASSERT_TRUE(Exchange::open("dir:" + top_ + "/a/x", false, &other).ok());
    std::uint64_t token = 0;
    ASSERT_TRUE(other->watch("a", &token, 0, -1).ok());
    EXPECT_EQ(other->barrier("b" + std::to_string(i), "m", 2, 2, "abort").code(), Code::kTimeout);
  }
  EXPECT_EQ(count(), before);
}

TEST_F(DirectoryExchangeTest, NoTemporaryFileStays) {
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(exchange_->publish("k", "v").ok());
    Status claimed = exchange_->claim("c", "v");
    EXPECT_EQ(claimed.code(), i == 0 ? Code::kOk : Code::kBusy);
  }
  EXPECT_TRUE(fs::is_empty(top_ + "/a/x/.tmp"));
}

// It would wait for the file system's journal, which checkpoints keep busy.
TEST_F(DirectoryExchangeTest, LookingWritesNothing) {
  ASSERT_TRUE(exchange_->publish("k/a", "v").ok());
  const std::string directory = top_ + "/a/x/k";
  timespec long_ago[2] = {{1000, 0}, {0, UTIME_OMIT}};
  auto accessed = [](const std::string& path) {
    struct stat st {};
    EXPECT_EQ(::stat(path.c_str(), &st), 0) << path;
    return st.st_atim.tv_sec;
  };
  for (const std::string& path : {directory, directory + "/=a"})
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), long_ago, 0), 0) << path;
  std::string value;
  bool found = false;
  std::vector<std::string> names;
  ASSERT_TRUE(exchange_->get("k/a", &value, &found).ok());
  ASSERT_TRUE(exchange_->list("k", &names).ok());
  EXPECT_TRUE(found && names.size() == 1);
  EXPECT_EQ(accessed(directory + "/=a"), 1000);
  EXPECT_EQ(accessed(directory), 1000);
}

TEST_F(DirectoryExchangeTest, LossOfTheDirectoryIsAnIoErrorEverywhere) {
  ASSERT_TRUE(exchange_->publish("a/b", "v").ok());
  std::uint64_t token = 0;
  ASSERT_TRUE(exchange_->watch("a", &token, 0, -1).ok());
  // One waits in its sleep when the directory goes.
  std::thread watcher([&] {
    Status s;
    do s = exchange_->watch("a", &token, 20000, -1);
    while (s.ok());
    EXPECT_EQ(s.code(), Code::kIo) << s.text();
  });
  std::thread waiter([&] { EXPECT_EQ(exchange_->barrier("z", "m", 2, 20000, "abort").code(), Code::kIo); });
  while (!fs::exists(top_ + "/a/x/@z/m")) std::this_thread::yield();
  fs::remove_all(top_ + "/a");
  watcher.join();
  waiter.join();
  std::string value;
  std::vector<std::string> names;
  bool found = false;
  for (const Status& s : {exchange_->publish("a/b", "v"), exchange_->publish("n", "v"), exchange_->claim("c", "v"),
                          exchange_->get("a/b", &value, &found), exchange_->remove("a/b"),
                          exchange_->list("a", &names), exchange_->list("", &names),
                          exchange_->barrier("y", "m", 1, 100, ""), exchange_->watch("a", &token, 100, -1)}) {
    EXPECT_EQ(s.code(), Code::kIo) << s.text();
    EXPECT_NE(std::string(s.text()).find("gone"), std::string::npos) << s.text();
  }
  EXPECT_FALSE(fs::exists(top_ + "/a")) << "a lost exchange is not made again behind everybody's back";
}

TEST_F(DirectoryExchangeTest, OpeningWhatIsNotThereOrNotOurs) {
  std::unique_ptr<Exchange> other;
  EXPECT_EQ(Exchange::open("dir:" + top_ + "/none", false, &other).code(), Code::kNotFound);
  EXPECT_EQ(Exchange::open("dir:" + top_, false, &other).code(), Code::kNotFound) << "a directory, but no exchange";
  ASSERT_EQ(::close(::open((top_ + "/file").c_str(), O_CREAT | O_WRONLY, 0600)), 0);
  EXPECT_EQ(Exchange::open("dir:" + top_ + "/file", true, &other).code(), Code::kIo);
  EXPECT_EQ(Exchange::open("dir:" + top_ + "/file/x", true, &other).code(), Code::kIo);
  EXPECT_EQ(Exchange::open("dir:", true, &other).code(), Code::kUsage);
  fs::create_directory(top_ + "/open");
  fs::permissions(top_ + "/open", fs::perms::all);
  Status s = Exchange::open("dir:" + top_ + "/open", true, &other);
  EXPECT_EQ(s.code(), Code::kPermission);
  EXPECT_NE(std::string(s.text()).find("chmod"), std::string::npos);
}

TEST_F(DirectoryExchangeTest, SymbolicLinksPlantedAsValuesAreNotFollowed) {
  ASSERT_TRUE(exchange_->publish("k", "v").ok());
  fs::create_symlink("/etc/passwd", top_ + "/a/x/=evil");
  std::string value;
  bool found = false;
  EXPECT_EQ(exchange_->get("evil", &value, &found).code(), Code::kIo);
}

TEST_F(DirectoryExchangeTest, TellsWhereAFileIs) {
  for (const auto& [path, type] : std::vector<std::pair<const char*, const char*>>{
           {"/proc/self/status", "proc"}, {"/dev/shm", "tmpfs"}, {"/sys", "sysfs"}}) {
    const OwnedFd fd = open_owned(AT_FDCWD, path, O_RDONLY);
    ASSERT_TRUE(fd) << path;
    EXPECT_EQ(file_system_of(fd.get()), type) << path;
  }
  EXPECT_EQ(file_system_of(-1), "");
}

// Hard links that others make, as a backup may, open no barrier.
TEST_F(DirectoryExchangeTest, ForeignLinksOpenNoBarrier) {
  EXPECT_EQ(exchange_->barrier("b/x", "0", 3, 1, "").code(), Code::kTimeout);
  const std::string barrier = top_ + "/a/x/b/@x";
  fs::create_directory(top_ + "/backup");
  for (int i = 0; i < 9; ++i) fs::create_hard_link(barrier + "/0", top_ + "/backup/" + std::to_string(i));
  EXPECT_EQ(exchange_->barrier("b/x", "1", 3, 50, "").code(), Code::kTimeout);
  EXPECT_TRUE(exchange_->barrier("b/x", "2", 3, 5000, "").ok());
  EXPECT_TRUE(exchange_->barrier("b/x", "1", 3, 5000, "").ok());
}

// As if it had been killed between its entry and its word to the others.
TEST_F(DirectoryExchangeTest, ALastComerThatTellsNobodyHoldsNobodyUp) {
  std::thread waiter([&] { EXPECT_TRUE(exchange_->barrier("b/x", "0", 2, 20000, "stop").ok()); });
  const std::string barrier = top_ + "/a/x/b/@x";
  while (!fs::exists(barrier + "/0")) std::this_thread::yield();
  fs::create_hard_link(top_ + "/a/x/.exchange", barrier + "/=2");  // it has begun to count
  fs::create_hard_link(barrier + "/=", barrier + "/1");
  waiter.join();
}

// As above, and whoever counts next is killed, too: of many sleepers one counts in each second, and rings once.
TEST_F(DirectoryExchangeTest, OneOfManyCountsAgain) {
  const std::string barrier = top_ + "/a/x/b/@x";
  std::vector<std::thread> waiters;
  for (int m = 0; m < 20; ++m)
    waiters.emplace_back([&, m] { EXPECT_TRUE(exchange_->barrier("b/x", std::to_string(m), 21, 20000, "").ok()); });
  while (!fs::exists(barrier + "/=")) std::this_thread::yield();
  fs::create_hard_link(top_ + "/a/x/.exchange", barrier + "/=21");  // it is to count, before the last has come
  while (std::distance(fs::directory_iterator(barrier), fs::directory_iterator()) < 22) std::this_thread::yield();
  fs::create_hard_link(barrier + "/=", barrier + "/20");
  for (std::thread& waiter : waiters) waiter.join();
  int counted = 0;
  for (const auto& entry : fs::directory_iterator(barrier))
    counted += entry.path().filename().string().starts_with("=21.");
  EXPECT_GE(counted, 1);
  EXPECT_LE(counted, 3) << "in which each second one has counted";
}

TEST_F(DirectoryExchangeTest, WithoutHardLinksABarrierOpens) {
  const std::string barrier = top_ + "/a/x/b/@x";
  fs::create_directories(barrier);
  for (const char* entry : {"=", "0", "1"})  // as members enter there
    ASSERT_EQ(::close(::open((barrier + "/" + entry).c_str(), O_CREAT | O_WRONLY, 0600)), 0);
  EXPECT_EQ(exchange_->barrier("b/x", "1", 3, 1, "").code(), Code::kTimeout);
  EXPECT_TRUE(exchange_->barrier("b/x", "1", 2, 5000, "").ok());
}

// The number of regular files below a directory, each counted once.
std::size_t files_below(const std::string& directory) {
  std::set<std::uint64_t> inodes;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (struct stat st{}; ::lstat(entry.path().c_str(), &st) == 0 && S_ISREG(st.st_mode)) inodes.insert(st.st_ino);
  return inodes.size();
}

TEST_F(DirectoryExchangeTest, EqualValuesAreOneFile) {
  const auto before = files_below(top_ + "/a/x");
  for (int m = 0; m < 20; ++m) {
    EXPECT_TRUE(exchange_->publish_alike("done/" + std::to_string(m), "1").ok());
    EXPECT_EQ(exchange_->barrier("b/x", std::to_string(m), 21, 0, "").code(), Code::kTimeout);
  }
  EXPECT_EQ(files_below(top_ + "/a/x"), before + 2) << "the value, and the barrier's count";
  EXPECT_TRUE(fs::is_empty(top_ + "/a/x/.tmp"));
}

// It may have been killed.
TEST_F(DirectoryExchangeTest, WhoDoesNotMakeTheFileOfEqualValuesHoldsNobodyUpForLong) {
  ASSERT_TRUE(exchange_->publish_alike("done/0", "1").ok());
  const std::string alike = top_ + "/a/x/.alike";
  std::string made;
  for (const auto& entry : fs::directory_iterator(alike))
    if (entry.path().string().back() != '+') made = entry.path();
  ASSERT_TRUE(fs::remove(made));
  ASSERT_TRUE(fs::exists(made + "+"));
  ASSERT_TRUE(exchange_->publish_alike("done/1", "1").ok());
  EXPECT_TRUE(fs::exists(made));
}

TEST_F(DirectoryExchangeTest, SmallValuesShareFewFiles) {
  const auto before = files_below(top_ + "/a/x");
  for (int m = 0; m < 100; ++m) {
    const std::string name = std::to_string(m);
    EXPECT_TRUE(exchange_->publish("k/" + name, "value " + name).ok());
    EXPECT_TRUE(exchange_->claim("c/" + name, std::string(100, 'c')).ok());
    EXPECT_EQ(exchange_->claim("c/" + name, "late").code(), Code::kBusy);
  }
  EXPECT_LE(files_below(top_ + "/a/x"), before + 2);
  EXPECT_TRUE(fs::is_empty(top_ + "/a/x/.tmp"));
  for (int m = 0; m < 100; ++m) {
    const std::string name = std::to_string(m);
    std::vector<std::string> values;
    std::vector<bool> found;
    ASSERT_TRUE(exchange_->lookup({"k/" + name, "c/" + name}, &values, &found).ok());
    EXPECT_EQ(values, (std::vector<std::string>{"value " + name, std::string(100, 'c')}));
  }
}

// Many processes append to one file.
TEST_F(DirectoryExchangeTest, ValuesOfManyProcessesAreWhole) {
  constexpr int kProcesses = 8, kValues = 300;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {  // with one instance, and so one file at a time
      for (int i = 0; i < kValues; ++i) {
        const std::string name = std::to_string(p) + "-" + std::to_string(i);
        if (!exchange_->publish("m/" + name, name + std::string(static_cast<std::size_t>(i), 'v')).ok()) ::_exit(1);
      }
      ::_exit(0);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 1;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  for (int p = 0; p < kProcesses; ++p)
    for (int i = 0; i < kValues; ++i) {
      const std::string name = std::to_string(p) + "-" + std::to_string(i);
      std::string value;
      bool found = false;
      ASSERT_TRUE(exchange_->get("m/" + name, &value, &found).ok());
      ASSERT_EQ(value, name + std::string(static_cast<std::size_t>(i), 'v'));
    }
}

// All add it to one file at the same moment.
TEST_F(DirectoryExchangeTest, ASmallValueIsThatOfTheOneThatClaimsIt) {
  constexpr std::size_t kClaimers = 4;
  constexpr int kKeys = 500;
  std::barrier all(kClaimers);
  std::vector<std::vector<bool>> won(kClaimers, std::vector<bool>(kKeys));
  std::vector<std::thread> claimers;
  for (std::size_t c = 0; c < kClaimers; ++c)
    claimers.emplace_back([&, c] {
      for (int k = 0; k < kKeys; ++k) {
        all.arrive_and_wait();
        won[c][static_cast<std::size_t>(k)] = exchange_->claim("c/" + std::to_string(k), std::to_string(c)).ok();
      }
    });
  for (std::thread& claimer : claimers) claimer.join();
  for (int k = 0; k < kKeys; ++k) {
    std::string winners, value;
    for (std::size_t c = 0; c < kClaimers; ++c)
      if (won[c][static_cast<std::size_t>(k)]) winners += std::to_string(c);
    bool found = false;
    ASSERT_TRUE(exchange_->get("c/" + std::to_string(k), &value, &found).ok());
    ASSERT_EQ(value, winners) << k;
  }
}

// A watch that looks only afterwards sees it, too.
TEST_F(DirectoryExchangeTest, AValueThatComesAgainIsAChange) {
  std::uint64_t token = 0;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(exchange_->publish("w/k", "same").ok());
    ASSERT_TRUE(exchange_->watch("w", &token, 5000, -1).ok()) << i;
    ASSERT_TRUE(exchange_->publish("elsewhere/" + std::to_string(i), "of the same file").ok());
    EXPECT_EQ(exchange_->watch("w", &token, 1, -1).code(), Code::kTimeout) << i;
    ASSERT_TRUE(exchange_->remove("w/k").ok());
  }
}

TEST_F(DirectoryExchangeTest, AValueThatLooksLikeABundleIsAValue) {
  const std::string value = bundle_with("k", "inner"), more = value + bundle_with("other", "x");
  ASSERT_TRUE(exchange_->publish("k", value).ok());
  ASSERT_TRUE(exchange_->publish("k", more).ok());
  ASSERT_TRUE(exchange_->claim("c", value).ok());
  ASSERT_TRUE(exchange_->publish_alike("a", value).ok());
  std::vector<std::string> values;
  std::vector<bool> found;
  ASSERT_TRUE(exchange_->lookup({"k", "c", "a"}, &values, &found).ok());
  EXPECT_EQ(values, (std::vector<std::string>{more, value, value}));
}

TEST_F(DirectoryExchangeTest, ARecordThatIsNotWholeHidesNoOther) {
  const std::string first = bundle_with("a", std::string(300, '1')), second = bundle_with("b", "2");
  std::string_view value;
  for (std::size_t cut = 0; cut <= first.size(); ++cut) {
    const std::string file = bundle_with("z", "0") + first.substr(0, cut) + second + bundle_with("c", "3");
    EXPECT_EQ(find_in_bundle(file, "a", &value), cut == first.size()) << cut;
    ASSERT_TRUE(find_in_bundle(file, "b", &value)) << cut;
    EXPECT_EQ(value, "2");
    ASSERT_TRUE(find_in_bundle(file, "c", &value)) << cut;
    EXPECT_EQ(value, "3");
  }
  EXPECT_FALSE(find_in_bundle("", "a", &value));
  const std::string twice = second + bundle_with("b", "of who came second");
  ASSERT_TRUE(find_in_bundle(twice, "b", &value));
  EXPECT_EQ(value, "2");
}

TEST_F(DirectoryExchangeTest, ADamagedValueIsAnErrorAndNoValue) {
  ASSERT_TRUE(exchange_->publish("d/k", "value").ok());
  std::fstream(top_ + "/a/x/d/=k", std::ios::in | std::ios::out).seekp(20).put('\xff');
  std::string value;
  bool found = false;
  EXPECT_EQ(exchange_->get("d/k", &value, &found).code(), Code::kIo);
}

// One that is awake makes no system calls for others that come.
TEST_F(DirectoryExchangeTest, EntriesWakeNoSleeper) {
  constexpr int kMembers = 40;
  std::atomic<pid_t> sleeper{0};
  const auto switches = [&] {
    std::ifstream status("/proc/self/task/" + std::to_string(sleeper.load()) + "/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("voluntary_ctxt_switches:")) return std::stol(line.substr(line.find(':') + 1));
    return -1L;
  };
  std::thread waiter([&] {
    sleeper = static_cast<pid_t>(::syscall(SYS_gettid));
    EXPECT_TRUE(exchange_->barrier("b/x", "0", kMembers, 60000, "stop").ok());
  });
  while (!fs::exists(top_ + "/a/x/@") && !fs::exists(top_ + "/a/x/b/@x/0")) std::this_thread::yield();
  const auto sleeps = [&] {
    std::ifstream wchan("/proc/self/task/" + std::to_string(sleeper.load()) + "/syscall");
    long number = -1;
    wchan >> number;
    return number == SYS_futex;
  };
  while (!sleeps()) std::this_thread::yield();
  const std::int64_t start = monotonic_ns();
  const long before = switches();
  for (int m = 1; m < kMembers - 1; ++m)
    EXPECT_EQ(exchange_->barrier("b/x", std::to_string(m), kMembers, 0, "stop").code(), Code::kTimeout);
  const long woken = switches() - before, looks = (monotonic_ns() - start) / 1'000'000'000 + 1;
  EXPECT_TRUE(exchange_->barrier("b/x", "last", kMembers, 60000, "stop").ok());
  waiter.join();
  EXPECT_LE(woken, looks) << "it looks again once a second, and not for each entry";
}

// With no descriptor left for inotify everything still works, by looking again at a bounded rate.
TEST_F(DirectoryExchangeTest, WithoutInotifyItPolls) {
  std::string path = top_ + "/watched";
  fs::create_directory(path);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit none{3, before.rlim_max};
  DirectoryWaiter waiter(false);
  ::setrlimit(RLIMIT_NOFILE, &none);
  waiter.arm(&path, 1);
  ::setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_TRUE(waiter.polling());
  int rounds = 0;
  std::int64_t start = monotonic_ns();
  while (rounds < 2 || monotonic_ns() - start < 200000000) {
    waiter.wait(-1, -1);
    ++rounds;
  }
  EXPECT_LE(rounds, 12) << "1, 2, 4 ... 50 ms: bounded";
  EXPECT_GE(rounds, 2);
}

TEST_F(DirectoryExchangeTest, WhoWaitsLongLooksSeldom) {
  constexpr std::int64_t kMs = 1'000'000;
  EXPECT_EQ(DirectoryWaiter::interval_after(0), kMs);
  EXPECT_EQ(DirectoryWaiter::interval_after(8 * kMs), 8 * kMs) << "twice as long each time";
  EXPECT_EQ(DirectoryWaiter::interval_after(1000 * kMs), 50 * kMs);
  EXPECT_EQ(DirectoryWaiter::interval_after(20'000 * kMs), 200 * kMs);
  EXPECT_EQ(DirectoryWaiter::interval_after(3'600'000 * kMs), 500 * kMs);
}

TEST_F(DirectoryExchangeTest, ARemoteFileSystemIsLookedAtAgain) {
  std::string path = top_ + "/watched";
  fs::create_directory(path);
  DirectoryWaiter waiter(true);
  waiter.arm(&path, 1);
  EXPECT_TRUE(waiter.polling());
  EXPECT_FALSE(waiter.wait(-1, -1)) << "returns although nothing was notified";
}

// An allocator asks for memory now and then; a sanitizer's does so otherwise than libc's.
bool is_of_allocator(std::uint64_t call) {
  return call == SYS_mmap || call == SYS_munmap || call == SYS_mremap || call == SYS_madvise || call == SYS_brk ||
         call == SYS_mprotect;
}

// How many system calls `first` makes and how many `second`, in a process of their own.
template <typename First, typename Second>
std::pair<int, int> system_calls_of(First first, Second second) {
  constexpr long kMark = SYS_getppid;  // which neither makes
  const pid_t child = ::fork();
  if (child == 0) {
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    ::syscall(kMark);
    first();
    ::syscall(kMark);
    second();
    ::syscall(kMark);
    ::_exit(0);
  }
  int status = 0, part = 0, counts[4] = {};
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL), 0);
  while (::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) == 0 && ::waitpid(child, &status, 0) == child &&
         WIFSTOPPED(status)) {
    struct __ptrace_syscall_info info {};
    if (WSTOPSIG(status) != (SIGTRAP | 0x80) || ::ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof(info), &info) <= 0 ||
        info.op != PTRACE_SYSCALL_INFO_ENTRY)
      continue;
    if (static_cast<long>(info.entry.nr) == kMark)
      part = std::min(part + 1, 3);
    else if (!is_of_allocator(info.entry.nr))
      ++counts[part];
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return {counts[1], counts[2]};
}

// A value is a file: open, write, close, rename; and open, read, close. Ours adds the mode, the time stamp, the bell,
// and the move of a descriptor out of the way.
TEST_F(DirectoryExchangeTest, CostsFewSystemCalls) {
  constexpr int kTimes = 64;
  bool good = true;
  const auto [publish, lookup] = system_calls_of(
      [&] {
        for (int i = 0; i < kTimes; ++i) good = exchange_->publish("s/" + std::to_string(i), "value").ok() && good;
      },
      [&] {
        std::string value;
        bool found = false;
        for (int i = 0; i < kTimes; ++i) {
          good = exchange_->get("s/" + std::to_string(i), &value, &found).ok() && found && good;
          value.clear();
        }
        if (!good) ::_exit(1);
      });
  std::printf("publish %.1f system calls, lookup %.1f\n", 1.0 * publish / kTimes, 1.0 * lookup / kTimes);
  EXPECT_LE(publish, 13 * kTimes);
  EXPECT_LE(lookup, 8 * kTimes);
}

// Who has made the bell may be late to write its word. A sleep on an empty file ends at once: waiting would be a
// loop.
TEST_F(DirectoryExchangeTest, AnEmptyBellGetsItsWordFromWhoeverAttends) {
  std::ofstream(top_ + "/@").close();
  const OwnedFd root = open_owned(AT_FDCWD, top_.c_str(), O_RDONLY | O_DIRECTORY);
  Bell bell;
  ASSERT_TRUE(bell.attend(root.get(), "."));
  EXPECT_EQ(fs::file_size(top_ + "/@"), sizeof(std::uint32_t));
  const std::uint32_t rung = bell.rung();
  EXPECT_NE(rung, 0u);
  Bell another;  // the word is there: it stays
  ASSERT_TRUE(another.attend(root.get(), "."));
  EXPECT_EQ(bell.rung(), rung);
}

}  // namespace
}  // namespace shadowib
