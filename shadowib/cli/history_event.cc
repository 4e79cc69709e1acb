// Reading a line of a job's history, and telling people what it says.
#include <time.h>

#include <cstdio>

#include "shadowib/cli/history.h"
#include "shadowib/cli/units.h"

namespace shadowib::cli {
namespace {

// "2026-11-25T19:40:01.123456Z"; older histories have three digits behind the point.
bool parse_time(const std::string& text, std::int64_t* time_ms) {
  tm broken{};
  int fraction = 0, point = 0, used = 0;
  if (std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d.%n%6dZ%n", &broken.tm_year, &broken.tm_mon, &broken.tm_mday,
                  &broken.tm_hour, &broken.tm_min, &broken.tm_sec, &point, &fraction, &used) != 7 ||
      used != static_cast<int>(text.size()))
    return false;
  const int digits = used - 1 - point;
  if (digits != 3 && digits != 6) return false;
  broken.tm_year -= 1900;
  broken.tm_mon -= 1;
  *time_ms = static_cast<std::int64_t>(::timegm(&broken)) * 1000 + (digits == 6 ? fraction / 1000 : fraction);
  return true;
}

std::string count(double number, const char* thing) {
  const auto whole = static_cast<std::uint64_t>(number);
  return std::to_string(whole) + " " + thing + (whole == 1 ? "" : "s");
}

std::string shown_ms(double value) { return human_time(static_cast<std::int64_t>(value * 1e6)); }

// " (zstd of 96.0 MiB)", of what the pages were before.
std::string compressed(const PastEvent& e) {
  if (e.number("page_bytes") == 0) return {};
  return " (" + e.text("compression") + " of " + human_bytes(static_cast<std::uint64_t>(e.number("page_bytes"))) +
         ")";
}

// "CLC 3, forced, "; "" of a set of the whole job.
std::string clc_number(const PastEvent& e) {
  if (e.name != "clc") return {};
  return "CLC " + std::to_string(static_cast<unsigned>(e.number("sn"))) +
         (e.number("forced") != 0 ? ", forced, " : ", ");
}

std::string describe_checkpoint(const PastEvent& e) {
  std::string text = e.text("set") + ": " + clc_number(e) + count(e.number("members"), "member") + ", " +
                     human_bytes(static_cast<std::uint64_t>(e.number("bytes"))) + compressed(e) + ", stopped for " +
                     shown_ms(e.number("stopped_ms")) + ", took " + shown_ms(e.number("took_ms"));
  return text + (e.number("kill") != 0 ? "; the job was ended on request" : "");
}

std::string describe_restart(const PastEvent& e) {
  return e.text("set") + " as generation " + std::to_string(static_cast<unsigned>(e.number("generation"))) + ": " +
         count(e.number("members"), "member") + " over " + e.text("backend") + ", running after " +
         shown_ms(e.number("ready_ms"));
}

std::string describe_failure(const PastEvent& e) {
  const std::string text = "member " + std::to_string(static_cast<unsigned>(e.number("member"))) + " (pid " +
                           std::to_string(static_cast<unsigned>(e.number("process"))) + "): " + e.text("how");
  return e.has("lost_s") ? text + "; " + human_seconds(e.number("lost_s")) + " since the last set are lost" : text;
}

std::string describe_flush(const PastEvent& e) {
  return e.text("set") + " to " + e.text("far") + ": " + human_bytes(static_cast<std::uint64_t>(e.number("bytes"))) +
         " sent, took " + shown_ms(e.number("took_ms"));
}

std::string describe_notice(const PastEvent& e) {
  std::string text = "by " + e.text("from");
  if (e.has("left_s")) text += ", " + human_seconds(e.number("left_s")) + " are left";
  if (e.has("save_s")) text += ", a save is to have " + human_seconds(e.number("save_s"));
  if (e.number("fits") != 0) return text;
  text += ": too late for it";
  return e.has("lost_s") ? text + "; " + human_seconds(e.number("lost_s")) + " since the last set will be lost"
                         : text;
}

// "cluster B to CLC 3, cluster C to CLC 1: 4 members as generation 1, running after 900 ms; 12 s are lost".
std::string describe_recovery(const PastEvent& e) {
  std::string text;
  if (e.has("line") && e.json["line"].is_array())
    for (const Json& place : e.json["line"]) {
      const PastEvent entry{0, "", place};
      if (entry.number("stays") == 0)
        text += (text.empty() ? "cluster " : ", cluster ") + entry.text("name") + " to CLC " +
                std::to_string(static_cast<unsigned>(entry.number("sn")));
    }
  return text + ": " + count(e.number("members"), "member") + " as generation " +
         std::to_string(static_cast<unsigned>(e.number("generation"))) + ", running after " +
         shown_ms(e.number("ready_ms")) + "; " + human_seconds(e.number("lost_s")) + " are lost";
}

std::string describe_end(const PastEvent& e) {
  if (!e.text("set").empty()) return "on request, saved as " + e.text("set");
  return "exit code " + std::to_string(static_cast<unsigned>(e.number("exit_code")));
}

}  // namespace

std::string PastEvent::text(std::string_view name) const {
  const Json& value = json[name];
  return value.is_string() ? value.get<std::string>() : "";
}

double PastEvent::number(std::string_view name) const {
  const Json& value = json[name];
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  return value.is_number() ? value.get<double>() : 0;
}

bool parse_event(std::string_view line, PastEvent* event) {
  *event = {};
  if (!Json::parse(line, &event->json) || !event->json.is_object()) return false;
  event->name = event->text("event");
  return !event->name.empty() && parse_time(event->text("time"), &event->time_ms);
}

std::string describe_event(const PastEvent& e) {
  if (e.name == "started") return e.text("command") + " on " + e.text("host") + " over " + e.text("backend");
  if (e.name == "checkpoint" || e.name == "clc") return describe_checkpoint(e);
  if (e.name == "clc_failed") return "cluster " + e.text("cluster") + ": " + e.text("error");
  if (e.name == "restart") return describe_restart(e);
  if (e.name == "recovery") return describe_recovery(e);
  if (e.name == "failure") return describe_failure(e);
  if (e.name == "flush") return describe_flush(e);
  if (e.name == "host_lost") return e.text("on") + ": " + e.text("how");
  if (e.name == "notice") return describe_notice(e);
  if (e.name == "ended") return describe_end(e);
  return e.text("error");
}

std::string shown_time(std::int64_t time_ms) {
  const time_t seconds = time_ms / 1000;
  tm broken{};
  ::gmtime_r(&seconds, &broken);
  char text[40];
  ::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &broken);
  return text;
}

}  // namespace shadowib::cli
