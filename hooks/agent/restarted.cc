// The agent thread in a process restored from an image: everything else of the program is parked where it was saved.
#include "hooks/agent/restarted.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "hooks/agent/agent_state.h"
#include "hooks/agent/descriptor_room.h"
#include "hooks/agent/fault_report.h"
#include "hooks/agent/filter_probe.h"
#include "hooks/agent/hook_registry.h"
#include "hooks/agent/join.h"
#include "hooks/agent/loader_thread.h"
#include "hooks/agent/own_checkpoints.h"
#include "hooks/agent/own_cluster.h"
#include "hooks/agent/values.h"
#include "hooks/imager/descriptors.h"
#include "hooks/imager/imager.h"
#include "hooks/job/phase.h"
#include "hooks/job/protocol.h"
#include "hooks/launcher/launcher.h"
#include "hooks/raw/tasks.h"
#include "hooks/threads/fault.h"
#include "hooks/threads/stop.h"
#include "hooks/threads/thread_judge.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/log.h"
#include "shadowib/base/spare_descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

std::vector<int> g_numbers;  // of the descriptors that were ours when the image was saved

// Keeps the numbers of the descriptors that were ours free from what is opened before the participant has made its
// own again at their old numbers (a completion channel's fd is known to the program).
class NumberReservation {
 public:
  explicit NumberReservation(const std::vector<int>& numbers) : numbers_(numbers) {
    int placeholder = static_cast<int>(::syscall(SYS_memfd_create, "shadowib-reserved", 1u /* MFD_CLOEXEC */));
    if (placeholder < 0 || ::fstat(placeholder, &identity_) != 0) {
      numbers_.clear();
      return;
    }
    bool placed = false;
    for (int& fd : numbers_) {
      if (fd == placeholder)
        placed = true;
      else if (::fcntl(fd, F_GETFD) >= 0 || ::syscall(SYS_dup3, placeholder, fd, O_CLOEXEC) < 0)
        fd = -1;
    }
    if (!placed) raw_close(placeholder);
  }
  // Gives back the numbers nobody has put something else on. A program that had no number left gets none: they stay
  // ours.
  ~NumberReservation() {
    rlimit program{};
    const bool had_none_left = has_descriptor_room(&program);
    for (int fd : numbers_) {
      struct stat now {};
      if (fd < 0 || ::fstat(fd, &now) != 0 || now.st_ino != identity_.st_ino || now.st_dev != identity_.st_dev)
        continue;
      if (had_none_left && static_cast<rlim_t>(fd) < program.rlim_cur)
        UnownedDescriptors().own_in_place(fd);
      else
        raw_close(fd);
    }
  }
  NumberReservation(const NumberReservation&) = delete;
  NumberReservation& operator=(const NumberReservation&) = delete;

 private:
  std::vector<int> numbers_;
  struct stat identity_ {};
};

std::string prefix() { return restart_prefix(g_job.info.epoch, g_job.info.recovery); }

std::string restart_key(const char* what) { return prefix() + what + "/" + std::to_string(g_job.info.member); }

Status barrier(const char* name) {
  return g_job.exchange->barrier(prefix() + "b/" + name, std::to_string(g_job.info.member),
                                 static_cast<int>(g_job.info.member_count), barrier_ms(g_job.info),
                                 prefix() + "abort");
}

// Files that the restart rolls back are cut when every member has told of kGo, and before any goes.
Status await_cut() {
  constexpr int kStepMs = 100;
  if (g_job.info.awaits_cut == 0) return {};
  const std::string ready = encode_fields({{"phase", std::to_string(number_of(Phase::kGo))}});
  SHADOWIB_TRY(g_job.exchange->publish_alike(restart_key("phase"), ready));
  const Deadline deadline = Deadline::in_ms(barrier_ms(g_job.info));
  std::uint64_t token = 0;
  for (;;) {
    std::string text;
    bool cut = false, aborted = false;
    SHADOWIB_TRY(g_job.exchange->get(restart_key("cut"), &text, &cut));
    if (cut) return {};
    SHADOWIB_TRY(g_job.exchange->get(prefix() + "abort", &text, &aborted));
    if (aborted) return Status::of(Code::kAborted, 0, "the restart was given up: %.300s", text.c_str());
    if (deadline.has_passed())
      return Status(Code::kTimeout, 0, "the restart command has not rolled back the files in time");
    const Status status = g_job.exchange->watch(prefix() + "cut", &token, kStepMs, -1);
    if (!status.ok() && status.code() != Code::kTimeout) return status;
  }
}

// The new generation's exchange, lock and key. The old Exchange is abandoned: its descriptors are not ours any more.
Status enter_new_generation() {
  std::unique_ptr<Exchange> exchange;
  SHADOWIB_TRY(Exchange::open(g_job.info.exchange, true, &exchange));
  g_job.exchange = exchange.release();
  const std::string path =
      alive_path(g_job.info.directory, g_job.info.job, g_job.info.epoch, std::to_string(g_job.info.member));
  g_agent.alive_lock = hold_alive_lock(path);
  if (g_agent.alive_lock < 0)
    return Status::of(Code::kIo, errno, "cannot lock %.200s; is another copy of this member running?", path.c_str());
  g_agent.cancel = UnownedDescriptors().own(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  tie_alive_lock_to_memory(g_agent.alive_lock);
  reserve_spare_descriptors();
  g_agent.closed_descriptors = 0;
  std::uint64_t last_request = 0, last_status = 0;
  look_up_requests(g_job.exchange, g_job.info.epoch, {{"checkpoint", &last_request}, {"status", &last_status}});
  g_agent.last_request = last_request;
  g_agent.last_status = last_status;
  if (is_in_cluster() && g_job.info.recovery != 0)
    SHADOWIB_TRY(begin_cluster_again(*g_job.exchange));
  else if (is_in_cluster())
    begin_cluster_anew(*g_job.exchange);
  SHADOWIB_TRY(g_job.exchange->publish(member_key(g_job.info.epoch, g_job.info.member), describe_member()));
  record_member(path);
  return publish_values_again();
}

Status rebuild() {
  const FaultReports reports(g_job.info.member);
  const TakesFaults takes;
  NumberReservation reservation(g_numbers);
  SHADOWIB_TRY(enter_new_generation());
  SHADOWIB_TRY(fault_point(Phase::kRestored));
  SHADOWIB_TRY(fault_point(Phase::kRebuild));
  SHADOWIB_TRY(finish_descriptors());
  loader_thread_unpark();
  if (g_agent.participant == nullptr) return {};
  g_agent.participant->go_back_alone(g_job.info.recovery != 0, incarnations_over());
  return g_agent.participant->restart(g_job.info, g_job.exchange);
}

Status go() {
  SHADOWIB_TRY(rebuild());
  SHADOWIB_TRY(launcher_is_gone(g_job.exchange, g_job.info.epoch, g_job.info.member, g_job.info.recovery != 0));
  SHADOWIB_TRY(fault_point(Phase::kRestarted));
  run_hooks(2);
  SHADOWIB_TRY(lock_mappings_to_come());
  SHADOWIB_TRY(fault_point(Phase::kGo));  // what tells that it is ready to go fails no more
  SHADOWIB_TRY(await_cut());
  SHADOWIB_TRY(barrier("go"));  // nobody runs before everybody can
  SHADOWIB_TRY(fault_point(Phase::kRuns));
  return g_job.exchange->publish_alike(restart_key("done"), encode_fields({}));
}

}  // namespace

void note_owned_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  g_numbers.clear();
  for (int fd = lowest_owned_descriptor(); fd < kMaxOwnedDescriptors && static_cast<rlim_t>(fd) < limit.rlim_max;
       ++fd)
    if (is_owned_descriptor(fd)) g_numbers.push_back(fd);
}

void go_on_after_restart(const JobInfo& info) {
  g_job.info = info;
  g_agent.phase = Phase::kNone;
  g_job.member_pid = raw_getpid();
  note_place();
  forget_filter_probe();
  fault_begin_anew(info.fault);
  fault_set_member(info.member);
  log_restart(info.log);
  forget_signalled_requests();
  Status status = go();
  if (!status.ok()) {
    log_line(LogLevel::kError, "member %u cannot go on after the restart: %s", info.member, status.text());
    if (g_job.exchange != nullptr) {
      (void)publish_fields(restart_key("fail"), fields_of_status(status)).ok();
      (void)g_job.exchange->claim(prefix() + "abort", status.text()).ok();
    }
    ::_exit(static_cast<int>(status.code()));
  }
  if (g_agent.participant != nullptr) g_agent.participant->resume();
  give_back_descriptor_room();
  release_threads();
}

}  // namespace shadowib
