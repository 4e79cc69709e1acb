// File locks across checkpoint, resume and restart: flock, record locks, open file description locks.
#include "hooks/imager/descriptors/file_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/tests/test_job.h"
#include "hooks/threads/sanitizer_thread.h"

namespace shadowib::test {
namespace {

struct flock range(short type, off_t start, off_t length) {
  struct flock l {};
  l.l_type = type;
  l.l_start = start;
  l.l_len = length;
  return l;
}
int set_lock(int fd, int command, struct flock l) { return ::fcntl(fd, command, &l); }

// The kernel's own list for the descriptor, without numbers and pids: "FLOCK WRITE 0 EOF;".
std::string locks_of(int fd) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(fd));
  std::string locks, line;
  while (std::getline(info, line)) {
    if (!line.starts_with("lock:")) continue;
    std::istringstream words(line);
    std::string word[9];
    for (std::string& w : word) words >> w;
    locks += word[2] + " " + word[4] + " " + word[7] + " " + word[8] + ";";
  }
  return locks;
}

std::string new_file(const char* name) {
  std::string path = scratch_directory() + "/" + name;
  std::ofstream(path) << std::string(64, 'x');
  return path;
}

// A process outside of the job that holds `take`'s lock until this object ends.
class Holder {
 public:
  template <typename Take>
  explicit Holder(Take take) {
    int ready[2];
    if (::pipe(ready) != 0) return;
    end_sanitizer_thread();
    pid_ = ::fork();
    if (pid_ == 0) {
      char byte = take() ? 'y' : 'n';
      (void)!::write(ready[1], &byte, 1);
      for (;;) ::pause();
    }
    char byte = 'n';
    holds_ = ::read(ready[0], &byte, 1) == 1 && byte == 'y';
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Holder() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  bool holds() const { return holds_; }
  std::string name() const { return "pid " + std::to_string(pid_) + " (descriptors_tes)"; }

 private:
  pid_t pid_ = -1;
  bool holds_ = false;
};

// finish_descriptors() has its list in memory that the rig's restarted processes do not have: record locks of a
// restart are in restart_test. Here: locks of the description, and all of them over a resume.
TEST(FileLocks, OfDescriptionsComeBackWithTheirRangesAndModes) {
  const std::string path = new_file("locked"), other = new_file("other");
  Job job;
  job.members = 1;
  job.before = [&](int) -> std::string {
    EXPECT_STEP(put(::open(path.c_str(), O_RDWR), 10) == 10 && ::flock(10, LOCK_EX) == 0);
    EXPECT_STEP(::dup2(10, 20) == 20);
    EXPECT_STEP(put(::open(other.c_str(), O_RDWR), 11) == 11);
    EXPECT_STEP(set_lock(11, F_OFD_SETLK, range(F_WRLCK, 8, 8)) == 0);
    EXPECT_STEP(set_lock(11, F_OFD_SETLK, range(F_RDLCK, 100, 0)) == 0);
    EXPECT_STEP(put(::open(other.c_str(), O_RDONLY), 12) == 12 && ::flock(12, LOCK_SH) == 0);
    EXPECT_STEP(put(::open(scratch_directory().c_str(), O_RDONLY | O_DIRECTORY), 13) == 13);
    EXPECT_STEP(::flock(13, LOCK_EX) == 0);
    return "";
  };
  const auto as_before = [](int) -> std::string {
    EXPECT_STEP(locks_of(10) == "FLOCK WRITE 0 EOF;" && locks_of(20) == locks_of(10));
    EXPECT_STEP(locks_of(11) == "OFDLCK WRITE 8 15;OFDLCK READ 100 EOF;");
    EXPECT_STEP(locks_of(12) == "FLOCK READ 0 EOF;");
    EXPECT_STEP(locks_of(13) == "FLOCK WRITE 0 EOF;");
    return "";
  };
  job.resumed = as_before;
  job.restarted = [&](int member) -> std::string {
    if (std::string words = as_before(member); !words.empty()) return words;
    ::close(10);
    const int again = ::open(path.c_str(), O_RDONLY);
    EXPECT_STEP(::flock(again, LOCK_EX | LOCK_NB) != 0 && "its dup is still open");
    ::close(20);
    EXPECT_STEP(::flock(again, LOCK_EX | LOCK_NB) == 0 && "nobody else has the description");
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

TEST(FileLocks, EachMemberGetsItsPart) {
  const std::string path = new_file("parts");
  Job job;
  job.members = 3;
  job.before = [&](int member) -> std::string {
    EXPECT_STEP(put(::open(path.c_str(), O_RDWR), 10) == 10);
    EXPECT_STEP(set_lock(10, F_OFD_SETLK, range(F_WRLCK, 8 * member, 8)) == 0);
    return "";
  };
  job.restarted = [&](int member) -> std::string {
    const std::string first = std::to_string(8 * member), last = std::to_string(8 * member + 7);
    EXPECT_STEP(locks_of(10) == "OFDLCK WRITE " + first + " " + last + ";");
    const bool taken = set_lock(10, F_OFD_SETLK, range(F_WRLCK, 8 * ((member + 1) % 3), 8)) == 0;
    meet();
    EXPECT_STEP(!taken && "it is the next member's");
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

// One description, though it is open for reading alone: an exclusive flock cannot be had twice.
TEST(FileLocks, InheritedOnesAreOne) {
  const std::string path = new_file("inherited");
  for (const int operation : {LOCK_EX, LOCK_SH}) {
    Job job;
    job.make = [&]() -> std::string {
      EXPECT_STEP(::open(path.c_str(), O_RDONLY) == 3 && ::flock(3, operation) == 0);
      return "";
    };
    job.before = [](int) { return std::string(); };
    job.restarted = [&](int member) -> std::string {
      meet();
      if (member == 0) EXPECT_STEP(::flock(3, LOCK_UN) == 0);
      meet();
      EXPECT_STEP(locks_of(3).empty() && "who unlocks it unlocks it for both");
      return "";
    };
    EXPECT_EQ(checkpoint_and_restart(job), "");
  }
}

TEST(FileLocks, SharedOnesOfTwoMembersStayTwo) {
  const std::string path = new_file("readers");
  Job job;
  job.before = [&](int) -> std::string {
    EXPECT_STEP(put(::open(path.c_str(), O_RDWR), 10) == 10 && ::flock(10, LOCK_SH) == 0);
    return "";
  };
  job.restarted = [&](int member) -> std::string {
    meet();
    if (member == 0) EXPECT_STEP(::flock(10, LOCK_UN) == 0);
    meet();
    EXPECT_STEP(member == 0 || locks_of(10) == "FLOCK READ 0 EOF;");
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

// Closing any descriptor of a file drops the record locks of the process on it: a look at the file must not.
TEST(FileLocks, RecordLocksOutliveACheckpoint) {
  const std::string path = new_file("records");
  const std::string shm = "/dev/shm/shadowib-locks-" + std::to_string(::getpid());
  std::filesystem::copy_file(path, shm);
  Job job;
  job.members = 1;
  job.before = [&](int) -> std::string {
    EXPECT_STEP(put(::open(path.c_str(), O_RDWR), 10) == 10);
    EXPECT_STEP(set_lock(10, F_SETLK, range(F_WRLCK, 8, 8)) == 0 &&
                set_lock(10, F_SETLK, range(F_RDLCK, 32, 0)) == 0);
    EXPECT_STEP(put(::open(shm.c_str(), O_RDWR), 11) == 11 && set_lock(11, F_SETLK, range(F_WRLCK, 0, 0)) == 0);
    EXPECT_STEP(::mmap(nullptr, 64, PROT_READ | PROT_WRITE, MAP_SHARED, 11, 0) != MAP_FAILED);
    return "";
  };
  job.resumed = [&](int) -> std::string {
    EXPECT_STEP(locks_of(10) == "POSIX WRITE 8 15;POSIX READ 32 EOF;");
    EXPECT_STEP(locks_of(11) == "POSIX WRITE 0 EOF;");
    for (const std::string& file : {path, shm}) ::close(::open(file.c_str(), O_RDONLY));
    EXPECT_STEP(locks_of(10).empty() && locks_of(11).empty() && "that is what a close does");
    EXPECT_STEP(hold_record_locks().ok());
    EXPECT_STEP(locks_of(10) == "POSIX WRITE 8 15;POSIX READ 32 EOF;" && locks_of(11) == "POSIX WRITE 0 EOF;");
    abandon_descriptors();
    ::close(::open(path.c_str(), O_RDONLY));
    EXPECT_STEP(hold_record_locks().ok() && locks_of(10).empty() && "what the program has since unlocked stays so");
    return "";
  };
  const Capture capture = checkpoint(job);
  EXPECT_EQ(capture.failure, "");
  EXPECT_TRUE(capture.refusals.empty()) << capture.refusals.begin()->second;
  std::filesystem::remove(shm);
}

TEST(FileLocks, WhoHoldsOneMeanwhileIsNamed) {
  const std::string path = new_file("taken");
  struct Case {
    const char* text;
    std::function<bool(int)> take;
  };
  const Case cases[] = {
      {"exclusive flock", [](int fd) { return ::flock(fd, LOCK_EX | LOCK_NB) == 0; }},
      {"record lock of bytes 8 to 15", [](int fd) { return set_lock(fd, F_SETLK, range(F_WRLCK, 8, 8)) == 0; }},
      {"open file description lock of bytes 8 to 15",
       [](int fd) { return set_lock(fd, F_OFD_SETLK, range(F_WRLCK, 8, 8)) == 0; }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    Job job;
    job.members = 1;
    job.before = [&](int) -> std::string {
      EXPECT_STEP(put(::open(path.c_str(), O_RDWR), 10) == 10 && c.take(10));
      return "";
    };
    job.restarted = [](int) { return std::string(); };
    const Capture capture = checkpoint(job);
    ASSERT_EQ(capture.failure, "");
    ASSERT_TRUE(capture.refusals.empty()) << capture.refusals.begin()->second;
    std::vector<Status> told;
    const auto check = [&] {
      told.clear();
      EXPECT_TRUE(check_files(capture.tables, {0}, [&told](const Status& s) { told.push_back(s); }).ok());
      return told.size();
    };
    EXPECT_EQ(check(), 0u) << told[0].text();
    const Holder holder([&] { return c.take(::open(path.c_str(), O_RDWR | O_CLOEXEC)); });
    ASSERT_TRUE(holder.holds());
    ASSERT_EQ(check(), 1u);
    EXPECT_EQ(told[0].code(), Code::kBusy);
    for (const std::string& part : {path, std::string(c.text), holder.name()})
      EXPECT_NE(std::string(told[0].text()).find(part), std::string::npos) << told[0].text();
    if (std::string(c.text).starts_with("record")) continue;  // taken by the member itself, last
    EXPECT_NE(restart(job, capture.tables).find(holder.name()), std::string::npos);
  }
}

// As of `flock FILE shadowib run ...`, and the same at the restart.
TEST(FileLocks, AFlockThatTheCommandHasInheritedIsTheMembers) {
  const std::string path = new_file("wrapped");
  Job job;
  job.members = 1;
  job.make = [&]() -> std::string {
    EXPECT_STEP(::open(path.c_str(), O_RDONLY) == 3 && ::flock(3, LOCK_EX) == 0);
    return "";
  };
  job.before = [](int) { return std::string(); };
  job.command = [&] { ::flock(::open(path.c_str(), O_RDONLY), LOCK_EX); };
  job.restarted = [](int) -> std::string {
    EXPECT_STEP(locks_of(3) == "FLOCK WRITE 0 EOF;");
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

}  // namespace
}  // namespace shadowib::test
