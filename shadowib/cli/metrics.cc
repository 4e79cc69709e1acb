#include "shadowib/cli/metrics.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "hooks/job/job_directory.h"
#include "hooks/store/files.h"
#include "shadowib/cli/history_figures.h"
#include "shadowib/cli/wall_clock.h"

namespace shadowib::cli {
namespace {

class Exposition {
 public:
  explicit Exposition(const std::string& job) : job_(job) {}

  Exposition& family(const char* name, const char* type, const char* help) {
    name_ = std::string("shadowib_") + name;
    text_ += "# HELP " + name_ + " " + help + "\n# TYPE " + name_ + " " + type + "\n";
    return *this;
  }
  // A job's name has nothing that a label's value must escape.
  Exposition& sample(double value, const std::string& labels = "", const char* suffix = "") {
    char number[32];
    std::snprintf(number, sizeof(number), "%.15g", value);
    text_ += name_ + suffix + "{job=\"" + job_ + "\"" + (labels.empty() ? "" : "," + labels) + "} " + number + "\n";
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  const std::string job_;
  std::string name_, text_;
};

void add_last_set(const PastEvent& last, Exposition* to) {
  to->family("last_success_timestamp_seconds", "gauge", "When the newest set was committed, in seconds since 1970.")
      .sample(static_cast<double>(last.time_ms) / 1e3);
  to->family("last_stopped_seconds", "gauge", "How long the program stood for the newest set.")
      .sample(last.number("stopped_ms") / 1e3);
  to->family("set_bytes", "gauge", "Size of the newest set.").sample(last.number("bytes"));
  to->family("set_members", "gauge", "Processes in the newest set.").sample(last.number("members"));
}

}  // namespace

std::string metrics_text(const std::string& job, const std::vector<PastEvent>& events, std::int64_t now_ms) {
  const HistoryFigures f = add_up(events);
  const auto count = [](RestartReason reason) { return static_cast<std::size_t>(reason); };
  Exposition to(job);
  to.family("checkpoints_total", "counter", "Checkpoints, by how they ended.")
      .sample(f.committed, "result=\"committed\"")
      .sample(f.failed, "result=\"failed\"");
  to.family("stopped_seconds", "summary", "How long the program stood for a checkpoint.")
      .sample(f.stopped_s, "", "_sum")
      .sample(f.committed, "", "_count");
  to.family("checkpoint_seconds", "summary", "How long a checkpoint took, from the request to the end.")
      .sample(f.taken_s, "", "_sum")
      .sample(f.committed, "", "_count");
  to.family("restarts_total", "counter", "Restarts, by what had ended the job before.")
      .sample(f.restarts[count(RestartReason::kAfterFailure)], "reason=\"failure\"")
      .sample(f.restarts[count(RestartReason::kPlanned)], "reason=\"planned\"")
      .sample(f.restarts[count(RestartReason::kUnknown)], "reason=\"unknown\"");
  to.family("failed_restarts_total", "counter", "Restarts that did not bring the job back.")
      .sample(f.failed_restarts);
  to.family("failures_total", "counter", "Processes of the job that ended badly.").sample(f.failures);
  to.family("lost_seconds_total", "counter", "Work that failures have undone, as far as it is known.")
      .sample(f.lost_s);
  to.family("useful_ratio", "gauge", "Part of the time that was not spent on standing, restarting or lost work.")
      .sample(f.useful_ratio(now_ms));
  if (f.last_checkpoint != nullptr) add_last_set(*f.last_checkpoint, &to);
  return to.text();
}

Status write_metrics(const std::string& file, const std::string& directory, const std::string& job) {
  std::vector<PastEvent> events;
  unsigned torn = 0;
  if (Status s = read_history(directory, job, &events, &torn); !s.ok() && s.code() != Code::kNotFound) return s;
  const std::string temporary = file + "." + random_hex(4) + ".new";
  SHADOWIB_TRY(write_new_file(temporary, metrics_text(job, events, wall_clock_ns() / 1'000'000)));
  // Read by a collector, which is another user.
  (void)::chmod(temporary.c_str(), 0644);
  if (::rename(temporary.c_str(), file.c_str()) == 0) return {};
  const int err = errno;
  ::unlink(temporary.c_str());
  return file_error(err, "write", file);
}

void keep_metrics(const std::string& file, const std::string& directory, const std::string& job) {
  if (file.empty()) return;
  if (const Status s = write_metrics(file, directory, job); !s.ok())
    std::fprintf(stderr, "shadowib: --metrics: %s\n", s.text());
}

}  // namespace shadowib::cli
