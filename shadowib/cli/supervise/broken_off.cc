#include "shadowib/cli/supervise/broken_off.h"

#include <algorithm>
#include <vector>

#include "hooks/job/members.h"
#include "hooks/job/recovery.h"
#include "shadowib/cli/end_on_request.h"
#include "shadowib/cli/exchange_place.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/supervise/bounds.h"
#include "shadowib/cli/supervise/past_lives.h"

namespace shadowib::cli {

bool were_told_to_end(const Common& common, const std::string& job, const Lives& lives) {
  // One is enough: a launcher may end the others as soon as the first has ended.
  if (std::any_of(lives.members.begin(), lives.members.end(),
                  [](const MemberLife& member) { return !member.record.saved_as.empty(); }))
    return true;
  std::string uri = exchange_of(common, job);
  return settle_exchange(job_paths(common.directory, job).password, &uri).ok() &&
         !saved_before_end(uri, lives.epoch).empty();
}

void note_no_end(const std::string& directory, const std::string& job, const PastEvent& saved, const char* why) {
  note_event(directory, job,
             HistoryEvent("kill_failed")
                 .add("set", saved.text("set"))
                 .add("number", static_cast<std::uint32_t>(saved.number("number")))
                 .add("error", why));
}

std::string saved_by_records(const std::string& directory, const std::string& job) {
  Lives lives;
  (void)look_who_lives(directory, job, &lives).ok();
  for (const MemberLife& member : lives.members)
    if (!member.record.saved_as.empty()) return member.record.saved_as;
  return {};
}

void settle_end_on_request(const Common& common, const std::string& job) {
  std::vector<PastEvent> events;
  const auto tells_of_end = [&] {
    unsigned torn = 0;
    return read_history(common.directory, job, &events, &torn).ok() && planned_end(events) != kFromTheBeginning;
  };
  Lives lives;
  if (!tells_of_end()) return;
  for (std::size_t seen = 0; seen != events.size();) {
    seen = events.size();
    if (!look_who_lives(common.directory, job, &lives).ok() || lives.members.empty() || !lives.other.empty()) return;
    if (!tells_of_end()) return;  // read again: all that a command has noted is there once it has gone
  }
  const PastEvent& saved = *last_end_on_request(events);
  // A restart that came to nothing has begun another epoch: its members know nothing of this end.
  if (generation_of(lives.epoch) != static_cast<std::uint32_t>(saved.number("generation"))) return;
  if (were_told_to_end(common, job, lives)) return;
  note_no_end(common.directory, job, saved,
              lives.any_alive() ? "the command was broken off, and the job goes on"
                                : "the command was broken off, and no process was told to end");
}

}  // namespace shadowib::cli
