// shadowib worker: asks the master of a job for workers. docs/internals/guests.md has the keys.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "hooks/job/job_directory.h"
#include "hooks/job/members.h"
#include "shadowib/base/deadline.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/exchange_place.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/workers.h"

namespace shadowib::cli {
namespace {

struct WorkerArguments {
  Common common;
  std::string job;
  unsigned count = 1;
  double timeout_s = 60;
};

constexpr char kWorkerExamples[] =
    "Examples:\n"
    "  shadowib worker scan          one more worker for job scan\n"
    "  shadowib worker scan -n 8     eight\n\n"
    "The master of the job forks them on its host, the next time it looks for such wishes. A worker leaves by "
    "SIGTERM.\n";

constexpr int kStepMs = 20;

// How many wishes the master has taken. kNotFound: nobody in the job is a master of workers.
Status wishes_taken(const JobView& view, std::uint64_t* taken) {
  std::string text;
  bool found = false;
  SHADOWIB_TRY(view.exchange->get(view.key(kWishesTakenKey), &text, &found));
  if (!found)
    return Status::of(Code::kNotFound, 0,
                      "no process of job %.64s is a master of workers: none has published the value mw.taken",
                      view.job.c_str());
  *taken = std::strtoull(text.c_str(), nullptr, 10);
  return {};
}

// Leaves the wish behind all others.
Status wish(const JobView& view, unsigned count, std::uint64_t* number) {
  SHADOWIB_TRY(wishes_taken(view, number));
  for (;; ++*number) {
    const Status status = view.exchange->claim(view.key(wish_key(*number)), std::to_string(count));
    if (status.code() != Code::kBusy) return status;
  }
}

Status open(const Common& common, const std::string& job, JobView* view) {
  std::string exchange = exchange_of(common, job);
  SHADOWIB_TRY(settle_exchange(job_paths(common.directory, job).password, &exchange));
  SHADOWIB_TRY(open_job(common.directory, job, exchange, view));
  std::vector<MemberStatus> members;
  SHADOWIB_TRY(list_members(*view, &members));
  const auto lives = [](const MemberStatus& m) { return m.alive; };
  return std::any_of(members.begin(), members.end(), lives) ? Status() : why_no_member(common.directory, job);
}

Status await_taking(const JobView& view, std::uint64_t number, double timeout_s) {
  const Deadline deadline = Deadline::in_ms(static_cast<std::int64_t>(timeout_s * 1000));
  std::uint64_t token = 0;
  for (;;) {
    std::uint64_t taken = 0;
    SHADOWIB_TRY(wishes_taken(view, &taken));
    if (taken > number) return {};
    if (deadline.has_passed())
      return Status::of(Code::kTimeout, 0,
                        "the master of job %.64s has not looked for the wish within %g s; it will when it waits for "
                        "results or begins a loop",
                        view.job.c_str(), timeout_s);
    const Status status = view.exchange->watch(view.key("value"), &token, kStepMs, -1);
    if (!status.ok() && status.code() != Code::kTimeout) return status;
  }
}

int worker(WorkerArguments& arguments) {
  Common& common = arguments.common;
  JobView view;
  std::string job;
  std::uint64_t number = 0;
  Status status = resolve(&common);
  if (status.ok()) status = choose_job(common.directory, arguments.job, &job);
  if (status.ok()) status = open(common, job, &view);
  if (status.ok()) status = wish(view, arguments.count, &number);
  if (status.ok()) status = await_taking(view, number, arguments.timeout_s);
  if (!status.ok()) return fail(common, status);
  if (common.json)
    print_json({{"job", job}, {"workers", arguments.count}, {"wish", number}});
  else
    std::printf("the master of job %s makes %u worker%s\n", job.c_str(), arguments.count,
                arguments.count == 1 ? "" : "s");
  return 0;
}

}  // namespace

void add_worker(Command& program) {
  auto arguments = std::make_shared<WorkerArguments>();
  Command* command = program.add_subcommand("worker", "Ask the master of a job for workers");
  command->add_option("J", arguments->job, "The job; the only one alive in --dir if left out")->not_empty("a job");
  command->add_option("-n,--number", arguments->count, "How many workers; 1 if not given")
      ->between(1, 100000, "workers")
      ->type_name("N");
  command
      ->add_option("--timeout", arguments->timeout_s,
                   "Wait at most S seconds for the master to take the wish; default\n60. It stays after that")
      ->between(0.001, 2000000, "seconds")
      ->type_name("S");
  add_common(command, &arguments->common);
  command->footer(kWorkerExamples);
  command->callback([arguments] { return worker(*arguments); });
}

}  // namespace shadowib::cli
