#include "hooks/imager/restore/first_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <set>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/restore/meeting.h"
#include "hooks/imager/restore/member.h"
#include "hooks/imager/restore/namespaces.h"
#include "hooks/imager/restore/process_tree.h"
#include "hooks/imager/restore/roll_back.h"
#include "hooks/job/phase.h"
#include "hooks/threads/fault.h"

namespace shadowib {
namespace {

class Supervisor {
 public:
  Supervisor(const OpenedSet& set, const RestartPart& part, const RestartOptions& options, SharedMemoryPlan* memory,
             PageStreams* streams, int command_fd)
      : set_(set),
        members_(part),
        options_(options),
        memory_(*memory),
        streams_(*streams),
        meeting_(options.job),
        command_fd_(command_fd) {}

  int run() {
    ::signal(SIGCHLD, SIG_DFL);  // or, ignored by who has started the command, all ends would go unseen
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
    sigset_t child;
    ::sigemptyset(&child);
    ::sigaddset(&child, SIGCHLD);
    child_fd_ = ::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    const Status status = restore();
    if (!status.ok()) {
      if (begun_ || !options_.begin) meeting_.abort(status);  // before, nobody knows of the restart
      send(SupervisorMessage::kStatus, 0, 0, status);
      return 1;  // pid 1 ends: the kernel kills whatever was made
    }
    send(SupervisorMessage::kRunning, 0, 0, {});
    serve();
    return 0;
  }

 private:
  struct Channel {
    int status_read = -1, status_write = -1, go_read = -1, go_write = -1;
    bool restored = false;
    pid_t parent = 0;  // the member whose child it is; 0: no member's, and so this process's
    int pidfd = -1;    // of a child of a member, until it has ended
    bool ended = false;
  };

  void send(SupervisorMessage::Kind kind, std::uint32_t member, int value, const Status& status) {
    const SupervisorMessage message{kind, member, value, status};
    while (::send(command_fd_, &message, sizeof(message), MSG_NOSIGNAL) < 0 && errno == EINTR) {
    }
  }

  Status restore() {
    SHADOWIB_TRY(mount_proc());
    // Without privilege in the first namespace from Linux 5.9 on. Where it cannot be had members make their threads
    // with privilege and let each drop it.
    last_pid_ = ::open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
    SHADOWIB_TRY(fault_point(Phase::kPlace));
    if (has_pseudo_terminals(set_.tables)) mount_terminals();
    if (!set_.tables.empty()) {
      plan_ = std::make_unique<DescriptorPlan>();
      SHADOWIB_TRY(memory_.prepare_in_part(members_));
      SHADOWIB_TRY(system_v_.prepare(set_, members_));
      const auto memory = [this](std::uint32_t member, std::uint32_t segment) {
        SharedMemoryPlan::Backing backing;
        return memory_.find(member, segment, &backing) ? backing.fd : -1;
      };
      SHADOWIB_TRY(plan_->prepare(set_.tables, indices_of(members_), &meeting_, memory));
    }
    SHADOWIB_TRY(fault_point(Phase::kPlan));
    SHADOWIB_TRY(make_processes());
    SHADOWIB_TRY(await_reports());
    SHADOWIB_TRY(fault_point(Phase::kProcesses));
    SHADOWIB_TRY(await_beginning());
    SHADOWIB_TRY(memory_.finish());
    if (plan_ != nullptr) plan_->release();
    SHADOWIB_TRY(watch_children_of_members());
    if (!members_await_cut(set_))
      for (const ChangedFile& file : options_.cut) SHADOWIB_TRY(cut_file(file));
    for (Channel& c : channels_) {
      const char go = 1;
      if (::write(c.go_write, &go, 1) != 1) return Status(Code::kInternal, errno, "cannot release a restored member");
      ::close(c.go_write);
      ::close(c.status_read);
    }
    ::close(hold_[1]);
    if (last_pid_ >= 0) ::close(last_pid_);
    return {};
  }

  Status make_processes() {
    if (::pipe2(hold_, O_CLOEXEC) != 0) return Status(Code::kIo, errno, "cannot make a pipe");
    channels_.resize(members_.size());
    for (Channel& c : channels_) {
      int status[2], go[2];
      if (::pipe2(status, O_CLOEXEC) != 0 || ::pipe2(go, O_CLOEXEC) != 0)
        return Status(Code::kIo, errno, "cannot make a pipe; raise the limit on open files (ulimit -n)");
      c = {status[0], status[1], go[0], go[1]};
    }
    std::map<std::uint32_t, Family> families;
    SHADOWIB_TRY(read_families(set_.tables, &families));
    std::vector<PlacedProcess> processes;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      PlacedProcess placed{0, 0, 0, [this, i] { start_member(i); }};
      SHADOWIB_TRY(place_of(*members_[i], families, &placed));
      channels_[i].parent = placed.parent;
      if (plan_ != nullptr)
        placed.terminal_fd = plan_->controlling_terminal(members_[i]->image.header.member, &placed.foreground);
      processes.push_back(std::move(placed));
    }
    Status status = place_processes(processes, hold_[0], hold_[1]);
    // Kept open here they would hide a member's death.
    for (Channel& c : channels_) {
      ::close(c.status_write);
      ::close(c.go_read);
    }
    streams_.close_all();
    return status;
  }

  [[noreturn]] void start_member(std::size_t index) {
    if (channels_[index].parent == 0) ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a member may end before its children
    for (std::size_t i = 0; i < channels_.size(); ++i) {
      ::close(channels_[i].status_read);
      ::close(channels_[i].go_write);
      if (i == index) continue;
      ::close(channels_[i].status_write);
      ::close(channels_[i].go_read);
    }
    const std::uint32_t member = members_[index]->image.header.member;
    for (const MemberImage& m : set_.members)
      if (&m != members_[index]) ::close(m.fd);
    streams_.close_others(member);
    ::close(hold_[0]);
    ::close(command_fd_);
    ::close(child_fd_);
    if (last_pid_ >= 0) ::close(last_pid_);
    JobInfo job = options_.job;
    job.member = member;
    job.awaits_cut = options_.cut.empty() && !options_.others_cut ? 0 : 1;
    become_member({.image = &members_[index]->image,
                   .job = &job,
                   .plan = plan_.get(),
                   .memory = &memory_,
                   .system_v = &system_v_,
                   .patches = &members_[index]->patches,
                   .image_fd = members_[index]->fd,
                   .status_fd = channels_[index].status_write,
                   .go_fd = channels_[index].go_read,
                   .stream_fd = streams_.of(member),
                   .numbers_are_given = last_pid_ >= 0});
  }

  // Every member tells once how it went; a pipe that closes without a word means it died.
  Status await_reports() {
    for (std::size_t left = channels_.size(); left > 0;) {
      std::vector<pollfd> polls;
      for (const Channel& c : channels_)
        if (!c.restored) polls.push_back({c.status_read, POLLIN, 0});
      polls.push_back({command_fd_, POLLIN | POLLRDHUP, 0});
      if (::poll(polls.data(), polls.size(), -1) < 0 && errno != EINTR)
        return Status(Code::kInternal, errno, "poll failed in the supervisor");
      if ((polls.back().revents & (POLLHUP | POLLRDHUP)) != 0)
        return Status(Code::kAborted, 0, "the restart command is gone");
      for (const pollfd& p : polls) {
        if (p.fd == command_fd_ || p.revents == 0) continue;
        for (std::size_t i = 0; i < channels_.size(); ++i)
          if (channels_[i].status_read == p.fd) {
            SHADOWIB_TRY(take_report(i));
            channels_[i].restored = true;
            --left;
          }
      }
    }
    return {};
  }

  // The job is what it was until all content is checked.
  Status await_beginning() {
    if (!options_.begin) return {};
    send(SupervisorMessage::kChecked, 0, 0, {});
    ForwardedSignal forwarded{};
    for (;;) {
      const ssize_t n = ::recv(command_fd_, &forwarded, sizeof(forwarded), 0);
      if (n < 0 && errno == EINTR) continue;
      if (n != sizeof(forwarded)) return Status(Code::kAborted, 0, "the restart command is gone");
      begun_ = forwarded.signal == 0;
      if (begun_) return {};
      early_.push_back(forwarded);
    }
  }

  Status take_report(std::size_t i) {
    const LoadedImage& image = members_[i]->image;
    RestoreReport report{};
    ssize_t n;
    // One member at a time has the say on who is numbered next, until it has all its threads. Processes do not come
    // between: they are made with the numbers they are to have.
    while ((n = ::read(channels_[i].status_read, &report, sizeof(report))) == static_cast<ssize_t>(sizeof(report)) &&
           report.step == RestoreStep::kNumber)
      SHADOWIB_TRY(give_number(channels_[i], report.object));
    if (n == static_cast<ssize_t>(sizeof(report))) return report_status(report, image);
    int wait_status = 0;
    const pid_t died = ::waitpid(image.process.pid, &wait_status, 0);
    if (died < 0)
      return Status::of(Code::kInternal, 0, "member %u (pid %d) died while it was restored", image.header.member,
                        image.process.pid);
    return Status::of(Code::kInternal, 0, "member %u (pid %d) died while it was restored (%s %d)",
                      image.header.member, image.process.pid, WIFSIGNALED(wait_status) ? "signal" : "exit status",
                      WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : WEXITSTATUS(wait_status));
  }

  Status give_number(const Channel& channel, std::uint64_t tid) const {
    const std::string last = std::to_string(tid - 1);
    const char given = 1;
    if (::pwrite(last_pid_, last.data(), last.size(), 0) == static_cast<ssize_t>(last.size()) &&
        ::write(channel.go_write, &given, 1) == 1)
      return {};
    return Status::of(Code::kPermission, errno,
                      "cannot choose the number of thread %lu: /proc/sys/kernel/ns_last_pid", tid);
  }

  // Before they run: a number of theirs may be another's later.
  Status watch_children_of_members() {
    for (std::size_t i = 0; i < channels_.size(); ++i) {
      if (channels_[i].parent == 0) continue;
      channels_[i].pidfd = static_cast<int>(::syscall(SYS_pidfd_open, members_[i]->image.process.pid, 0));
      if (channels_[i].pidfd < 0)
        return Status::of(Code::kInternal, errno, "cannot watch process %d", members_[i]->image.process.pid);
    }
    return {};
  }

  void serve() {
    running_ = members_.size();
    for (const ForwardedSignal& signal : early_) deliver(signal);
    while (running_ > 0) {
      std::vector<pollfd> polls{{command_fd_, POLLIN, 0}, {child_fd_, POLLIN, 0}};
      for (const Channel& c : channels_) polls.push_back({c.pidfd, POLLIN, 0});
      if (::poll(polls.data(), polls.size(), -1) < 0 && errno != EINTR) return;
      if ((polls[0].revents & (POLLHUP | POLLERR)) != 0) return;
      if ((polls[0].revents & POLLIN) != 0 && !forward_signal()) return;
      signalfd_siginfo info[8];
      while (::read(child_fd_, info, sizeof(info)) > 0) {
      }
      int wait_status = 0;
      for (pid_t pid; (pid = ::waitpid(-1, &wait_status, WNOHANG)) > 0;)
        for (std::size_t i = 0; i < members_.size(); ++i)
          if (members_[i]->image.process.pid == pid && !channels_[i].ended)
            note_end(i, SupervisorMessage::kExited, wait_status);
      for (std::size_t i = 0; i < channels_.size(); ++i)
        if (polls[i + 2].revents != 0 && !channels_[i].ended) note_end_of_child(i);
    }
  }

  // If its parent has ended before it is ours, and waited for above; else its parent, which lives, is to wait for it,
  // and nobody else knows how it ended.
  void note_end_of_child(std::size_t i) {
    siginfo_t info{};
    const bool ours =
        ::waitid(P_PIDFD, static_cast<id_t>(channels_[i].pidfd), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
    if (!ours) note_end(i, SupervisorMessage::kLeft, 0);
  }

  void note_end(std::size_t i, SupervisorMessage::Kind kind, int wait_status) {
    const std::uint32_t member = members_[i]->image.header.member;
    if (kind == SupervisorMessage::kLeft)
      meeting_.member_left(member);
    else
      meeting_.member_ended(member, wait_status);
    send(kind, member, wait_status, {});
    channels_[i].ended = true;
    if (channels_[i].pidfd >= 0) ::close(channels_[i].pidfd);
    channels_[i].pidfd = -1;
    --running_;
  }

  bool forward_signal() {
    ForwardedSignal forwarded{};
    if (::recv(command_fd_, &forwarded, sizeof(forwarded), 0) != sizeof(forwarded)) return false;
    deliver(forwarded);
    return true;
  }

  void deliver(const ForwardedSignal& forwarded) {
    std::set<pid_t> groups;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (channels_[i].ended) continue;
      const pid_t pid = members_[i]->image.process.pid, group = ::getpgid(pid);
      if (forwarded.to_groups == 0)
        ::kill(pid, forwarded.signal);
      else if (group > 0 && groups.insert(group).second)
        ::kill(group == ::getpgrp() ? 0 : -group, forwarded.signal);  // -1 would be everybody
    }
  }

  const OpenedSet& set_;
  const RestartPart& members_;
  const RestartOptions& options_;
  SharedMemoryPlan& memory_;
  PageStreams& streams_;
  SystemVPlan system_v_;
  ExchangeMeeting meeting_;
  int command_fd_, child_fd_ = -1, last_pid_ = -1;
  int hold_[2] = {-1, -1};
  std::size_t running_ = 0;
  bool begun_ = false;  // by the command, which was asked to
  std::vector<Channel> channels_;
  std::vector<ForwardedSignal> early_;  // that came before the members ran
  std::unique_ptr<DescriptorPlan> plan_;
};

}  // namespace

int supervise(const OpenedSet& set, const RestartPart& part, const RestartOptions& options, SharedMemoryPlan* memory,
              PageStreams* streams, int command_fd) {
  // Out of the command's session: what the terminal sends to its foreground group comes once, through the command.
  ::setsid();
  Supervisor supervisor(set, part, options, memory, streams, command_fd);
  return supervisor.run();
}

}  // namespace shadowib
