// Files, pipes, and standard streams across checkpoint and restart.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <thread>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/table.h"
#include "hooks/imager/descriptors/tests/test_job.h"

namespace shadowib::test {
namespace {

void write_file(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

Job single(Step before, Step after) {
  Job job;
  job.members = 1;
  job.before = std::move(before);
  job.restarted = std::move(after);
  return job;
}

TEST(Files, OffsetsFlagsDupsAndNumbersComeBack) {
  std::string path = scratch_directory() + "/data", log = scratch_directory() + "/log";
  write_file(path, "0123456789");
  write_file(log, "begin ");
  Job job = single(
      [&](int) -> std::string {
        EXPECT_STEP(put(::open(path.c_str(), O_RDWR), 10) == 10);
        EXPECT_STEP(::lseek(10, 4, SEEK_SET) == 4);
        EXPECT_STEP(::dup3(10, 700, O_CLOEXEC) == 700);
        EXPECT_STEP(put(::open(path.c_str(), O_RDONLY), 11) == 11);
        EXPECT_STEP(put(::open(log.c_str(), O_WRONLY | O_APPEND), 12) == 12);
        EXPECT_STEP(put(::open(scratch_directory().c_str(), O_RDONLY | O_DIRECTORY), 13) == 13);
        EXPECT_STEP(put(::open("/dev/null", O_RDWR), 3) == 3);
        EXPECT_STEP(put(::open("/proc/self/status", O_RDONLY), 5) == 5);
        return "";
      },
      [&](int) -> std::string {
        EXPECT_STEP(read_some(10, 2) == "45");
        EXPECT_STEP(read_some(700, 2) == "67" && "a dup shares its offset");
        EXPECT_STEP(read_some(11, 3) == "012" && "another open does not");
        EXPECT_STEP((::fcntl(700, F_GETFD) & FD_CLOEXEC) != 0);
        EXPECT_STEP((::fcntl(10, F_GETFD) & FD_CLOEXEC) == 0);
        EXPECT_STEP((::fcntl(12, F_GETFL) & (O_APPEND | O_ACCMODE)) == (O_APPEND | O_WRONLY));
        EXPECT_STEP(::write(12, "end", 3) == 3);
        struct stat st {};
        EXPECT_STEP(::fstat(13, &st) == 0 && S_ISDIR(st.st_mode));
        EXPECT_STEP(::write(3, "x", 1) == 1);
        EXPECT_STEP(read_some(5, 5) == "Name:");
        EXPECT_STEP(::fcntl(4, F_GETFD) < 0 && ::fcntl(14, F_GETFD) < 0 && "nothing else is open");
        return "";
      });
  job.resumed = [&](int) -> std::string {
    EXPECT_STEP(::lseek(10, 0, SEEK_CUR) == 4);
    return "";
  };
  // /proc/<pid> of the original is gone: only a restart with the recorded pid has it.
  Capture capture = checkpoint(job);
  ASSERT_EQ(capture.failure, "");
  std::string words = restart(job, capture.tables);
  EXPECT_NE(words.find("/proc/"), std::string::npos) << words;
  Step before = job.before;
  job.before = [&](int m) -> std::string {
    std::string w = before(m);
    put(::open("/dev/zero", O_RDONLY), 5);
    return w;
  };
  Step after = job.restarted;
  job.restarted = [&](int m) -> std::string {
    char zeros[5];
    EXPECT_STEP(::read(5, zeros, 5) == 5);
    EXPECT_STEP(put(::open("/proc/self/status", O_RDONLY), 5) == 5);
    return after(m);
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
  std::ifstream in(log);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  EXPECT_EQ(text, "begin end");
}

// A member starts with its main thread alone, so what /proc has of others is opened by finish_descriptors(). That
// needs the memory of the process that was captured, which here is the process itself; restart_test has it with a
// restart.
TEST(Files, WhatLeadsToThreadsIsMadeLast) {
  static long thread;
  Job job = single(
      [](int) -> std::string {
        std::atomic<bool> ready{false};
        std::thread([&] {
          thread = ::syscall(SYS_gettid);
          ready = true;
          for (;;) ::pause();
        }).detach();
        while (!ready) ::usleep(100);
        const std::string of_thread = std::to_string(thread), of_main = std::to_string(::getpid());
        EXPECT_STEP(put(::open(("/proc/self/task/" + of_thread + "/status").c_str(), O_RDONLY), 10) == 10);
        EXPECT_STEP(::lseek(10, 1, SEEK_SET) == 1);
        EXPECT_STEP(::dup3(10, 700, O_CLOEXEC) == 700);
        EXPECT_STEP(put(::open(("/proc/" + of_thread + "/status").c_str(), O_RDONLY), 11) == 11);
        EXPECT_STEP(put(::open(("/proc/self/task/" + of_thread).c_str(), O_RDONLY | O_DIRECTORY), 12) == 12);
        EXPECT_STEP(put(::open(("/proc/self/task/" + of_main + "/status").c_str(), O_RDONLY), 13) == 13);
        int p[2];
        EXPECT_STEP(::pipe(p) == 0 && put(p[0], 14) == 14);
        f_owner_ex owner{F_OWNER_TID, static_cast<pid_t>(thread)};
        EXPECT_STEP(::fcntl(14, F_SETOWN_EX, &owner) == 0);
        return "";
      },
      [](int) { return std::string(); });
  job.resumed = [](int) -> std::string {
    const int null = ::open("/dev/null", O_RDONLY);
    for (int fd : {10, 11, 12, 13}) EXPECT_STEP(::dup3(null, fd, 0) == fd);
    EXPECT_STEP(::dup3(null, 700, O_CLOEXEC) == 700);
    f_owner_ex owner{F_OWNER_PID, ::getpid()};
    EXPECT_STEP(::fcntl(14, F_SETOWN_EX, &owner) == 0);
    const int next = ::dup(null);
    ::close(next);
    EXPECT_STEP(finish_descriptors().ok());
    EXPECT_STEP(read_some(10, 2) == "am");
    EXPECT_STEP(read_some(700, 2) == "e:" && "a dup shares its offset");
    EXPECT_STEP((::fcntl(10, F_GETFD) & FD_CLOEXEC) == 0 && (::fcntl(700, F_GETFD) & FD_CLOEXEC) != 0);
    EXPECT_STEP(read_some(11, 5) == "Name:");
    char path[64]{};
    EXPECT_STEP(::readlink("/proc/self/fd/12", path, sizeof(path) - 1) > 0);
    EXPECT_STEP(path == "/proc/" + std::to_string(::getpid()) + "/task/" + std::to_string(thread));
    EXPECT_STEP(read_some(13, 1).empty() && "the main thread's is a restart's matter");
    EXPECT_STEP(::fcntl(14, F_GETOWN_EX, &owner) == 0 && owner.type == F_OWNER_TID && owner.pid == thread);
    EXPECT_STEP(::dup(null) == next && "nothing is left open");
    return "";
  };
  const Capture capture = checkpoint(job);
  ASSERT_EQ(capture.failure, "");
  ASSERT_TRUE(match_descriptors(capture.tables).ok());
}

TEST(Files, MembersThatInheritedAnOutputKeepOneOffset) {
  std::string path = scratch_directory() + "/shared";
  Job job;
  job.make = [&]() -> std::string {
    EXPECT_STEP(::open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600) == 3);
    return "";
  };
  job.before = [](int member) -> std::string {
    if (member == 0) EXPECT_STEP(::write(3, "begin ", 6) == 6);
    return "";
  };
  job.restarted = [](int member) -> std::string {
    if (member == 0) EXPECT_STEP(::write(3, "zero ", 5) == 5);
    meet();
    if (member == 1) EXPECT_STEP(::write(3, "one", 3) == 3);
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
  std::ifstream in(path);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(in)), {}), "begin zero one");
}

// By one name, with equal flags, at equal offsets, as the ranks of a job open the file of their results.
TEST(Files, MembersThatOpenedOneFileAlikeKeepTheirOffsets) {
  const std::string path = scratch_directory() + "/alike";
  Job job;
  job.members = 3;
  job.make = [&]() -> std::string {
    EXPECT_STEP(put(::open(path.c_str(), O_CREAT | O_RDWR | O_TRUNC, 0600), 12) == 12);  // one for all
    return "";
  };
  job.before = [&](int) -> std::string {
    EXPECT_STEP(put(::open(path.c_str(), O_RDWR), 10) == 10 && put(::open(path.c_str(), O_RDWR), 11) == 11);
    return "";
  };
  job.restarted = [](int member) -> std::string {
    EXPECT_STEP(::lseek(10, 4 * member, SEEK_SET) == 4 * member);
    meet();
    EXPECT_STEP(::write(10, "own.", 4) == 4 && ::lseek(11, 0, SEEK_CUR) == 0);
    meet();
    char text[4];
    EXPECT_STEP(::read(12, text, sizeof(text)) == 4 && std::string(text, 4) == "own.");
    meet();
    EXPECT_STEP(::lseek(12, 0, SEEK_CUR) == 12);
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

// Each of a shell's commands reads its own part of one input.
TEST(Files, MembersThatInheritedAnInputKeepOneOffset) {
  const std::string path = scratch_directory() + "/input";
  write_file(path, "zeroone.");
  Job job;
  job.make = [&]() -> std::string {
    EXPECT_STEP(put(::open(path.c_str(), O_RDONLY), 10) == 10);
    return "";
  };
  job.before = [](int) -> std::string { return ""; };
  job.restarted = [](int member) -> std::string {
    if (member == 1) meet();
    char text[4];
    EXPECT_STEP(::read(10, text, sizeof(text)) == 4 && std::string(text, 4) == (member == 0 ? "zero" : "one."));
    if (member == 0) meet();
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

std::string content_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Two names or two kernels tell that it is not one description.
TEST(Files, MembersThatOpenedAFileThemselvesKeepTheirOffsets) {
  const std::string path = scratch_directory() + "/apart", other = path + "-link";
  write_file(path, "");
  ASSERT_EQ(::link(path.c_str(), other.c_str()), 0);
  std::string names[2];
  Job job;
  job.before = [&](int member) -> std::string {
    EXPECT_STEP(put(::open(names[member].c_str(), O_WRONLY), 10) == 10);
    return "";
  };
  job.restarted = [](int member) -> std::string {
    if (member == 0) EXPECT_STEP(::write(10, "zero", 4) == 4);
    meet();
    if (member == 1) EXPECT_STEP(::write(10, "one", 3) == 3);
    return "";
  };
  names[0] = path;
  names[1] = other;
  EXPECT_EQ(checkpoint_and_restart(job), "");
  EXPECT_EQ(content_of(path), "oneo");
  write_file(path, "");
  names[1] = path;
  job.compares = false;
  Capture capture = checkpoint(job);
  ASSERT_EQ(capture.failure, "");
  descriptors::Table table;
  ASSERT_TRUE(descriptors::decode_table(capture.tables[1], &table).ok());
  table.kernel = "another";
  descriptors::encode_table(table, &capture.tables[1]);
  EXPECT_EQ(restart(job, capture.tables), "");
  EXPECT_EQ(content_of(path), "oneo");
  ::unlink(path.c_str());
  ::unlink(other.c_str());
}

TEST(Files, TooFewDescriptorsAreNamed) {
  const std::string path = scratch_directory() + "/many";
  write_file(path, "");
  Job job = single(
      [&](int) -> std::string {
        for (int fd = 100; fd < 200; ++fd) EXPECT_STEP(put(::open(path.c_str(), O_RDONLY), fd) == fd);
        return "";
      },
      [](int) { return std::string(); });
  job.command = [] {
    const rlimit few{64, 64};
    ::setrlimit(RLIMIT_NOFILE, &few);
  };
  const std::string said = checkpoint_and_restart(job);
  EXPECT_NE(said.find("many"), std::string::npos) << said;
  EXPECT_NE(said.find("ulimit -Hn"), std::string::npos) << said;
  ::unlink(path.c_str());
}

TEST(Files, MissingOrShorterIsNamedAndNotCreated) {
  std::string path = scratch_directory() + "/output";
  Job job = single(
      [&](int) -> std::string {
        EXPECT_STEP(put(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 10) == 10);
        EXPECT_STEP(::write(10, "1234", 4) == 4);
        return "";
      },
      [](int) { return std::string(); });
  Capture capture = checkpoint(job);
  ASSERT_EQ(capture.failure, "");
  EXPECT_EQ(restart(job, capture.tables), "");
  write_file(path, "12");
  EXPECT_NE(restart(job, capture.tables).find("shorter"), std::string::npos);
  ::unlink(path.c_str());
  EXPECT_NE(restart(job, capture.tables).find(path), std::string::npos);
  EXPECT_NE(::access(path.c_str(), F_OK), 0) << "a missing file must not be created";
  ::mkfifo(path.c_str(), 0600);  // would hang an open without O_NONBLOCK
  EXPECT_NE(restart(job, capture.tables), "");
  ::unlink(path.c_str());
}

// `job >out 2>&1`, and `restart >out` or `restart >>out`, whose shell opens the file anew.
TEST(StandardStreams, AFileThatIsTheCommandsOwnOutputIsTheMembers) {
  const std::string path = scratch_directory() + "/own_output", other = scratch_directory() + "/other_output";
  Job job = single(
      [&](int) -> std::string {
        EXPECT_STEP(put(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1) == 1 && ::dup2(1, 2) == 2);
        EXPECT_STEP(::dup2(1, 7) == 7);
        EXPECT_STEP(put(::open(path.c_str(), O_WRONLY), 8) == 8 && ::lseek(8, 3, SEEK_SET) == 3);
        EXPECT_STEP(::write(1, "before", 6) == 6);
        return "";
      },
      [&](int) -> std::string {
        EXPECT_STEP(::write(1, "one ", 4) == 4 && ::write(2, "two ", 4) == 4 && ::write(7, "seven", 5) == 5);
        return "";
      });
  Capture capture = checkpoint(job);
  ASSERT_EQ(capture.failure, "");
  const auto restart_to = [&](const std::string& out, int stream, int flags) {
    job.command = [=] { put(::open(out.c_str(), O_WRONLY | O_CREAT | flags, 0600), stream); };
    return restart(job, capture.tables);
  };
  const auto content = [&] {
    std::ifstream in(path);
    return std::string((std::istreambuf_iterator<char>(in)), {});
  };
  EXPECT_EQ(restart_to(path, 1, O_APPEND), "");
  EXPECT_EQ(content(), "beforeone two seven");
  EXPECT_EQ(restart_to(other, 1, O_TRUNC), "");
  EXPECT_EQ(content(), "beforeone two seven") << "as any file: from where it was";
  EXPECT_NE(restart_to(path, 0, O_TRUNC).find("shorter"), std::string::npos) << "that is no standard output";
  EXPECT_NE(restart_to(path, 1, O_TRUNC).find("shorter"), std::string::npos) << "8 is no standard stream";
  Step before = job.before;
  job.before = [&](int member) -> std::string {
    std::string words = before(member);
    ::close(8);
    return words;
  };
  capture = checkpoint(job);
  ASSERT_EQ(capture.failure, "");
  EXPECT_EQ(restart_to(path, 2, O_TRUNC), "");
  EXPECT_EQ(content(), "one two seven");
}

TEST(Files, ThoseThatHaveGrownAreFoundAndCut) {
  const std::string top = scratch_directory() + "/grown.", log = top + "log", read = top + "read",
                    same = top + "same", shorter = top + "shorter", replaced = top + "replaced",
                    missing = top + "missing";
  for (const std::string& path : {log, read, same, shorter, replaced, missing}) write_file(path, "0123456789");
  Job job = single(
      [&](int) -> std::string {
        int fd = 10;
        for (const std::string& path : {log, log, same, shorter, replaced, missing})
          EXPECT_STEP(put(::open(path.c_str(), O_WRONLY | O_APPEND), fd++) >= 10);
        EXPECT_STEP(put(::open(read.c_str(), O_RDONLY), 20) == 20);
        return "";
      },
      [](int) { return std::string(); });
  const Capture capture = checkpoint(job);
  ASSERT_EQ(capture.failure, "");
  const auto find = [&] {
    std::vector<ChangedFile> files;
    EXPECT_TRUE(find_changed_files(capture.tables, {0}, ::time(nullptr), &files).ok());
    return files;
  };
  EXPECT_TRUE(find().empty());
  for (const std::string& path : {log, read}) write_file(path, "0123456789 and more");
  write_file(shorter, "0");
  write_file(replaced + ".new", "another, longer file");
  std::rename((replaced + ".new").c_str(), replaced.c_str());
  std::remove(missing.c_str());
  std::vector<ChangedFile> files = find();
  ASSERT_EQ(files.size(), 4u);
  EXPECT_EQ(files[0].path, log);
  EXPECT_EQ(files[0].state, ChangedFile::kGrown);
  EXPECT_EQ(files[0].recorded, 10u);
  EXPECT_EQ(files[0].now, 19u);
  EXPECT_EQ(files[1].state, ChangedFile::kMissing);
  EXPECT_EQ(files[2].state, ChangedFile::kReplaced);
  EXPECT_EQ(files[3].state, ChangedFile::kShorter);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_TRUE(start_outsider([&] {
    const int own = ::open(log.c_str(), O_RDWR);
    (void)!::write(ready[1], own >= 0 ? "y" : "n", 1);
    ::close(ready[1]);
    char byte;
    while (::read(own, &byte, 1) == 1 && byte != '!') {  // until the file ends with a mark
    }
    for (; byte != '!'; ::usleep(1000)) (void)!::pread(own, &byte, 1, 19);
  }));
  EXPECT_EQ(read_some(ready[0], 1), "y");
  files = find();
  EXPECT_EQ(files[0].state, ChangedFile::kShared);
  EXPECT_NE(files[0].writer.find("(descriptors_tes)"), std::string::npos) << files[0].writer;
  write_file(log, "0123456789 and more!");
  while ((files = find())[0].state == ChangedFile::kShared) ::usleep(1000);
  EXPECT_TRUE(cut_file(files[0]).ok());
  EXPECT_EQ(std::filesystem::file_size(log), 10u);
  files[0].inode ^= 1;
  EXPECT_EQ(cut_file(files[0]).code(), Code::kRefused);
  for (int end : ready) ::close(end);
}

// Between the first look and the cut, much may happen.
TEST(Files, OneThatIsAboutToBeCutIsLookedAtAgain) {
  const std::string path = scratch_directory() + "/again";
  write_file(path, "0123456789 and more");
  struct stat st {};
  ASSERT_EQ(::stat(path.c_str(), &st), 0);
  ChangedFile file;
  file.path = path;
  file.recorded = 10;
  file.now = 19;
  file.device = st.st_dev;
  file.inode = st.st_ino;
  const auto judge = [&](int own) { return judge_cut({file}, [own](int pid) { return pid == own; }); };
  const auto expect_refusal = [&](const char* why) {
    const Status status = judge(0);
    EXPECT_EQ(status.code(), Code::kRefused) << why;
    EXPECT_NE(std::string(status.text()).find(why), std::string::npos) << status.text();
  };
  EXPECT_TRUE(judge(0).ok());
  write_file(path, "0123456789 and more, of this command's own output");
  EXPECT_TRUE(judge(0).ok());
  int ready[2], end[2];
  ASSERT_TRUE(::pipe(ready) == 0 && ::pipe(end) == 0);
  const pid_t writer = ::fork();
  if (writer == 0) {
    char byte;
    ::close(end[1]);
    const bool opened = ::open(path.c_str(), O_WRONLY) >= 0;
    (void)!::write(ready[1], opened ? "y" : "n", 1);
    (void)!::read(end[0], &byte, 1);
    ::_exit(0);
  }
  EXPECT_EQ(read_some(ready[0], 1), "y");
  expect_refusal("has opened it meanwhile");
  EXPECT_TRUE(judge(writer).ok());  // a member
  ::close(end[1]);
  EXPECT_EQ(::waitpid(writer, nullptr, 0), writer);
  EXPECT_TRUE(judge(0).ok());
  write_file(path, "0");
  expect_refusal("it is shorter than at the checkpoint meanwhile");
  write_file(path + ".new", "another, longer file");
  std::rename((path + ".new").c_str(), path.c_str());
  expect_refusal("another file has taken its name meanwhile");
  std::remove(path.c_str());
  EXPECT_EQ(judge(0).error(), ENOENT);
  for (int fd : {ready[0], ready[1], end[0]}) ::close(fd);
}

descriptors::Table table_of_file(std::uint32_t member, const std::string& path, std::uint64_t bytes) {
  struct stat st {};
  EXPECT_EQ(::stat(path.c_str(), &st), 0);
  descriptors::Table table;
  table.member = member;
  table.descriptors.push_back({10, 0, 0});
  descriptors::Object& o = table.objects.emplace_back();
  o.path = path;
  o.flags = O_WRONLY;
  o.mode = st.st_mode;
  o.device = st.st_dev;
  o.inode = st.st_ino;
  o.size = bytes;
  return table;
}

std::vector<ChangedFile> changed_files_of(const std::vector<descriptors::Table>& tables, std::int64_t saved_s) {
  std::map<std::uint32_t, std::string> encoded;
  std::set<std::uint32_t> here;
  for (const descriptors::Table& table : tables) {
    encode_table(table, &encoded[table.member]);
    here.insert(table.member);
  }
  std::vector<ChangedFile> files;
  EXPECT_TRUE(find_changed_files(encoded, here, saved_s, &files).ok());
  return files;
}

// A file system may give it the inode number of the old one.
TEST(Files, OneThatIsYoungerThanTheSetIsNotCut) {
  const std::string path = scratch_directory() + "/younger";
  write_file(path, "somebody else's");
  struct statx file {};
  ASSERT_EQ(::statx(AT_FDCWD, path.c_str(), 0, STATX_BTIME, &file), 0);
  if ((file.stx_mask & STATX_BTIME) == 0) GTEST_SKIP() << "the file system does not tell when a file was made";
  const std::vector<descriptors::Table> tables = {table_of_file(0, path, 5)};
  const std::int64_t made_s = file.stx_btime.tv_sec;
  EXPECT_EQ(changed_files_of(tables, made_s - 1).at(0).state, ChangedFile::kReplaced);
  EXPECT_EQ(changed_files_of(tables, made_s).at(0).state, ChangedFile::kGrown);
  EXPECT_EQ(changed_files_of(tables, 0).at(0).state, ChangedFile::kGrown);
}

TEST(Files, TheGreatestLengthThatAMemberHasSeenCounts) {
  const std::string path = scratch_directory() + "/seen";
  write_file(path, "0123456789 and more");
  std::vector<descriptors::Table> tables = {table_of_file(0, path, 10), table_of_file(1, path, 14)};
  std::vector<ChangedFile> files = changed_files_of(tables, 0);
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].recorded, 14u);
  EXPECT_EQ(files[0].state, ChangedFile::kGrown);
  tables[1].objects[0].inode ^= 1;  // of another host
  EXPECT_EQ(changed_files_of(tables, 0).at(0).state, ChangedFile::kReplaced);
}

// It would be killed by SIGBUS.
TEST(Files, OneThatAnotherProcessHasMappedIsNotCut) {
  const std::string path = scratch_directory() + "/mapped";
  write_file(path, "0123456789 and more");
  int ready[2], end[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(end), 0);
  ASSERT_TRUE(start_outsider([&] {
    const int own = ::open(path.c_str(), O_RDWR);
    const void* at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
    ::close(own);
    ::close(end[1]);
    (void)!::write(ready[1], at != MAP_FAILED ? "y" : "n", 1);
    char byte;
    (void)!::read(end[0], &byte, 1);
  }));
  EXPECT_EQ(read_some(ready[0], 1), "y");
  const ChangedFile file = changed_files_of({table_of_file(0, path, 10)}, 0).at(0);
  EXPECT_EQ(file.state, ChangedFile::kShared);
  EXPECT_NE(file.writer.find("(descriptors_tes)"), std::string::npos) << file.writer;
  for (const int fd : {ready[0], ready[1], end[0], end[1]}) ::close(fd);
}

TEST(Pipes, BytesInFlightBetweenMembers) {
  Job job;
  std::string big(200000, 'b');
  job.make = [&]() -> std::string {
    int p[2];
    EXPECT_STEP(::pipe(p) == 0);
    EXPECT_STEP(p[0] == 3 && p[1] == 4);
    EXPECT_STEP(::pipe2(p, O_NONBLOCK) == 0);
    EXPECT_STEP(p[0] == 5 && p[1] == 6);
    return "";
  };
  job.before = [&](int member) -> std::string {
    if (member == 0) {
      ::close(3);
      ::close(6);
      EXPECT_STEP(::fcntl(4, F_SETPIPE_SZ, 1 << 18) == 1 << 18);
      EXPECT_STEP(::write(4, "first,", 6) == 6);
      EXPECT_STEP(::write(4, big.data(), big.size()) == static_cast<ssize_t>(big.size()));
    } else {
      ::close(4);
      ::close(5);
      meet();
      EXPECT_STEP(read_some(3, 2) == "fi");
      return "";
    }
    meet();
    return "";
  };
  job.resumed = job.restarted = [&](int member) -> std::string {
    if (member == 0) {
      EXPECT_STEP(::fcntl(4, F_GETPIPE_SZ) == 1 << 18);
      EXPECT_STEP(::write(4, "last", 4) == 4);
      ::close(4);
      EXPECT_STEP(read_some(5, 4) == "back");
    } else {
      EXPECT_STEP(read_some(3, 4 + big.size() + 4) == "rst," + big + "last");
      EXPECT_STEP(at_end(3));
      EXPECT_STEP((::fcntl(6, F_GETFL) & O_NONBLOCK) != 0);
      EXPECT_STEP((::fcntl(3, F_GETFL) & O_NONBLOCK) == 0);
      EXPECT_STEP(::write(6, "back", 4) == 4);
    }
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

TEST(Pipes, HalfClosedPacketsAndFifo) {
  std::string fifo = scratch_directory() + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  Job job;
  job.members = 1;
  job.before = [&](int) -> std::string {
    int p[2];
    EXPECT_STEP(::pipe(p) == 0 && ::write(p[1], "rest", 4) == 4);  // 3: bytes, then end of file
    ::close(p[1]);
    EXPECT_STEP(::pipe(p) == 0);  // 4, 5
    put(p[1], 20);
    ::close(p[0]);  // 20: no reader
    EXPECT_STEP(::pipe2(p, O_DIRECT) == 0);
    put(p[0], 21);
    put(p[1], 22);
    EXPECT_STEP(::write(22, "one", 3) == 3 && ::write(22, "three", 5) == 5);
    EXPECT_STEP(put(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK), 23) == 23);
    EXPECT_STEP(put(::open(fifo.c_str(), O_WRONLY), 24) == 24);
    EXPECT_STEP(::write(24, "fifo", 4) == 4);
    ::signal(SIGPIPE, SIG_IGN);
    return "";
  };
  job.resumed = job.restarted = [&](int) -> std::string {
    ::signal(SIGPIPE, SIG_IGN);
    EXPECT_STEP(read_some(3, 4) == "rest" && at_end(3));
    EXPECT_STEP(::write(20, "x", 1) < 0 && errno == EPIPE);
    char packet[64];
    EXPECT_STEP(::read(21, packet, sizeof(packet)) == 3);
    EXPECT_STEP(::read(21, packet, sizeof(packet)) == 5);
    EXPECT_STEP((::fcntl(22, F_GETFL) & O_DIRECT) != 0);
    EXPECT_STEP((::fcntl(23, F_GETFL) & O_NONBLOCK) != 0 && read_some(23, 4) == "fifo");
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

TEST(StandardStreams, LeadToTheRestartingCommandsOwn) {
  int out[2], in[2];
  ASSERT_EQ(::pipe(out), 0);
  ASSERT_EQ(::pipe(in), 0);
  int hold_out[2], hold_in[2], terminal = -1, terminal_end = -1;
  ASSERT_EQ(::pipe(hold_out), 0);
  ASSERT_EQ(::pipe(hold_in), 0);
  ASSERT_EQ(::openpty(&terminal, &terminal_end, nullptr, nullptr, nullptr), 0);
  Job job;
  job.members = 1;
  job.before = [&](int) -> std::string { return ""; };
  // Standard input and output are pipes of a process outside, error is a terminal, 9 a copy of output.
  job.make = []() -> std::string {
    EXPECT_STEP(::dup2(1, 9) == 9);
    return "";
  };
  job.restarted = [](int) -> std::string {
    EXPECT_STEP(read_some(0, 5) == "input");
    EXPECT_STEP(::write(1, "one ", 4) == 4 && ::write(9, "nine ", 5) == 5 && ::write(2, "two", 3) == 3);
    return "";
  };
  int saved[3] = {::dup(0), ::dup(1), ::dup(2)};
  ::dup2(in[0], 0);
  ::dup2(out[1], 1);
  ::dup2(terminal_end, 2);
  Capture capture = checkpoint(job);
  job.command = [&] {};
  ::dup2(hold_in[0], 0);
  ::dup2(hold_out[1], 1);
  ::dup2(hold_out[1], 2);
  ASSERT_EQ(::write(hold_in[1], "input", 5), 5);
  std::string words = capture.failure.empty() ? restart(job, capture.tables) : capture.failure;
  for (int i = 0; i < 3; ++i) {
    ::dup2(saved[i], i);
    ::close(saved[i]);
  }
  ::close(hold_out[1]);
  EXPECT_EQ(words, "") << (capture.refusals.empty() ? "" : capture.refusals[0]);
  EXPECT_EQ(read_some(hold_out[0], 12), "one nine two");
  for (int fd : {out[0], out[1], in[0], in[1], hold_out[0], hold_in[0], hold_in[1], terminal, terminal_end})
    ::close(fd);
}

TEST(StandardStreams, SocketToOutsideAndEpollOnIt) {
  int outside[2], reader[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, outside), 0);
  ASSERT_EQ(::pipe(reader), 0);
  Job job;
  job.members = 1;
  job.before = [](int) -> std::string {
    EXPECT_STEP(put(::epoll_create1(0), 10) == 10);
    epoll_event e{};
    e.events = EPOLLIN;
    EXPECT_STEP(::epoll_ctl(10, EPOLL_CTL_ADD, 0, &e) == 0);
    return "";
  };
  job.restarted = [](int) -> std::string {
    epoll_event e{};
    EXPECT_STEP(::epoll_wait(10, &e, 1, 5000) == 1 && read_some(0, 5) == "piped");
    return "";
  };
  int saved = ::dup(0);
  ::dup2(outside[0], 0);
  Capture capture = checkpoint(job);
  ::dup2(reader[0], 0);
  ASSERT_EQ(::write(reader[1], "piped", 5), 5);
  std::string words = capture.failure.empty() ? restart(job, capture.tables) : capture.failure;
  EXPECT_EQ(words, "");
  int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, 0);  // cannot be watched: a warning, not the end
  job.restarted = [](int) -> std::string {
    char byte;
    EXPECT_STEP(::read(0, &byte, 1) == 0);
    return "";
  };
  EXPECT_EQ(restart(job, capture.tables), "");
  ::dup2(saved, 0);
  for (int fd : {outside[0], outside[1], reader[0], reader[1], saved, null}) ::close(fd);
}

TEST(Install, MovesWhatIsInTheWayAndKeepsWhatIsAsked) {
  Job job = single(
      [](int) -> std::string {
        for (int fd = 3; fd < 40; ++fd) {  // every number a restart uses for itself is taken
          int p[2];
          if (::pipe(p) != 0) return "pipe";
          char text[16];
          int n = std::snprintf(text, sizeof(text), "%02d", fd);
          if (::write(p[1], text, static_cast<std::size_t>(n)) != n) return "write";
          ::close(p[1]);
          if (p[0] != fd) return "number";
        }
        return "";
      },
      [](int) -> std::string { return ""; });
  Capture capture = checkpoint(job);
  ASSERT_EQ(capture.failure, "");
  pid_t pid = ::fork();
  if (pid == 0) {
    ::close_range(3, ~0u, 0);
    int keep[2];
    bool ok = ::pipe(keep) == 0 && ::write(keep[1], "kept", 4) == 4;
    DescriptorPlan plan;
    ok = ok && plan.prepare(capture.tables, {0}, nullptr).ok() && plan.install(0, {&keep[0], &keep[1]}).ok();
    for (int fd = 3; ok && fd < 40; ++fd) ok = read_some(fd, 2) == std::to_string(100 + fd).substr(1) && at_end(fd);
    ok = ok && keep[0] >= 40 && keep[1] >= 40 && read_some(keep[0], 4) == "kept";
    for (int fd = 40; ok && fd < 1024; ++fd) ok = fd == keep[0] || fd == keep[1] || ::fcntl(fd, F_GETFD) < 0;
    ::_exit(ok ? 0 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace shadowib::test
