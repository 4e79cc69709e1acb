#include "hooks/imager/descriptors/tests/test_job.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/close_range.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "hooks/imager/descriptors.h"
#include "hooks/threads/sanitizer_thread.h"

namespace shadowib::test {
namespace {

constexpr unsigned kPatience = 30;  // seconds: a process that hangs ends by SIGALRM
// [0] members meet; [1] members and the restart command, once that has released its copies.
pthread_barrier_t* g_barrier = nullptr;

// A network for this process alone: nobody else takes a port between a checkpoint and its restart. A user who may not
// make one has the machine's.
class OwnNetwork final : public testing::Environment {
 public:
  void SetUp() override {
    if (::unshare(CLONE_NEWNET) != 0) return;
    const int any = ::socket(AF_INET, SOCK_DGRAM, 0);
    ifreq loopback{};
    std::strcpy(loopback.ifr_name, "lo");
    loopback.ifr_flags = IFF_UP;
    ASSERT_EQ(::ioctl(any, SIOCSIFFLAGS, &loopback), 0);
    ::close(any);
  }
};
[[maybe_unused]] testing::Environment* const g_network = testing::AddGlobalTestEnvironment(new OwnNetwork);

struct Directory {
  std::string path;
  pid_t owner = ::getpid();
  Directory() {
    char name[] = "/tmp/shadowib-descriptors-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Directory() {
    if (::getpid() == owner) std::filesystem::remove_all(path);
  }
};

void new_barrier(int members) {
  if (g_barrier == nullptr)
    g_barrier = static_cast<pthread_barrier_t*>(
        ::mmap(nullptr, 2 * sizeof(*g_barrier), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  pthread_barrierattr_t attributes;
  ::pthread_barrierattr_init(&attributes);
  ::pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_barrier_init(&g_barrier[0], &attributes, static_cast<unsigned>(members));
  ::pthread_barrier_init(&g_barrier[1], &attributes, static_cast<unsigned>(members) + 1);
}

std::string note(const std::string& what, int member) {
  return scratch_directory() + "/" + what + "." + std::to_string(member);
}

void write_note(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::string read_note(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Runs `body` in a child; its words, or how it ended.
template <typename Body>
std::string in_child(int number, Body body) {
  std::string words = note("words", number);
  std::filesystem::remove(words);
  end_sanitizer_thread();
  pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(kPatience);
    write_note(words, body());
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (status != 0) return "child ended with wait status " + std::to_string(status);
  return read_note(words);
}

// Forks a member; its words come by a note.
template <typename Body>
pid_t start_member(int member, Body body) {
  pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::alarm(kPatience);
  std::string words = body();
  write_note(note("member", member), words);
  ::_exit(words.empty() ? 0 : 1);
}

std::string await(const std::vector<pid_t>& members) {
  std::string all;
  for (std::size_t i = 0; i < members.size(); ++i) {
    int status = 0;
    ::waitpid(members[i], &status, 0);
    if (status != 0)
      all += "member " + std::to_string(i) + " (status " + std::to_string(status) +
             "): " + read_note(note("member", static_cast<int>(i))) + "\n";
  }
  return all;
}

std::string play_original(const Job& job, int member) {
  std::string words = job.before(member);
  if (!words.empty()) return words;
  meet();
  Status status = prepare_descriptors();
  if (!status.ok()) return status.text();
  meet();
  std::string table;
  status = capture_descriptors(static_cast<std::uint32_t>(member), &table);
  if (status.ok())
    write_note(note("table", member), table);
  else
    write_note(note("refusal", member), status.text());
  if (status.error() == EAGAIN) write_note(note("passing", member), "yes");
  meet();
  std::map<std::uint32_t, std::string> tables, duties;
  for (int i = 0; i < job.members; ++i)
    if (std::string other = read_note(note("table", i)); !other.empty())
      tables[static_cast<std::uint32_t>(i)] = std::move(other);
  meet();
  if (job.compares) status = assign_comparisons(tables, &duties);
  if (status.ok()) status = add_comparisons(compare_files(duties[static_cast<std::uint32_t>(member)]), &table);
  if (status.ok()) write_note(note("table", member), table);
  meet();
  if (job.resumed) words = job.resumed(member);
  meet();
  linger_for_kill();
  return words;
}

std::string play_all_originals(const Job& job) {
  ::close_range(3, ~0u, 0);
  if (job.make)
    if (std::string words = job.make(); !words.empty()) return words;
  std::vector<pid_t> members;
  for (int i = 0; i < job.members; ++i) members.push_back(start_member(i, [&] { return play_original(job, i); }));
  ::close_range(3, ~0u, 0);
  return await(members);
}

// A user and pid namespace; the next child is pid 1 there, with a /proc of its own.
std::string leave_privileges() {
  constexpr unsigned kNobody = 65534;
  if (::geteuid() == 0 && (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) return "setuid";
  ::prctl(PR_SET_DUMPABLE, 1);
  if (::unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS) != 0) return "SKIP: no user namespaces here";
  return "";
}

// Files of the scratch directory.
class FileMeeting final : public Meeting {
 public:
  // What an earlier one was told would send its readers astray.
  static void forget() {
    for (const auto& entry : std::filesystem::directory_iterator(scratch_directory()))
      if (entry.path().filename().string().starts_with("meet-")) std::filesystem::remove(entry.path());
  }
  Status publish(const std::string& name, const std::string& value) override {
    write_note(path(name) + ".new", value);
    return std::rename((path(name) + ".new").c_str(), path(name).c_str()) == 0 ? Status()
                                                                               : Status(Code::kIo, errno, "");
  }
  Status await(const std::string& name, std::string* value) override {
    while (!std::filesystem::exists(path(name))) ::usleep(1000);  // the rig's alarm bounds it
    *value = read_note(path(name));
    return {};
  }

 private:
  static std::string path(const std::string& name) { return scratch_directory() + "/meet-" + name; }
};

std::string play_parts(const Job& job, const std::map<std::uint32_t, std::string>& tables) {
  FileMeeting::forget();
  std::vector<pid_t> members;
  for (int i = 0; i < job.members; ++i)
    members.push_back(start_member(i, [&]() -> std::string {
      FileMeeting meeting;
      DescriptorPlan plan;
      const auto index = static_cast<std::uint32_t>(i);
      Status status = plan.prepare(tables, {index}, &meeting);
      if (status.ok()) status = plan.install(index, {});
      ::pthread_barrier_wait(&g_barrier[1]);
      if (!status.ok()) return status.text();
      return job.restarted(i);
    }));
  ::pthread_barrier_wait(&g_barrier[1]);
  return await(members);
}

std::string play_restart(const Job& job, const std::map<std::uint32_t, std::string>& tables) {
  ::close_range(3, ~0u, 0);
  if (job.command) job.command();
  if (job.apart) return play_parts(job, tables);
  DescriptorPlan plan;
  std::set<std::uint32_t> all;
  for (const auto& [member, table] : tables) all.insert(member);
  Status status = plan.prepare(tables, all, nullptr);
  if (!status.ok()) return status.text();
  std::vector<pid_t> members;
  for (int i = 0; i < job.members; ++i)
    members.push_back(start_member(i, [&]() -> std::string {
      Status installed = plan.install(static_cast<std::uint32_t>(i), {});
      ::pthread_barrier_wait(&g_barrier[1]);
      if (!installed.ok()) return installed.text();
      return job.restarted(i);
    }));
  plan.release();  // before any member runs: a copy here would keep a half closed pipe open
  ::pthread_barrier_wait(&g_barrier[1]);
  return await(members);
}

std::string play_in_namespaces(const Job& job, const std::map<std::uint32_t, std::string>& tables) {
  // Notes are written by a user who does not own the directory.
  std::filesystem::permissions(scratch_directory(), std::filesystem::perms::all);
  await_single_thread();
  if (std::string words = leave_privileges(); !words.empty()) return words;
  std::string words = note("words", 1);
  pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(kPatience);
    ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    ::mount("proc", "/proc", "proc", 0, nullptr);
    write_note(words, ::getpid() == 1 ? play_restart(job, tables) : "not pid 1");
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status != 0 ? "pid 1 ended with wait status " + std::to_string(status) : read_note(words);
}

}  // namespace

void meet() { ::pthread_barrier_wait(g_barrier); }

const std::string& scratch_directory() {
  static Directory directory;
  return directory.path;
}

bool start_outsider(const std::function<void()>& body) {
  const pid_t parent = ::fork();
  if (parent == 0) {
    if (::fork() == 0) body();
    ::_exit(0);
  }
  return parent > 0 && ::waitpid(parent, nullptr, 0) == parent;
}

Capture checkpoint(const Job& job) {
  for (int i = 0; i < job.members; ++i)
    for (const char* what : {"table", "refusal", "passing", "member"}) std::filesystem::remove(note(what, i));
  new_barrier(job.members);
  Capture capture;
  capture.failure = in_child(0, [&] { return play_all_originals(job); });
  for (int i = 0; i < job.members; ++i) {
    auto member = static_cast<std::uint32_t>(i);
    if (std::string table = read_note(note("table", i)); !table.empty()) capture.tables[member] = table;
    if (std::string refusal = read_note(note("refusal", i)); !refusal.empty()) capture.refusals[member] = refusal;
    if (!read_note(note("passing", i)).empty()) capture.passing.insert(member);
  }
  return capture;
}

std::string restart(const Job& job, const std::map<std::uint32_t, std::string>& tables) {
  Status matched = match_descriptors(tables);
  if (!matched.ok()) return matched.text();
  new_barrier(job.members);
  return in_child(0, [&] { return job.unprivileged ? play_in_namespaces(job, tables) : play_restart(job, tables); });
}

std::string checkpoint_and_restart(const Job& job) {
  Capture capture = checkpoint(job);
  if (!capture.failure.empty()) return "original: " + capture.failure;
  for (const auto& [member, text] : capture.refusals) return "refused: " + text;
  std::string words = restart(job, capture.tables);
  return words.empty() ? "" : "restarted: " + words;
}

int put(int fd, int to) {
  if (fd == to) return to;
  ::dup3(fd, to, (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0);
  ::close(fd);
  return to;
}

std::string read_some(int fd, std::size_t bytes) {
  std::string text(bytes, '\0');
  std::size_t got = 0;
  while (got < bytes) {
    pollfd p{fd, POLLIN, 0};
    if (::poll(&p, 1, 5000) <= 0) break;
    ssize_t n = ::read(fd, text.data() + got, bytes - got);
    if (n <= 0) break;
    got += static_cast<std::size_t>(n);
  }
  text.resize(got);
  return text;
}

bool at_end(int fd) {
  pollfd p{fd, POLLIN, 0};
  char byte;
  return ::poll(&p, 1, 5000) == 1 && ::read(fd, &byte, 1) == 0;
}

}  // namespace shadowib::test
