#include "shadowib/cli/report_page.h"

#include <algorithm>
#include <cstdio>

#include "shadowib/cli/history_figures.h"
#include "shadowib/cli/report_style.h"
#include "shadowib/cli/svg_plot.h"
#include "shadowib/cli/units.h"

namespace shadowib::cli {
namespace {

constexpr std::size_t kMostBars = 40, kMostRows = 200, kMostBadRows = 50;

const std::vector<std::pair<const char*, const char*>>& kinds() {  // of events: name, what people read
  static const std::vector<std::pair<const char*, const char*>> kKinds = {{"started", "started"},
                                                                          {"checkpoint", "checkpoint"},
                                                                          {"checkpoint_failed", "not taken"},
                                                                          {"kill_failed", "not ended"},
                                                                          {"clc", "CLC"},
                                                                          {"clc_failed", "no CLC"},
                                                                          {"recovery", "recovery"},
                                                                          {"recovery_failed", "no recovery"},
                                                                          {"restart", "restart"},
                                                                          {"restart_failed", "no restart"},
                                                                          {"failure", "failure"},
                                                                          {"ended", "end"}};
  return kKinds;
}

std::string shown_name(const std::string& event) {
  for (const auto& [name, shown] : kinds())
    if (event == name) return shown;
  return event;
}

bool is_bad(const PastEvent& e) {
  return e.name == "failure" || e.name.ends_with("_failed") ||
         (e.name == "ended" && e.number("exit_code") != 0 && e.text("set").empty());
}

std::string shown_ms(double ms) { return human_time(static_cast<std::int64_t>(ms * 1e6)); }

std::string tip_of(const PastEvent& e) { return shown_time(e.time_ms) + " UTC\n" + describe_event(e); }

// --- tiles

std::string tile(const std::string& name, const std::string& value, const std::string& below, bool bad = false) {
  return "<div class=\"tile" + std::string(bad ? " bad" : "") + "\"><dt>" + escaped(name) + "</dt><dd>" +
         escaped(value) + "</dd><p>" + escaped(below) + "</p></div>\n";
}

std::string plural(unsigned number, const char* thing) {
  return std::to_string(number) + " " + thing + (number == 1 ? "" : "s");
}

std::string tiles(const HistoryFigures& f, std::int64_t now_ms) {
  std::string text;
  if (f.last_checkpoint != nullptr) {
    const PastEvent& last = *f.last_checkpoint;
    text += tile("Newest set", human_seconds(static_cast<double>(now_ms - last.time_ms) / 1e3) + " old",
                 last.text("set") + ", " + plural(static_cast<unsigned>(last.number("members")), "member"));
    text += tile("Size", human_bytes(static_cast<std::uint64_t>(last.number("bytes"))), "of the newest set");
    text += tile("Pause", shown_ms(f.stopped_median_ms), "median; " + shown_ms(f.stopped_worst_ms) + " at most");
  } else {
    text += tile("Newest set", "none", "no checkpoint has been committed");
  }
  text += tile("Checkpoints", std::to_string(f.committed),
               f.failed == 0 ? "none failed" : std::to_string(f.failed) + " not taken", f.failed != 0);
  const unsigned after_failure = f.restarts[static_cast<int>(RestartReason::kAfterFailure)];
  text += tile("Restarts", std::to_string(f.all_restarts()),
               f.all_restarts() == 0 ? "none needed" : std::to_string(after_failure) + " after a failure");
  text += tile("Failures", std::to_string(f.failures),
               f.failures == 0 ? "none seen" : human_seconds(f.lost_s) + " of work lost", f.failures != 0);
  char useful[32];
  std::snprintf(useful, sizeof(useful), "%.2f %%", 100 * f.useful_ratio(f.last_ms));
  return text + tile("Useful time", useful, "without pauses, restarts, lost work");
}

// --- plots

std::string figure(const std::string& title, const std::string& about, const std::string& plot) {
  return "<figure><figcaption><h2>" + escaped(title) + "</h2><p>" + escaped(about) + "</p></figcaption>\n" + plot +
         "</figure>\n";
}

TimeSpan span_of(const std::vector<PastEvent>& events) {
  TimeSpan span{events.front().time_ms, events.back().time_ms};
  const std::int64_t room = std::max<std::int64_t>((span.to_ms - span.from_ms) / 50, 500);
  span.from_ms -= room;
  span.to_ms += room;
  return span;
}

std::string timeline(const std::vector<PastEvent>& events, const TimeSpan& span) {
  std::vector<Lane> lanes;
  for (const auto& [name, shown] : kinds()) {
    Lane lane{shown, std::string("event-") + name, {}};
    for (const PastEvent& e : events)
      if (e.name == name) lane.marks.push_back({e.time_ms, 0, tip_of(e)});
    if (!lane.marks.empty()) lanes.push_back(std::move(lane));
  }
  return figure("What happened", "Every event of the job, in UTC. Rest the pointer on one to read it.",
                lane_plot("Events of the job over time", span, lanes));
}

std::string pauses(const std::vector<PastEvent>& checkpoints, const TimeSpan& span) {
  std::vector<PlotPoint> points;
  for (const PastEvent& e : checkpoints) points.push_back({e.time_ms, e.number("stopped_ms"), tip_of(e)});
  return figure(
      "How long the program stood", "From the stop of its threads until the set is committed, in the slowest member.",
      value_plot({"Pause of each checkpoint over time", "milliseconds, logarithmic", true, "series"}, span, points));
}

// Values in the greatest unit of which there is one at least.
struct Unit {
  const char* name;
  double size;
};
Unit scale(std::vector<PlotPoint>* points, const std::vector<Unit>& units) {
  double greatest = 0;
  for (const PlotPoint& p : *points) greatest = std::max(greatest, p.value);
  Unit chosen = units.front();
  for (const Unit& unit : units)
    if (greatest >= unit.size) chosen = unit;
  for (PlotPoint& p : *points) p.value /= chosen.size;
  return chosen;
}

std::string sizes(const std::vector<PastEvent>& checkpoints, const TimeSpan& span) {
  std::vector<PlotPoint> points;
  for (const PastEvent& e : checkpoints) points.push_back({e.time_ms, e.number("bytes"), tip_of(e)});
  const Unit unit =
      scale(&points, {{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1024.0 * (1 << 30)}});
  return figure("Size of the sets", "Images of all members together.",
                value_plot({"Size of each set over time", unit.name, false, "series"}, span, points));
}

std::string intervals(const std::vector<PastEvent>& checkpoints, const TimeSpan& span) {
  std::vector<PlotPoint> points;
  for (std::size_t i = 1; i < checkpoints.size(); ++i) {
    const double seconds = static_cast<double>(checkpoints[i].time_ms - checkpoints[i - 1].time_ms) / 1e3;
    points.push_back({checkpoints[i].time_ms, seconds,
                      checkpoints[i].text("set") + ": " + human_seconds(seconds) + " after the set before"});
  }
  if (points.empty()) return {};
  const Unit unit = scale(&points, {{"seconds", 1}, {"minutes", 60}, {"hours", 3600}, {"days", 86400}});
  return figure(
      "Time between sets",
      "A failure undoes what was done since the newest set: the more time, the more work is at risk.",
      value_plot({"Time since the set before, over time", std::string(unit.name) + ", logarithmic", true, "series"},
                 span, points));
}

const std::vector<BarPart>& phases() {
  static const std::vector<BarPart> kPhases = {{"stop", "phase-stop"},       {"settle", "phase-settle"},
                                               {"quiesce", "phase-quiesce"}, {"inspect", "phase-inspect"},
                                               {"save", "phase-save"},       {"commit", "phase-commit"}};
  return kPhases;
}

// As many bars as can be told apart, each the mean of as many checkpoints in a row.
std::vector<StackedBar> phase_bars(const std::vector<PastEvent>& checkpoints) {
  std::vector<StackedBar> bars;
  const std::size_t count = std::min(checkpoints.size(), kMostBars);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t first = i * checkpoints.size() / count, end = (i + 1) * checkpoints.size() / count;
    const std::string set = checkpoints[first].text("set");
    StackedBar bar{set.substr(set.rfind('.') + 1), std::vector<double>(phases().size(), 0)};
    for (std::size_t at = first; at < end; ++at)
      for (std::size_t p = 0; p < phases().size(); ++p)
        bar.values[p] += checkpoints[at].number(phases()[p].name + "_ms") / static_cast<double>(end - first);
    bars.push_back(std::move(bar));
  }
  return bars;
}

std::string legend() {
  std::string text = "<ul class=\"legend\">";
  for (const BarPart& part : phases()) text += "<li><i class=\"" + part.style + "\"></i>" + part.name + "</li>";
  return text + "</ul>\n";
}

std::string pause_parts(const std::vector<PastEvent>& checkpoints) {
  std::string about = "The slowest member's time in each phase.";
  if (checkpoints.size() > kMostBars)
    about += " Each bar is the mean of some checkpoints in a row, and has the number of the first.";
  return figure("What the pause is made of", about,
                legend() + bar_plot("Phases of checkpoints", "milliseconds", phases(), phase_bars(checkpoints)));
}

// --- tables

std::string row(const PastEvent& e) {
  return "<tr" + std::string(is_bad(e) ? " class=\"bad\"" : "") + "><td>" + shown_time(e.time_ms) + "</td><td>" +
         escaped(shown_name(e.name)) + "</td><td>" + escaped(describe_event(e)) + "</td></tr>\n";
}

// The newest first.
template <typename Wanted>
std::string table(const std::vector<PastEvent>& events, std::size_t most, Wanted wanted) {
  std::string rows;
  std::size_t count = 0;
  for (auto e = events.rbegin(); e != events.rend() && count < most; ++e)
    if (wanted(*e)) rows += row(*e), ++count;
  return rows.empty() ? rows
                      : "<div class=\"wide\"><table><thead><tr><th>time "
                        "(UTC)</th><th>event</th><th>what</th></tr></thead><tbody>\n" +
                            rows + "</tbody></table></div>\n";
}

std::string tables(const std::vector<PastEvent>& events) {
  std::string text;
  if (const std::string bad = table(events, kMostBadRows, is_bad); !bad.empty())
    text += "<section><h2>What went wrong</h2>\n" + bad + "</section>\n";
  const std::string all = table(events, kMostRows, [](const PastEvent&) { return true; });
  const std::string which =
      events.size() > kMostRows
          ? "The newest " + std::to_string(kMostRows) + " of " + std::to_string(events.size()) + " events"
          : "All " + plural(static_cast<unsigned>(events.size()), "event");
  return text + "<section><h2>" + which + "</h2>\n" + all + "</section>\n";
}

}  // namespace

std::string report_page(const std::string& directory, const std::string& job, const std::vector<PastEvent>& events,
                        std::int64_t now_ms) {
  std::vector<PastEvent> checkpoints;
  for (const PastEvent& e : events)
    if (e.name == "checkpoint") checkpoints.push_back(e);
  const HistoryFigures figures = add_up(events);
  const TimeSpan span = span_of(events);
  std::string page =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>" + escaped(job) +
      " - shadowib report</title>\n<meta name=\"viewport\" content=\"width=device-width\">\n<style>" + kReportStyle +
      "</style></head>\n<body><main>\n<header><h1>Job " + escaped(job) + "</h1><p>" + escaped(directory) + "</p><p>" +
      shown_time(figures.first_ms) + " to " + shown_time(figures.last_ms) + " UTC (" +
      human_seconds(static_cast<double>(figures.last_ms - figures.first_ms) / 1e3) + "). Written " +
      shown_time(now_ms) + " UTC by shadowib " SHADOWIB_VERSION ".</p></header>\n<dl class=\"tiles\">\n" +
      tiles(figures, now_ms) + "</dl>\n";
  page += timeline(events, span);
  if (!checkpoints.empty())
    page += pauses(checkpoints, span) + pause_parts(checkpoints) + sizes(checkpoints, span) +
            intervals(checkpoints, span);
  return page + tables(events) + "</main></body></html>\n";
}

}  // namespace shadowib::cli
