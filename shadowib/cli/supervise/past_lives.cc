#include "shadowib/cli/supervise/past_lives.h"

#include <algorithm>

#include "shadowib/cli/supervise/bounds.h"

namespace shadowib::cli {
namespace {

bool is_end_on_request(const PastEvent& e) { return e.name == "checkpoint" && e.number("kill") != 0; }

}  // namespace

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

const PastEvent* last_end_on_request(const std::vector<PastEvent>& events) {
  const auto last = std::find_if(events.rbegin(), events.rend(), is_end_on_request);
  return last != events.rend() ? &*last : nullptr;
}

std::int64_t ends_on_request(const std::vector<PastEvent>& events) {
  std::int64_t ends = 0;
  bool carried_out = false;  // the last of them, as far as is known
  for (const PastEvent& e : events) {
    if (is_end_on_request(e)) {
      ++ends;
      carried_out = true;
    } else if (e.name == "kill_failed" && carried_out) {
      --ends;
      carried_out = false;
    }
  }
  return ends;
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
