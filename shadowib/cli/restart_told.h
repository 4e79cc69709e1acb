// The words of a restart while it is under way, and of how its processes have ended.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/imager/restart.h"
#include "shadowib/base/lock.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/history.h"

namespace shadowib::cli {

struct RestartArguments;

// "exit code 3", "killed by signal 9 (SIGKILL)"; in `text`.
const char* how_ended(int wait_status, char (&text)[64]);
bool ended_well(const RestartedProcess& p);

// A line for each process, or one object of JSON. `members`: that were to come back here; none: all. `saved_as`: the
// set that was committed before the processes were ended on request; "" if they were not. Returns the exit code.
int report_ends(const Common& common, const SetManifest& manifest, const std::set<std::uint32_t>& members,
                const std::vector<RestartedProcess>& processes, const std::string& saved_as);

// To people, and to the job's history.
class RestartTold {
 public:
  RestartTold(const RestartArguments& arguments, const SetManifest& manifest, const std::string& exchange,
              std::size_t members)
      : arguments_(arguments), manifest_(manifest), exchange_(exchange), members_(members) {}

  void verified() { verified_ns_ = monotonic_ns(); }
  void began(const std::string& epoch) { epoch_ = epoch; }
  // The end on request, if there was one.
  const std::string& saved_as();
  // Instead of looking for it in the exchange.
  void saved_as(std::string set) { saved_as_ = std::move(set); }
  // One of restart_set()'s.
  void line(std::string text);
  int failed(const Status& status);
  void ended(const std::vector<RestartedProcess>& processes, int exit_code);

 private:
  // The restart is a recovery's part. The command of the recovery tells its history.
  bool is_part() const;
  void note_running();
  // Work since the newest set is lost, or all since the restart if it has made none.
  void note_failure(const RestartedProcess& p, bool first);
  void note(const HistoryEvent& event);

  const RestartArguments& arguments_;
  const SetManifest& manifest_;
  const std::string& exchange_;
  const std::size_t members_;
  const std::int64_t began_ns_ = monotonic_ns();
  std::int64_t verified_ns_ = began_ns_;
  std::string epoch_, saved_as_;
  bool running_ = false;
};

}  // namespace shadowib::cli
