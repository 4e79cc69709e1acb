// shadowib history and shadowib report: what has happened to a job.
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "hooks/store/files.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/history.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/report_page.h"
#include "shadowib/cli/wall_clock.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

struct HistoryArguments {
  Common common;
  std::string job, output;
  unsigned last = 0;
};

constexpr char kHistoryExamples[] =
    "Examples:\n"
    "  shadowib history                     the jobs of --dir that have a history\n"
    "  shadowib history demo --last 20      the newest events of a job, one a line\n"
    "  shadowib history demo --json | jq '.events[] | select(.event == \"failure\")'\n\n"
    "Every command adds to it: started, checkpoint, checkpoint_failed, kill_failed, clc, clc_failed (of one "
    "cluster),\n"
    "recovery, recovery_failed (of clusters),\n"
    "restart, restart_failed, failure, ended. Times are UTC. It lies in DIR/history/J as JSON lines, and gc leaves\n"
    "it; remove the directory to forget it.\n";

constexpr char kReportExamples[] =
    "Examples:\n"
    "  shadowib report demo                 writes demo-report.html\n"
    "  shadowib report demo --output /var/www/demo.html\n\n"
    "One HTML file with plots of a job's history: events, pauses and what they are made of, sizes, intervals, "
    "failures.\n"
    "It needs no network and no script, and may be mailed. The last line of standard output is its path.\n";

// `given`, or the only job with a history.
Status choose_history(const std::string& directory, std::string* job) {
  const std::vector<std::string> jobs = jobs_with_history(directory);
  if (job->empty() && jobs.size() == 1) *job = jobs[0];
  if (job->empty() && !jobs.empty())
    return Status::of(Code::kUsage, 0, "several jobs have a history in %.150s (%.64s, %.64s%s); name one",
                      directory.c_str(), jobs[0].c_str(), jobs[1].c_str(), jobs.size() > 2 ? ", ..." : "");
  if (job->empty()) return Status::of(Code::kNotFound, 0, "no job has a history in %.250s", directory.c_str());
  if (!valid_job_name(*job))
    return Status::of(Code::kUsage, 0, "'%.100s' is no job name: %s", job->c_str(), kJobNameRule);
  return {};
}

int list_histories(const Common& common) {
  Json list = Json::array();
  Table table({"job", "events", "newest event", "what"});
  for (const std::string& job : jobs_with_history(common.directory)) {
    std::vector<PastEvent> events;
    unsigned torn = 0;
    if (!read_history(common.directory, job, &events, &torn).ok()) continue;
    const PastEvent& last = events.back();
    list.push_back({{"job", job}, {"events", events.size()}, {"newest", last.json}});
    table.add({job, std::to_string(events.size()), shown_time(last.time_ms), last.name});
  }
  if (common.json)
    print_json({{"directory", common.directory}, {"jobs", list}});
  else if (table.empty())
    std::fprintf(stderr, "shadowib: no job has a history in %s\n", common.directory.c_str());
  else
    table.print();
  return 0;
}

int history(HistoryArguments& arguments) {
  Common& common = arguments.common;
  std::vector<PastEvent> events;
  unsigned torn = 0;
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  if (Status s = require_directory(common); !s.ok()) return fail(common, s);
  if (arguments.job.empty()) return list_histories(common);
  if (Status s = choose_history(common.directory, &arguments.job); !s.ok()) return fail(common, s);
  if (Status s = read_history(common.directory, arguments.job, &events, &torn); !s.ok()) return fail(common, s);
  if (arguments.last > 0 && events.size() > arguments.last)
    events.erase(events.begin(), events.end() - static_cast<std::ptrdiff_t>(arguments.last));
  if (torn > 0) std::fprintf(stderr, "shadowib: %u line%s cannot be read\n", torn, torn == 1 ? "" : "s");
  if (common.json) {
    Json list = Json::array();
    for (const PastEvent& e : events) list.push_back(e.json);
    print_json({{"job", arguments.job}, {"directory", common.directory}, {"events", list}});
    return 0;
  }
  Table table({"time (UTC)", "event", "what"});
  for (const PastEvent& e : events) table.add({shown_time(e.time_ms), e.name, describe_event(e)});
  table.print();
  return 0;
}

// The mode of the file that it replaces, or of any new file: readers may be others, such as a web server.
mode_t report_mode(const std::string& file) {
  struct stat st {};
  if (::stat(file.c_str(), &st) == 0) return st.st_mode & 0777;
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

Status write_report(const std::string& file, const std::string& page) {
  const std::string temporary = file + "." + random_hex(4) + ".new";
  SHADOWIB_TRY(write_new_file(temporary, page));
  (void)::chmod(temporary.c_str(), report_mode(file));
  if (::rename(temporary.c_str(), file.c_str()) == 0) return {};
  const int err = errno;
  ::unlink(temporary.c_str());
  return file_error(err, "write", file);
}

int report(HistoryArguments& arguments) {
  Common& common = arguments.common;
  std::vector<PastEvent> events;
  unsigned torn = 0;
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  if (Status s = require_directory(common); !s.ok()) return fail(common, s);
  if (Status s = choose_history(common.directory, &arguments.job); !s.ok()) return fail(common, s);
  if (Status s = read_history(common.directory, arguments.job, &events, &torn); !s.ok()) return fail(common, s);
  std::error_code error;
  const std::string file =
      fs::absolute(arguments.output.empty() ? arguments.job + "-report.html" : arguments.output, error)
          .lexically_normal();
  const std::string page = report_page(common.directory, arguments.job, events, wall_clock_ns() / 1'000'000);
  if (Status s = write_report(file, page); !s.ok()) return fail(common, s);
  if (common.json)
    print_json({{"job", arguments.job}, {"report", file}, {"events", events.size()}, {"bytes", page.size()}});
  else
    std::printf("%s\n", file.c_str());
  return 0;
}

}  // namespace

void add_history(Command& program) {
  auto arguments = std::make_shared<HistoryArguments>();
  Command* command = program.add_subcommand("history", "Show what has happened to a job");
  command->add_option("J", arguments->job, "The job; the jobs of --dir are listed if left out")
      ->not_empty("a job")
      ->completed_by(kHistoryNames);
  command->add_option("--last", arguments->last, "Only the newest N events; default all")
      ->between(1, 1000000, "events")
      ->type_name("N");
  add_common(command, &arguments->common);
  command->footer(kHistoryExamples);
  command->callback([arguments] { return history(*arguments); });
}

void add_report(Command& program) {
  auto arguments = std::make_shared<HistoryArguments>();
  Command* command = program.add_subcommand("report", "Write a job's history as a page with plots");
  command->add_option("J", arguments->job, "The job; may be left out if only one has a history")
      ->not_empty("a job")
      ->completed_by(kHistoryNames);
  command->add_option("--output", arguments->output, "The HTML file; default J-report.html")
      ->not_empty("a file")
      ->type_name("FILE");
  add_common(command, &arguments->common);
  command->footer(kReportExamples);
  command->callback([arguments] { return report(*arguments); });
}

}  // namespace shadowib::cli
