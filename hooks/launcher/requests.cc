#include "hooks/launcher/requests.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string_view>

#include "hooks/job/current_job.h"
#include "hooks/launcher/board.h"
#include "hooks/launcher/events.h"
#include "hooks/launcher/gate.h"
#include "hooks/launcher/meeting.h"
#include "hooks/launcher/pmix_library.h"
#include "hooks/launcher/rank.h"
#include "hooks/launcher/spawn.h"
#include "hooks/raw/raw_signal.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/lasting.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

using Kind = LauncherRequest::Kind;

constexpr std::int64_t kFirstPauseNs = 200'000,
                       kLongestPauseNs = 20'000'000;  // between looks at what others have told

SpinLock g_lock;  // held inside
struct Requests {
  std::vector<LauncherRequest*> oldest_first;
};
std::vector<LauncherRequest*>& listed() SHADOWIB_REQUIRES(g_lock) { return Lasting<Requests>::get().oldest_first; }
std::atomic<std::uint32_t> g_work{0};  // counts reasons to look
std::atomic<bool> g_started{false};

bool take_off(LauncherRequest* r) SHADOWIB_REQUIRES(g_lock) {
  const auto at = std::find(listed().begin(), listed().end(), r);
  if (at == listed().end()) return false;
  listed().erase(at);
  return true;
}

// The library answers, and does not know the request any longer. False: the answer has been given, or will be, since
// a restart met this one half way.
bool take_answered(LauncherRequest* r) {
  Inside inside;
  note_library_thread();
  bool told = false;
  {
    SpinGuard guard(g_lock);
    if (!launcher_rank().gone.load() && take_off(r)) return true;
    r->forwarded = false;
    told = r->told;
  }
  if (told) delete r;
  return false;
}

// Our thread has answered. The library may still do so, late, if it knows the request.
void note_told(LauncherRequest* r) {
  Inside inside;
  bool forwarded = false;
  {
    SpinGuard guard(g_lock);
    r->told = true;
    forwarded = r->forwarded;
  }
  if (!forwarded) delete r;
}

template <typename Callback, typename... Args>
void pass_on(void* request, Args... args) {
  auto* const r = static_cast<LauncherRequest*>(request);
  if (!take_answered(r)) return;
  reinterpret_cast<Callback>(r->callback)(args..., r->cbdata);
  drop_request(r);
}

// What the service thread has found out for a request.
struct Finding {
  LauncherRequest* request = nullptr;
  pmix_status_t status = PMIX_SUCCESS;
  std::size_t id = 0;
  StoredValue value;
  bool has_value = false;
};

Board board() { return {job_exchange(), job_info().epoch, launcher_rank().name}; }

void complain(const LauncherRequest& r, const Status& status) {
  log_line(LogLevel::kWarn, "%s cannot be answered yet: %s", r.name, status.text());
}

bool fence_is_over(LauncherRequest* r) {
  Status status = board().look_for(r->set, r->count, &r->missing);
  bool all = r->missing.empty();
  for (auto& [name, missing] : r->others) {
    if (status.ok()) status = Board(job_exchange(), job_info().epoch, name).look_for(r->set, r->count, &missing);
    all = all && missing.empty();
  }
  if (!status.ok()) complain(*r, status);
  return status.ok() && all;
}

// True if it is known by now, be it that there is none.
bool find_value(LauncherRequest* r, Finding* finding) {
  if (r->value != nullptr) return true;
  const LauncherRank& own = launcher_rank();
  const bool ours = std::string_view(r->proc.nspace) == own.name && r->proc.rank < own.size;
  if (!ours) {
    finding->status = PMIX_ERR_NOT_FOUND;
    return true;
  }
  Board::Answer answer = Board::Answer::kNotCommitted;
  if (const Status status = board().find_put(r->proc.rank, r->key, &answer, &finding->value); !status.ok()) {
    complain(*r, status);
    return false;
  }
  if (answer == Board::Answer::kNotCommitted && r->waits) return false;
  finding->has_value = answer == Board::Answer::kFound;
  finding->status = finding->has_value ? PMIX_SUCCESS : PMIX_ERR_NOT_FOUND;
  return true;
}

bool is_answerable(LauncherRequest* r, Finding* finding) {
  switch (r->kind) {
    case Kind::kFence:
      return fence_is_over(r);
    case Kind::kGet:
      return find_value(r, finding);
    case Kind::kRegistration:
      finding->id = r->number != 0 ? r->number : new_handler_number();
      return true;
    default:
      return true;
  }
}

// Takes the oldest request that can be answered off the list. `left`: others are waiting.
Finding next_finding(bool* left) {
  Inside inside;
  Finding finding;
  *left = false;
  std::vector<LauncherRequest*> taken;
  {
    SpinGuard guard(g_lock);  // not held while the exchange is asked: meanwhile nobody else answers them
    taken.swap(listed());
  }
  for (auto at = taken.begin(); at != taken.end(); ++at) {
    if (!is_answerable(*at, &finding)) continue;
    finding.request = *at;
    taken.erase(at);
    break;
  }
  *left = !taken.empty();
  SpinGuard guard(g_lock);
  listed().insert(listed().begin(), taken.begin(), taken.end());
  return finding;
}

void tell_value(const Finding& finding) {
  const LauncherRequest& r = *finding.request;
  pmix_value_t* const value = finding.has_value ? load_value(finding.value) : r.value;
  const pmix_status_t status = finding.has_value && value == nullptr ? PMIX_ERR_NOT_FOUND : finding.status;
  reinterpret_cast<pmix_value_cbfunc_t>(r.callback)(status, value, r.cbdata);
  free_value(*pmix_library(), value);
}

// The program's code runs here, and may be stopped in it.
void tell(const Finding& finding) {
  const LauncherRequest& r = *finding.request;
  switch (r.kind) {
    case Kind::kGet:
      tell_value(finding);
      break;
    case Kind::kRegistration:
      reinterpret_cast<pmix_hdlr_reg_cbfunc_t>(r.callback)(PMIX_SUCCESS, finding.id, r.cbdata);
      break;
    case Kind::kControl:
      reinterpret_cast<pmix_info_cbfunc_t>(r.callback)(PMIX_SUCCESS, nullptr, 0, r.cbdata, nullptr, nullptr);
      break;
    default:
      reinterpret_cast<pmix_op_cbfunc_t>(r.callback)(finding.status, r.cbdata);
  }
}

void* answer(void*) {
  ::prctl(PR_SET_NAME, "shadowib-rank");
  std::int64_t pause = kFirstPauseNs;
  for (;;) {
    const std::uint32_t seen = g_work.load();
    bool left = false;
    if (launcher_rank().gone.load()) {
      Finding finding = next_finding(&left);
      if (finding.request != nullptr) {
        tell(finding);
        note_told(finding.request);
        Inside inside;
        { const Finding gone = std::move(finding); }  // to be freed in here; an assignment may keep what there is
        pause = kFirstPauseNs;
        continue;
      }
      if (hear_event()) continue;
    }
    if (!left) pause = kFirstPauseNs;
    futex_wait(&g_work, seen, left ? pause : -1);
    if (left && pause < kLongestPauseNs) pause *= 2;
  }
  return nullptr;
}

}  // namespace

LauncherRequest* new_request(Kind kind, const char* name, void* callback, void* cbdata) {
  auto* const r = new LauncherRequest;
  r->kind = kind;
  r->name = name;
  r->callback = callback;
  r->cbdata = cbdata;
  return r;
}

LauncherRequest* make_request(Kind kind, const char* name, void* callback, void* cbdata) {
  Inside inside;
  return new_request(kind, name, callback, cbdata);
}

void list_request(LauncherRequest* r) {
  Inside inside;
  const bool gone = launcher_rank().gone.load();
  r->forwarded = !gone;
  {
    SpinGuard guard(g_lock);
    listed().push_back(r);
  }
  if (gone) wake_answering();
}

void drop_request(LauncherRequest* r) {
  Inside inside;
  {
    SpinGuard guard(g_lock);
    take_off(r);
  }
  delete r;
}

void on_operation(pmix_status_t status, void* request) { pass_on<pmix_op_cbfunc_t>(request, status); }
void on_value(pmix_status_t status, pmix_value_t* value, void* request) {
  pass_on<pmix_value_cbfunc_t>(request, status, value);
}
void on_registration(pmix_status_t status, std::size_t id, void* request) {
  pass_on<pmix_hdlr_reg_cbfunc_t>(request, status, id);
}
void on_lookup(pmix_status_t status, pmix_pdata_t* data, std::size_t ndata, void* request) {
  pass_on<pmix_lookup_cbfunc_t>(request, status, data, ndata);
}
void on_spawn(pmix_status_t status, char* name, void* request) {
  auto* const r = static_cast<LauncherRequest*>(request);
  free_apps_in_job(r->apps, r->napps);
  if (status == PMIX_SUCCESS && !r->port.empty()) begin_meeting(r->port.c_str());
  pass_on<pmix_spawn_cbfunc_t>(request, status, name);
}
void on_connection(pmix_status_t status, void* request) {
  note_connected(status);
  pass_on<pmix_op_cbfunc_t>(request, status);
}
void on_info(pmix_status_t status, pmix_info_t* info, std::size_t ninfo, void* request, pmix_release_cbfunc_t release,
             void* release_data) {
  auto* const r = static_cast<LauncherRequest*>(request);
  if (take_answered(r)) {
    reinterpret_cast<pmix_info_cbfunc_t>(r->callback)(status, info, ninfo, r->cbdata, release, release_data);
    drop_request(r);
  } else if (release != nullptr) {
    release(release_data);
  }
}

int start_answering() {
  if (g_started.exchange(true)) return 0;
  sigset_t all_but_ours, old;
  ::sigfillset(&all_but_ours);
  ::sigdelset(&all_but_ours, stop_signal_number());
  ::pthread_sigmask(SIG_SETMASK, &all_but_ours, &old);
  pthread_t thread;
  const int rc = ::pthread_create(&thread, nullptr, answer, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (rc != 0)
    g_started = false;
  else
    ::pthread_detach(thread);
  return rc;
}

void wake_answering() {
  g_work.fetch_add(1);
  futex_wake(&g_work, 1);
}

Status judge_requests() {
  SpinGuard guard(g_lock);
  for (const LauncherRequest* r : listed())
    // A handler that is being registered is the library's already, by a number that the program has not been told.
    if (r->kind == Kind::kForeign || (r->kind == Kind::kRegistration && r->forwarded))
      return Status::of(
          Code::kRefused, EAGAIN,
          "an answer to %s is still to come from the launcher, which could not come after a restart; try again",
          r->name);
  return {};
}

// The child has one thread.
void reset_requests_after_fork() SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  g_lock.reset();
  listed().clear();
  g_started = false;
}

}  // namespace shadowib
