// System V semaphores, message queues, and segments that nobody has attached.
//
// The kernel does not list who uses them. A process uses those it was the last to operate on, those that would change
// at its end (SEM_UNDO), and those that its user has made since it started and that nobody has touched.
#include <signal.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "hooks/imager/descriptors/capture/capture.h"
#include "hooks/imager/descriptors/semaphore_undo.h"
#include "hooks/raw/proc.h"

#ifndef MSG_COPY
#define MSG_COPY 040000
#endif

namespace shadowib::descriptors {
namespace {

Status refuse_object(const char* what, int id, const char* why, int error = 0) {
  return Status::of(Code::kRefused, error, "System V %s %d of pid %d cannot be checkpointed: %s", what, id,
                    ::getpid(), why);
}

// A line of /proc/sysvipc.
struct Line {
  std::int64_t fields[16] = {};
};

// Lines without the first, which has the names. Empty if the kernel has no System V IPC. Keys are decimal, modes
// octal.
std::vector<Line> read_lines(const char* path) {
  std::vector<Line> lines;
  std::string text;
  if (read_proc_file(path, &text) != 0) return lines;
  for (std::size_t at = text.find('\n'); at != std::string::npos && at + 1 < text.size();
       at = text.find('\n', at + 1)) {
    Line line;
    std::size_t i = at + 1;
    for (std::int64_t& field : line.fields) {
      while (i < text.size() && text[i] == ' ') ++i;
      const bool negative = i < text.size() && text[i] == '-';
      if (negative) ++i;
      for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) field = field * 10 + (text[i] - '0');
      if (negative) field = -field;
    }
    lines.push_back(line);
  }
  return lines;
}

// CLOCK_REALTIME, in seconds, and rather too early than too late: all its sources are rounded.
std::int64_t start_of_this_process() {
  constexpr std::int64_t kRounded = 3;
  std::string text;
  if (read_proc_file("/proc/self/stat", &text) != 0) return 0;
  std::size_t at = text.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  if (at == std::string::npos) return 0;
  std::int64_t ticks = 0;
  for (++at; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) ticks = ticks * 10 + (text[at] - '0');
  timespec now{}, running{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  ::clock_gettime(CLOCK_BOOTTIME, &running);
  return now.tv_sec - running.tv_sec + ticks / ::sysconf(_SC_CLK_TCK) - kRounded;
}

// Of one semop(2).
int most_operations() {
  seminfo limits{};
  union {
    seminfo* info;
  } argument{&limits};
  return ::semctl(0, 0, IPC_INFO, argument) >= 0 ? limits.semopm : 0;
}

class Looker {
 public:
  explicit Looker(Table* table) : table_(table) {
    struct stat space {};
    if (::stat("/proc/self/ns/ipc", &space) == 0) space_ = space.st_ino;
    started_ = start_of_this_process();
    std::string name;
    restarted_ = read_proc_file("/proc/1/comm", &name) == 0 && name.starts_with("shadowib");
    asked_together_ = std::min(kAskedTogether, std::max(1, (most_operations() - 2) / 4));
  }

  Status semaphores() {
    for (const Line& line : read_lines("/proc/sysvipc/sem"))
      SHADOWIB_TRY(semaphore_set(static_cast<int>(line.fields[1]), static_cast<int>(line.fields[3])));
    return {};
  }

  Status queues() {
    for (const Line& line : read_lines("/proc/sysvipc/msg")) SHADOWIB_TRY(queue(static_cast<int>(line.fields[1])));
    return {};
  }

  void segments() {
    for (const Line& line : read_lines("/proc/sysvipc/shm")) segment(static_cast<int>(line.fields[1]));
  }

 private:
  // Restored objects are those of the restart's first process.
  bool is_own(int pid) const { return pid == ::getpid() || (pid == 1 && restarted_); }
  // The process, if it lives and is no restart's.
  int user(int pid) const {
    const bool lives = pid > 0 && (::kill(pid, 0) == 0 || errno == EPERM);
    return !lives || (pid == 1 && restarted_) ? 0 : pid;
  }
  bool is_fresh(const ipc_perm& owner, std::int64_t changed) const {
    return owner.cuid == ::geteuid() && changed >= started_;
  }
  template <typename T>
  void take_owner(const ipc_perm& owner, int id, T* object) const {
    object->space = space_;
    object->id = id;
    object->key = owner.__key;
    object->mode = owner.mode & 0777;
    object->user = owner.uid;
    object->group = owner.gid;
  }

  Status semaphore_set(int id, int count) {
    semid_ds info{};
    std::vector<unsigned short> values(static_cast<std::size_t>(count));
    if (::semctl(id, 0, IPC_STAT, &info) != 0 || static_cast<int>(info.sem_nsems) != count ||
        ::semctl(id, 0, GETALL, values.data()) != 0)
      return {};  // gone, or not this user's
    SemaphoreSet set;
    take_owner(info.sem_perm, id, &set);
    set.used = info.sem_otime != 0;
    bool ours = false, touched = set.used != 0;
    for (int n = 0; n < count; ++n) {
      const int pid = ::semctl(id, n, GETPID);
      Semaphore& s = set.semaphores.emplace_back();
      s.value = values[static_cast<std::size_t>(n)];
      s.user = user(pid);
      ours = ours || is_own(pid);
      touched = touched || pid != 0;
    }
    // Asking makes the end of this process set sem_otime, which is a sign to programs while it is 0.
    if (set.used != 0) SHADOWIB_TRY(find_adjustments(values, &set, &ours));
    if (ours || (!touched && is_fresh(info.sem_perm, info.sem_ctime))) table_->semaphores.push_back(std::move(set));
    return {};
  }

  // Many semaphores at a time: a machine may have millions, and nearly none has an adjustment.
  Status find_adjustments(const std::vector<unsigned short>& values, SemaphoreSet* set, bool* found) {
    const int count = static_cast<int>(values.size());
    for (int first = 0; first < count; first += asked_together_) {
      const int some = std::min(asked_together_, count - first);
      const int answer = ask_for_undo(set->id, values.data(), first, some);
      if (answer == EAGAIN) continue;
      // A process that may not operate on the set has no adjustment there, nor has a set that is gone.
      if (answer == EACCES || answer == EPERM || answer == EIDRM || answer == EINVAL) return {};
      if (answer != ERANGE)
        return refuse_object("semaphore set", set->id,
                             "the kernel does not tell what SEM_UNDO has noted (semop); leave out SEM_UNDO", answer);
      for (int n = first; n < first + some; ++n) {
        Semaphore& s = set->semaphores[static_cast<std::size_t>(n)];
        s.adjustment = undo_of_semaphore(set->id, n, s.value);
        *found = *found || s.adjustment != 0;
      }
    }
    return {};
  }

  Status queue(int id) {
    msqid_ds info{};
    if (::msgctl(id, IPC_STAT, &info) != 0) return {};
    const bool touched = info.msg_lspid != 0 || info.msg_lrpid != 0;
    if (!is_own(info.msg_lspid) && !is_own(info.msg_lrpid) && (touched || !is_fresh(info.msg_perm, info.msg_ctime)))
      return {};
    MessageQueue queue;
    take_owner(info.msg_perm, id, &queue);
    queue.capacity = info.msg_qbytes;
    queue.sender = user(info.msg_lspid);
    queue.receiver = user(info.msg_lrpid);
    // A copy leaves the message where it is.
    std::string buffer(sizeof(long) + info.__msg_cbytes + 1, '\0');
    for (msgqnum_t i = 0; i < info.msg_qnum; ++i) {
      const ssize_t bytes =
          ::msgrcv(id, buffer.data(), buffer.size() - sizeof(long), static_cast<long>(i), MSG_COPY | IPC_NOWAIT);
      if (bytes < 0 && errno == ENOSYS)
        return refuse_object("message queue", id,
                             "the kernel shows no queued messages (CONFIG_CHECKPOINT_RESTORE); empty the queue",
                             ENOSYS);
      if (bytes < 0)
        return refuse_object("message queue", id, "a message in it cannot be read; empty the queue", errno);
      long type = 0;
      __builtin_memcpy(&type, buffer.data(), sizeof(type));
      queue.messages.push_back({type, buffer.substr(sizeof(long), static_cast<std::size_t>(bytes))});
    }
    table_->queues.push_back(std::move(queue));
    return {};
  }

  void segment(int id) {
    shmid_ds info{};
    if (::shmctl(id, IPC_STAT, &info) != 0 || info.shm_nattch != 0) return;
    if (!is_own(info.shm_cpid) && !is_own(info.shm_lpid)) return;
    Segment s;
    s.kind = SegmentKind::kSystemV;
    take_owner(info.shm_perm, id, &s);
    s.mode = info.shm_perm.mode & (0777 | SHM_LOCKED);
    s.inode = static_cast<std::uint64_t>(id);
    s.bytes = info.shm_segsz;
    s.exact = 1;
    s.low = 0;
    table_->segments.push_back(s);
  }

  Table* table_;
  std::uint64_t space_ = 0;
  std::int64_t started_ = 0;
  bool restarted_ = false;  // process 1 is a restart's
  int asked_together_ = 1;  // semaphores
};

}  // namespace

Status capture_system_v(Table* table) {
  Looker looker(table);
  SHADOWIB_TRY(looker.semaphores());
  SHADOWIB_TRY(looker.queues());
  looker.segments();
  return {};
}

}  // namespace shadowib::descriptors
