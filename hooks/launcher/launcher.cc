#include "hooks/launcher/launcher.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "hooks/imager/descriptors.h"
#include "hooks/job/protocol.h"
#include "hooks/launcher/answering.h"
#include "hooks/launcher/board.h"
#include "hooks/launcher/gate.h"
#include "hooks/launcher/meeting.h"
#include "hooks/launcher/pmi_descriptor.h"
#include "hooks/launcher/rank.h"
#include "hooks/launcher/session_directories.h"
#include "hooks/raw/tasks.h"
#include "shadowib/base/json_writer.h"
#include "shadowib/base/lasting.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

constexpr int kGraceMs = 5000;  // between SIGTERM and SIGKILL, as launchers have it

std::string ranks_key(const std::string& prefix, const LauncherRank& own) {
  return prefix + "/ranks/" + Board::namespace_key(own.name);
}

Status judge_meeting(const LauncherRank& own) {
  if (!own.connected.load() || !is_meeting()) return {};
  return Status::of(Code::kRefused, EAGAIN,
                    "rank %u of the launcher's job %.60s is about to meet ranks of another one (MPI_Comm_spawn, "
                    "MPI_Comm_connect or MPI_Comm_accept), which the launcher alone can bring together; try again",
                    own.rank, own.name);
}

void signal_ourselves(int signal) { ::syscall(SYS_kill, ::syscall(SYS_getpid), signal); }

}  // namespace

LauncherRank& launcher_rank() { return Lasting<LauncherRank>::get(); }

Status launcher_hold_calls(int timeout_ms) {
  SHADOWIB_TRY(close_launcher_gate(timeout_ms));
  Status status = judge_meeting(launcher_rank());
  if (!status.ok()) open_launcher_gate();
  return status;
}

void launcher_release_calls() { open_launcher_gate(); }

Status launcher_announce(Exchange* exchange, const std::string& prefix) {
  LauncherRank& own = launcher_rank();
  if (!own.connected) return {};
  own.directories = find_session_directories(own.session_roots);
  return exchange->publish(ranks_key(prefix, own) + "/" + std::to_string(own.rank), "");
}

Status launcher_judge(Exchange* exchange, const std::string& epoch, const std::string& prefix) {
  LauncherRank& own = launcher_rank();
  if (!own.connected) return {};
  if (own.unanswerable[0] != '\0')
    return Status::of(Code::kRefused, 0,
                      "what rank %u of the launcher's job %.60s has told others cannot be told again: %.150s",
                      own.rank, own.name, own.unanswerable);
  SHADOWIB_TRY(judge_requests());
  SHADOWIB_TRY(judge_meeting(own));            // an answer to PMIx_Spawn_nb may have come since the calls were held
  SHADOWIB_TRY(take_events(exchange, epoch));  // a restart begins with none in the exchange
  std::vector<std::string> here;
  SHADOWIB_TRY(exchange->list(ranks_key(prefix, own), &here));
  SHADOWIB_TRY(Board(exchange, epoch, own.name).list_done(&own.done));
  std::size_t accounted = here.size();
  for (std::uint32_t rank : own.done)
    accounted += std::find(here.begin(), here.end(), std::to_string(rank)) == here.end();
  if (accounted >= own.size) return {};
  return Status::of(  // the others would wait for ever; the command shows 250 bytes
      Code::kRefused, 0,
      "%zu of the %u ranks of the launcher's job %.48s are in this checkpoint; run all under shadowib, in one job, "
      "and try again behind MPI_Init; if they are in several clusters, checkpoint without --cluster",
      here.size(), own.size, own.name);
}

namespace {

// All ranks of a namespace go back together, and none looks before all have been here.
Status forget_undone_life(Exchange* exchange, const std::string& epoch, const LauncherRank& own, Board* board) {
  std::string text, name;
  bool found = false;
  AbortRequest request;
  SHADOWIB_TRY(board->forget(own.rank, own.events_told));
  SHADOWIB_TRY(exchange->get(abort_key(epoch), &text, &found));
  if (found && decode_abort(text, &name, &request) && name == own.name) return exchange->remove(abort_key(epoch));
  return {};
}

}  // namespace

Status launcher_is_gone(Exchange* exchange, const std::string& epoch, std::uint32_t member, bool went_back) {
  LauncherRank& own = launcher_rank();
  note_restored_launcher_descriptors();
  if (own.size != 0) {
    own.gone = true;
    if (own.connected) make_session_directories(own.directories, &own.directories_made);
    SHADOWIB_TRY(take_pmi_descriptor());
    Board board(exchange, epoch, own.name);
    if (went_back) SHADOWIB_TRY(forget_undone_life(exchange, epoch, own, &board));
    SHADOWIB_TRY(board.publish_member(member, own.rank));
    if (own.committed) SHADOWIB_TRY(board.publish_puts(own.rank, own.committed_puts));
    for (const auto& [set, count] : own.fences) SHADOWIB_TRY(board.publish_fence(set, own.rank, count));
    if (!own.connected) SHADOWIB_TRY(board.publish_done(own.rank));
    for (std::uint32_t rank : own.done) SHADOWIB_TRY(board.publish_done(rank));
    wake_answering();
  }
  open_launcher_gate();
  return {};
}

namespace {

// Another rank has aborted the job, or this rank among others. `why` is for the log.
bool is_aborted(Exchange* exchange, const std::string& epoch, const LauncherRank& own, std::string* why) {
  std::string text, name;
  bool found = false;
  AbortRequest request;
  if (!exchange->get(abort_key(epoch), &text, &found).ok() || !found || !decode_abort(text, &name, &request))
    return false;
  const std::vector<std::uint32_t>& ranks = request.ranks;
  const bool meant = ranks.empty() || std::find(ranks.begin(), ranks.end(), own.rank) != ranks.end();
  if (name != own.name || !meant || request.from == own.rank) return false;  // who has asked ends by itself
  *why = "rank " + std::to_string(request.from) + " has aborted the job with status " +
         std::to_string(request.status) + ": " + request.message;
  return true;
}

// A member that is a rank of the same namespace has ended badly.
bool has_lost_a_rank(Exchange* exchange, const std::string& epoch, const LauncherRank& own, std::string* why) {
  std::string text;
  bool found = false;
  Fields fields;
  if (!exchange->get(death_key(epoch), &text, &found).ok() || !found || !decode_fields(text, &fields)) return false;
  std::uint32_t rank = 0;
  const auto member = static_cast<std::uint32_t>(std::strtoul(fields["member"].c_str(), nullptr, 10));
  if (!Board(exchange, epoch, own.name).find_member(member, &rank, &found).ok() || !found) return false;
  *why = "rank " + std::to_string(rank) + " has ended with " + fields["how"];
  return rank != own.rank;
}

}  // namespace

void end_with_the_job(Exchange* exchange, const std::string& epoch) {
  const LauncherRank& own = launcher_rank();
  if (!own.gone.load()) return;
  std::string why;
  // In this order: who aborts the job says so before it ends, and that is then the reason, not its end.
  const bool lost = has_lost_a_rank(exchange, epoch, own, &why);
  if (!is_aborted(exchange, epoch, own, &why) && !lost) return;
  log_line(LogLevel::kError, "rank %u ends: %s", own.rank, why.c_str());
  signal_ourselves(SIGTERM);
  raw_sleep_ms(kGraceMs);
  signal_ourselves(SIGKILL);
}

void launcher_take_events(Exchange* exchange, const std::string& epoch) {
  const Status status = take_events(exchange, epoch);
  if (!status.ok()) log_line(LogLevel::kDebug, "events of other ranks cannot be taken in: %s", status.text());
}

void launcher_describe(std::string* json) {
  const LauncherRank& own = launcher_rank();
  if (own.size == 0) return;
  JsonWriter writer(json);
  writer.key("launcher").begin_object().member("kind", own.kind).member("namespace", own.name);
  writer.member("rank", own.rank).member("size", own.size);
  writer.member("state", !own.connected ? "left" : own.gone ? "gone" : "connected").end_object();
}

void launcher_reset_after_fork() {
  LauncherRank& own = launcher_rank();
  own.lock.reset();
  own.telling.reset();
  own.connected = false;
  own.gone = false;
  forget_meetings();
  own.size = 0;
  reset_launcher_gate_after_fork();
  reset_requests_after_fork();
  reset_events_after_fork();
  reset_pmi_after_fork();
}

}  // namespace shadowib
