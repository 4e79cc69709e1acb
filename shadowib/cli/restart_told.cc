#include "shadowib/cli/restart_told.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "hooks/job/members.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/restart_kinds.h"
#include "shadowib/cli/sets.h"

namespace shadowib::cli {
namespace {

bool killed_by(const RestartedProcess& p, int signal) {
  return !p.left && WIFSIGNALED(p.exit_status) && WTERMSIG(p.exit_status) == signal;
}

}  // namespace

const char* how_ended(int status, char (&text)[64]) {
  if (WIFSIGNALED(status))
    std::snprintf(text, sizeof(text), "killed by signal %d (SIG%s)", WTERMSIG(status),
                  ::sigabbrev_np(WTERMSIG(status)));
  else
    std::snprintf(text, sizeof(text), "exit code %d", WEXITSTATUS(status));
  return text;
}

bool ended_well(const RestartedProcess& p) { return WIFEXITED(p.exit_status) && WEXITSTATUS(p.exit_status) == 0; }

int report_ends(const Common& common, const SetManifest& manifest, const std::set<std::uint32_t>& members,
                const std::vector<RestartedProcess>& processes, const std::string& saved_as) {
  bool good = processes.size() == (members.empty() ? manifest.members.size() : members.size());
  Json list = Json::array();
  for (const RestartedProcess& p : processes) {
    char text[64];
    good = good && ended_well(p);
    const bool requested = !saved_as.empty() && killed_by(p, SIGKILL);
    if (!common.json)
      std::printf("pid %d: %s\n", p.pid,
                  p.left      ? "ended; its parent has the status"
                  : requested ? "ended on request"
                              : how_ended(p.exit_status, text));
    Json entry{{"member", p.member}, {"pid", p.pid}, {"left_to_parent", p.left}, {"on_request", requested}};
    entry["exit_code"] = !p.left && WIFEXITED(p.exit_status) ? Json(WEXITSTATUS(p.exit_status)) : Json(nullptr);
    entry["signal"] = WIFSIGNALED(p.exit_status) ? Json(WTERMSIG(p.exit_status)) : Json(nullptr);
    list.push_back(entry);
  }
  if (!saved_as.empty())
    std::fprintf(stderr, "shadowib: job %s was saved as %s and ended on request\n", manifest.job.c_str(),
                 saved_as.c_str());
  if (common.json)
    print_json({{"set", manifest.path},
                {"ok", good},
                {"saved_as", saved_as.empty() ? Json(nullptr) : Json(saved_as)},
                {"processes", list}});
  return good ? 0 : kRestartedProcessFailed;
}

const std::string& RestartTold::saved_as() {
  if (saved_as_.empty() && !exchange_.empty()) saved_as_ = saved_before_end(exchange_, epoch_);
  return saved_as_;
}

void RestartTold::line(std::string text) {
  static constexpr char kKilled[] = "ended with signal 9";
  if (text.starts_with("restored") && !running_) note_running();
  if (text.ends_with(kKilled) && !saved_as().empty())
    text.replace(text.size() - (sizeof(kKilled) - 1), std::string::npos, "ended on request");
  std::fprintf(stderr, "shadowib: %s\n", text.c_str());
}

int RestartTold::failed(const Status& status) {
  const HistoryEvent event = HistoryEvent("restart_failed")
                                 .add("set", name_of(manifest_))
                                 .add("code", static_cast<int>(status.code()))
                                 .add("error", status.text());
  if (status.code() != Code::kBusy && !is_part())
    (void)append_history(arguments_.common.directory, manifest_.job, event).ok();  // the error is what counts
  return fail(arguments_.common, status);
}

void RestartTold::ended(const std::vector<RestartedProcess>& processes, int exit_code) {
  bool first = true;  // the others' time is the same
  for (const RestartedProcess& p : processes)
    if (saved_as().empty() && !p.left && !ended_well(p)) note_failure(p, std::exchange(first, false));
  if (is_part()) return;
  HistoryEvent end("ended");  // at this moment: after the failures
  end.add("exit_code", exit_code);
  if (!saved_as().empty()) end.add("set", std::filesystem::path(saved_as_).filename().string());
  note(end);
}

void RestartTold::note_running() {
  running_ = true;
  if (is_part()) return;
  const std::int64_t now = monotonic_ns();
  note(HistoryEvent("restart")
           .add("set", name_of(manifest_))
           .add("number", manifest_.number)
           .add("generation", manifest_.generation + 1)
           .add("members", members_)
           .add("backend", wanted_backend(arguments_).empty() ? "auto" : wanted_backend(arguments_))
           .add("verify_ms", milliseconds(verified_ns_ - began_ns_))
           .add("ready_ms", milliseconds(now - began_ns_)));
}

void RestartTold::note_failure(const RestartedProcess& p, bool first) {
  char text[64];
  HistoryEvent failure("failure");
  failure.add("member", p.member).add("process", p.pid).add("how", how_ended(p.exit_status, text));
  const double age_s = first ? age_of_newest_set(arguments_.common.directory, owner_of(manifest_)) : -1;
  if (age_s >= 0) failure.add("lost_s", std::min(age_s, static_cast<double>(monotonic_ns() - began_ns_) / 1e9));
  note(failure);
}

bool RestartTold::is_part() const { return arguments_.part.number != 0; }

void RestartTold::note(const HistoryEvent& event) { note_event(arguments_.common.directory, manifest_.job, event); }

}  // namespace shadowib::cli
