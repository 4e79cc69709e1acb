// A job's history: one JSON object a line, in <directory>/history/<job>/<host>.<pid>.jsonl.
//
// Every command writes a file of its own, since appends of two hosts to one file tear on NFS.
// docs/man/shadowib-history.1 lists the events and their members.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shadowib/base/json_value.h"
#include "shadowib/base/status.h"

namespace shadowib::cli {

class HistoryEvent {
 public:
  // Happens now.
  explicit HistoryEvent(const char* name);
  HistoryEvent& add(const char* name, Json value) {
    json_[name] = std::move(value);
    return *this;
  }
  std::string line() const { return json_.dump(); }  // without a newline

 private:
  Json json_;
};

// For members that are times in ms: three digits behind the point.
double milliseconds(std::int64_t ns);

std::string history_path(const std::string& directory, const std::string& job);

// Appends the event to this process's file. A job goes on without its history: kIo is a remark, no failure.
Status append_history(const std::string& directory, const std::string& job, const HistoryEvent& event);

// Appends, and tells on standard error if that fails.
void note_event(const std::string& directory, const std::string& job, const HistoryEvent& event);

struct PastEvent {
  std::int64_t time_ms = 0;  // since 1970, UTC
  std::string name;
  Json json;

  std::string text(std::string_view name) const;  // "" if it has none
  double number(std::string_view name) const;     // 0 if it has none; 1 for true
  bool has(std::string_view name) const { return json.contains(name); }
};

// One line. False: it is no event.
bool parse_event(std::string_view line, PastEvent* event);

// All events of a job, oldest first. *torn counts the lines that make no sense. kNotFound: it has no history. kIo:
// some could not be read now, and *events is empty. Files that only another user may read are left out.
Status read_history(const std::string& directory, const std::string& job, std::vector<PastEvent>* events,
                    unsigned* torn);

// The jobs that have a history.
std::vector<std::string> jobs_with_history(const std::string& directory);

// Whether the history has no event but of starts.
bool only_started(const std::string& directory, const std::string& job);

// Puts the lines of this host's writers that have ended into one file. Nobody loses a line if it is cut short.
Status pack_history(const std::string& directory, const std::string& job);

// For people: what the event says, in one line.
std::string describe_event(const PastEvent& event);
// "2026-11-25 19:40:01", UTC.
std::string shown_time(std::int64_t time_ms);

}  // namespace shadowib::cli
