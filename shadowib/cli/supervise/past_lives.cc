#include "shadowib/cli/supervise/past_lives.h"

#include <algorithm>

#include "shadowib/cli/supervise/bounds.h"

namespace shadowib::cli {

std::uint32_t planned_end(const std::vector<PastEvent>& events) {
  std::uint32_t set = kFromTheBeginning;
  for (const PastEvent& e : events) {
    if (e.name == "checkpoint")
      set = e.number("kill") != 0 ? static_cast<std::uint32_t>(e.number("number")) : kFromTheBeginning;
    if (e.name == "started" || e.name == "restart" || e.name == "failure" || e.name == "kill_failed")
      set = kFromTheBeginning;
  }
  return set;
}

std::int64_t ends_on_request(const std::vector<PastEvent>& events) {
  return std::count_if(events.begin(), events.end(),
                       [](const PastEvent& e) { return e.name == "checkpoint" && e.number("kill") != 0; }) -
         count_events(events, "kill_failed");
}

std::int64_t count_events(const std::vector<PastEvent>& events, std::string_view name) {
  return std::count_if(events.begin(), events.end(), [name](const PastEvent& e) { return e.name == name; });
}

std::uint32_t set_of_life(const std::vector<PastEvent>& events) {
  std::uint32_t set = kFromTheBeginning;
  for (const PastEvent& e : events) {
    if (e.name == "started") set = kFromTheBeginning;
    if (e.name == "restart") set = static_cast<std::uint32_t>(e.number("number"));
  }
  return set;
}

}  // namespace shadowib::cli
