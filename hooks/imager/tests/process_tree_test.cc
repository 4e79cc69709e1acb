// Processes by number in their sessions and groups, and what is told where they cannot be there.
#include "hooks/imager/restore/process_tree.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "hooks/imager/restore/members.h"
#include "hooks/imager/restore/namespaces.h"
#include "hooks/threads/sanitizer_thread.h"

namespace shadowib {
namespace {

struct Place {
  pid_t pid, group, session;
};

// Runs `body` as the first process of a pid namespace; its words.
std::string as_first(const std::function<std::string()>& body) {
  int words[2];
  if (::pipe2(words, O_CLOEXEC) != 0) return "pipe";
  end_sanitizer_thread();
  const pid_t outer = ::fork();
  if (outer == 0) {
    ::alarm(60);
    await_single_thread();
    std::string said;
    if (const Status status = enter_namespaces({0, 0}, false); !status.ok()) {
      said = status.text();
    } else if (const pid_t inner = ::fork(); inner == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // an alarm does nothing to the first process
      const Status mounted = mount_proc();
      ::setsid();
      said = mounted.ok() ? body() : mounted.text();
      [[maybe_unused]] const ssize_t n = ::write(words[1], said.data(), said.size());
      ::_exit(0);
    } else {
      ::waitpid(inner, nullptr, 0);
    }
    [[maybe_unused]] const ssize_t n = ::write(words[1], said.data(), said.size());
    ::_exit(0);
  }
  ::close(words[1]);
  std::string said(4096, '\0');
  std::size_t got = 0;
  for (ssize_t n; (n = ::read(words[0], said.data() + got, said.size() - got)) > 0;)
    got += static_cast<std::size_t>(n);
  ::close(words[0]);
  ::waitpid(outer, nullptr, 0);
  said.resize(got);
  return said;
}

class Placed {
 public:
  explicit Placed(const std::vector<Place>& places) {
    if (::pipe2(hold_, O_CLOEXEC) != 0 || ::pipe2(told_, O_CLOEXEC) != 0) return;
    std::vector<PlacedProcess> processes;
    for (const Place& p : places) processes.push_back({p.pid, p.group, p.session, [this] { tell(); }});
    status = place_processes(processes, hold_[0], hold_[1]);
    for (std::size_t i = 0; status.ok() && i < places.size(); ++i) {
      Place p{};
      if (::read(told_[0], &p, sizeof(p)) == sizeof(p)) found[p.pid] = {p.group, p.session};
    }
  }
  // False if one of the stand-ins does not end by itself.
  bool release(const std::vector<pid_t>& stand_ins) {
    ::close(hold_[1]);
    for (const pid_t pid : stand_ins)
      if (int wait_status = -1; ::waitpid(pid, &wait_status, 0) != pid || wait_status != 0) return false;
    return true;
  }

  // Those who end when the group gets a signal, those who have ended before left out.
  static std::set<pid_t> ended_by(pid_t group, std::size_t count) {
    std::set<pid_t> ended;
    ::kill(-group, SIGTERM);
    while (ended.size() < count) {
      int status = 0;
      const pid_t pid = ::waitpid(-1, &status, 0);
      if (pid < 0) break;
      if (WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) ended.insert(pid);
    }
    return ended;
  }

  Status status;
  std::map<pid_t, std::pair<pid_t, pid_t>> found;  // group and session, as each process says

 private:
  void tell() {
    const Place p{::getpid(), ::getpgrp(), ::getsid(0)};
    [[maybe_unused]] const ssize_t n = ::write(told_[1], &p, sizeof(p));
    for (;;) ::pause();
  }

  int hold_[2] = {-1, -1}, told_[2] = {-1, -1};
};

#define EXPECT_INSIDE(condition)                                                 \
  do {                                                                           \
    if (!(condition)) return std::to_string(__LINE__) + ": not so: " #condition; \
  } while (0)

TEST(Placement, SessionsAndGroupsWhoseLeadersAreThereOrNot) {
  EXPECT_EQ(as_first([]() -> std::string {
              Placed placed({{100, 100, 100},
                             {101, 100, 100},
                             {102, 102, 100},
                             {103, 102, 100},
                             {201, 200, 200},  // who leads them both is not there
                             {301, 310, 300},
                             {302, 310, 300},  // nor who leads the one or the other
                             {401, 1, 1},
                             {402, 0, 0}});
              if (!placed.status.ok()) return placed.status.text();
              using At = std::pair<pid_t, pid_t>;
              EXPECT_INSIDE((placed.found[100] == At{100, 100} && placed.found[101] == At{100, 100}));
              EXPECT_INSIDE((placed.found[102] == At{102, 100} && placed.found[103] == At{102, 100}));
              EXPECT_INSIDE((placed.found[201] == At{200, 200}));
              EXPECT_INSIDE((placed.found[301] == At{310, 300} && placed.found[302] == At{310, 300}));
              EXPECT_INSIDE((placed.found[401] == At{1, 1} && placed.found[402] == At{1, 1}));
              EXPECT_INSIDE(placed.release({200, 300, 310}));
              EXPECT_INSIDE(Placed::ended_by(310, 2) == (std::set<pid_t>{301, 302}));
              EXPECT_INSIDE(Placed::ended_by(100, 2) == (std::set<pid_t>{100, 101}));
              EXPECT_INSIDE(Placed::ended_by(200, 1) == (std::set<pid_t>{201}));
              EXPECT_INSIDE(::getpgid(102) == 102 && ::getpgid(103) == 102 && ::getpgid(401) == 1);
              return "";
            }),
            "");
}

struct Seen {
  pid_t pid, foreground;
  bool controlled;
};

// A terminal whose session's leader is not there, with a foreground that is not the leader's, and one who has let go.
TEST(Placement, ATerminalControlsItsSession) {
  EXPECT_EQ(as_first([]() -> std::string {
              const int unlocked = 0, master = ::open("/dev/ptmx", O_RDWR | O_NOCTTY);
              ::ioctl(master, TIOCSPTLCK, &unlocked);
              const int slave = ::ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY);
              EXPECT_INSIDE(master >= 0 && slave >= 0);
              int hold[2], go[2], told[2];
              for (int* p : {hold, go, told}) EXPECT_INSIDE(::pipe2(p, O_CLOEXEC) == 0);
              const auto tell = [&] {
                char byte;  // when all are placed, as members do
                [[maybe_unused]] const ssize_t released = ::read(go[0], &byte, 1);
                Seen seen{::getpid(), ::tcgetpgrp(slave), false};
                const int own = ::open("/dev/tty", O_RDWR | O_NOCTTY);
                seen.controlled = own >= 0;
                [[maybe_unused]] const ssize_t n = ::write(told[1], &seen, sizeof(seen));
                for (;;) ::pause();
              };
              const Status status = place_processes({{101, 100, 100, tell, slave, 102},
                                                     {102, 102, 100, tell, slave, 102},
                                                     {103, 103, 100, tell},
                                                     {200, 200, 200, tell}},
                                                    hold[0], hold[1]);
              if (!status.ok()) return status.text();
              ::close(hold[1]);
              for (int i = 0; i < 4; ++i) {
                Seen seen{};
                EXPECT_INSIDE(::write(go[1], "", 1) == 1);
                EXPECT_INSIDE(::read(told[0], &seen, sizeof(seen)) == sizeof(seen));
                const bool belongs = seen.pid == 101 || seen.pid == 102;
                EXPECT_INSIDE(seen.controlled == belongs);
                EXPECT_INSIDE(seen.foreground == (belongs ? 102 : -1));
              }
              EXPECT_INSIDE(::kill(100, 0) == 0);  // its end would hang the terminal up
              int end = 0;
              EXPECT_INSIDE(::write(master, "\3", 1) == 1 && ::waitpid(-1, &end, 0) == 102);
              EXPECT_INSIDE(WIFSIGNALED(end) && WTERMSIG(end) == SIGINT);
              return "";
            }),
            "");
}

struct Relative {
  pid_t pid, parent, group, session;
  int first_end, second_end;  // of the children that had ended, as waited for; -1: none
  bool told_again;            // of their ends, by a signal
};

// A child in its parent's session and one in its own, with a child and a group there; and some that had ended, one of
// which leads a group.
TEST(Placement, ChildrenAreTheirParents) {
  EXPECT_EQ(as_first([]() -> std::string {
              int hold[2], told[2];
              EXPECT_INSIDE(::pipe2(hold, O_CLOEXEC) == 0 && ::pipe2(told, O_CLOEXEC) == 0);
              sigset_t all;
              ::sigfillset(&all);
              ::sigprocmask(SIG_SETMASK, &all, nullptr);
              const auto tell = [&] {
                Relative r{::getpid(), ::getppid(), ::getpgrp(), ::getsid(0), -1, -1, false};
                sigset_t pending;
                r.told_again = ::sigpending(&pending) != 0 || ::sigismember(&pending, SIGCHLD) == 1;
                int* const ends[] = {&r.first_end, &r.second_end};
                for (int i = 0; i < 2; ++i)  // by their groups
                  if (::waitpid(i == 0 ? -110 : -100, ends[i], WNOHANG) != 110 + i) *ends[i] = -1;
                [[maybe_unused]] const ssize_t n = ::write(told[1], &r, sizeof(r));
                for (;;) ::pause();
              };
              std::vector<PlacedProcess> processes{
                  {100, 100, 100, tell}, {101, 101, 100, tell}, {102, 102, 102, tell},
                  {103, 103, 102, tell}, {104, 110, 100, tell}, {105, 100, 100, tell},
                  {200, 200, 200, tell}, {201, 0, 0, tell},     {202, 0, 0, tell}};
              const pid_t parents[] = {0, 100, 101, 102, 100, 0, 0, 0, 201};
              for (std::size_t i = 0; i < processes.size(); ++i) processes[i].parent = parents[i];
              processes[0].ended = {{110, 110, 7 << 8}, {111, 100, SIGKILL}};
              processes[8].ended = {{112, 112, 0}};
              const Status status = place_processes(processes, hold[0], hold[1]);
              if (!status.ok()) return status.text();
              ::close(hold[1]);
              std::map<pid_t, Relative> found;
              for (Relative r{}; found.size() < processes.size(); found[r.pid] = r)
                EXPECT_INSIDE(::read(told[0], &r, sizeof(r)) == sizeof(r));
              for (const PlacedProcess& p : processes) {
                const Relative& r = found[p.pid];
                const bool in_callers = p.session == 0;
                if (r.parent != (p.parent == 0 ? 1 : p.parent) || r.group != (in_callers ? 1 : p.group) ||
                    r.session != (in_callers ? 1 : p.session) || r.told_again)
                  return std::to_string(p.pid) + ": parent " + std::to_string(r.parent) + ", group " +
                         std::to_string(r.group) + ", session " + std::to_string(r.session) +
                         (r.told_again ? ", told again" : "");
                EXPECT_INSIDE(r.first_end == (p.pid == 100 ? 7 << 8 : -1));
                EXPECT_INSIDE(r.second_end == (p.pid == 100 ? SIGKILL : -1));
              }
              return "";
            }),
            "");
}

// Or a parent might be waited for that is not there.
TEST(Placement, AnImageAndItsTableHaveToAgree) {
  MemberImage member{};
  member.image.process.pid = 100;
  member.image.process.process_group = member.image.process.session = 90;
  const auto placed = [&member](const Family& family) {
    PlacedProcess process{};
    return place_of(member, {{0, family}}, &process).code();
  };
  EXPECT_EQ(placed({100, 90, 90, 0, {}}), Code::kOk);
  EXPECT_EQ(placed({100, 0, 0, 0, {}}), Code::kOk) << "a table from before";
  EXPECT_EQ(placed({101, 90, 90, 0, {}}), Code::kCorrupt);
  EXPECT_EQ(placed({100, 91, 90, 0, {}}), Code::kCorrupt);
  EXPECT_EQ(placed({100, 90, 91, 0, {}}), Code::kCorrupt);
}

TEST(Placement, WhoCannotBeWhereItWasIsNamed) {
  EXPECT_EQ(as_first([]() -> std::string {
              std::vector<PlacedProcess> processes{{100, 100, 100, [] {}}};
              processes[0].parent = 99;
              return place_processes(processes, -1, -1).text();
            }),
            "process 100 cannot be restored without its parent, process 99");
  EXPECT_EQ(as_first([]() -> std::string {  // among the children of another, too
              std::vector<PlacedProcess> processes{{100, 100, 100, [] { ::pause(); }}, {1 << 23, 100, 100, [] {}}};
              processes[1].parent = 100;
              int hold[2];
              EXPECT_INSIDE(::pipe2(hold, O_CLOEXEC) == 0);
              const std::string said = place_processes(processes, hold[0], hold[1]).text();
              return said.substr(0, said.find(':'));
            }),
            "cannot make a process with the recorded pid 8388608");

  EXPECT_EQ(as_first([]() -> std::string {  // a group is of one session
              return Placed({{100, 100, 100}, {500, 100, 0}}).status.text();
            }),
            "process 500 cannot be in the process group 100 as it was: Operation not permitted");
  EXPECT_EQ(as_first([]() -> std::string {  // made by the session's leader, not by the first process
              const std::string said = Placed({{100, 100, 100}, {1 << 23, 100, 100}}).status.text();
              return said.substr(0, said.find(':'));
            }),
            "cannot make a process with the recorded pid 8388608");
}

// As the rehearsal does for a process's threads: nothing is forked, and each number is held until the process ends.
TEST(Placement, ThreadsTakeNumbers) {
  EXPECT_EQ(as_first([]() -> std::string {
              sigset_t all;
              ::sigfillset(&all);
              ::sigprocmask(SIG_SETMASK, &all, nullptr);
              std::vector<pid_t> numbers;
              for (pid_t number = 1000; number < 1500; ++number) numbers.push_back(number);
              if (const Status taken = take_numbers(numbers); !taken.ok()) return taken.text();
              for (const pid_t number : numbers)
                EXPECT_INSIDE(::access(("/proc/self/task/" + std::to_string(number)).c_str(), F_OK) == 0);
              EXPECT_INSIDE(::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD);
              const std::string said = take_numbers({1600, 1499}).text();
              return said.substr(0, said.find(':'));
            }),
            "cannot make a thread with the recorded pid 1499");
}

}  // namespace
}  // namespace shadowib
