// shadowib flush: copies committed sets to a far place.
#include <memory>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/imager/set/manifest.h"
#include "hooks/job/job_directory.h"
#include "shadowib/cli/far_flush.h"
#include "shadowib/cli/far_turns.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/sets.h"

namespace shadowib::cli {
namespace {

struct FlushArguments {
  Common common;
  FarOptions far;
  std::string set;
  bool wait = false, due = false;
};

constexpr char kFlushExamples[] =
    "Examples:\n"
    "  shadowib flush demo --far dir:/archive        the newest set of job demo, to another file system\n"
    "  shadowib flush demo.0003 --far exec:s3-far    to an object store, by the command s3-far\n"
    "  shadowib flush demo --wait                    as recorded, after a flush that is under way\n\n"
    "The set is in FAR whole or not at all: objects first, each checked by its hash, the manifest last. What is "
    "there\n"
    "and right is not sent again, so a flush that was killed is gone on with by another one. The set stays where it "
    "is.\n";

// What a checkpoint starts: it has nobody to tell, but for the job's history.
int flush_job(FlushArguments& arguments) {
  FarSettings settings;
  const Common& common = arguments.common;
  if (Status s = choose_far(arguments.far, common.directory, arguments.set, &settings); !s.ok())
    return fail(common, s);
  const Status status = flush_due(common.directory, arguments.set, settings, arguments.wait);
  return status.ok() ? 0 : fail(common, status);
}

int flush(FlushArguments& arguments) {
  Common& common = arguments.common;
  std::string path;
  SetManifest manifest;
  FarSettings settings;
  FlushTurn turn;
  FlushReport report;
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  if (arguments.due) return flush_job(arguments);
  if (arguments.set.empty())
    if (Status s = choose_job(common.directory, "", &arguments.set); !s.ok()) return fail(common, s);
  if (Status s = choose_set(&common, arguments.set, &path); !s.ok()) return fail(common, s);
  if (Status s = read_manifest(path, &manifest); !s.ok()) return fail(common, s);
  if (is_portable(manifest))
    return fail(common, Status::of(Code::kUsage, EINVAL, "%.100s has portable images, which go to no far place yet",
                                   manifest.path.c_str()));
  if (manifest.cluster)
    return fail(common,
                Status::of(Code::kUsage, EINVAL, "%.100s is a checkpoint of one cluster, which goes to no far place",
                           name_of(manifest).c_str()));
  if (Status s = choose_far(arguments.far, common.directory, manifest.job, &settings); !s.ok())
    return fail(common, s);
  if (!settings.known)
    return fail(common, Status::of(Code::kUsage, EINVAL, "job %.64s has no far place; name one with --far",
                                   manifest.job.c_str()));
  if (Status s = settings.open()->check(); !s.ok()) return fail(common, s);
  if (Status s = turn.take(common.directory, manifest.job, arguments.wait); !s.ok()) return fail(common, s);
  if (Status s = flush_set(common.directory, manifest.path, settings, &report); !s.ok()) return fail(common, s);
  if (common.json)
    print_json({{"set", manifest.path},
                {"far", settings.spec.text()},
                {"objects", report.sent + report.present},
                {"sent", report.sent},
                {"bytes_sent", report.bytes}});
  else
    std::printf("%s is in %s: %zu of %zu objects sent, %s\n", manifest.path.c_str(), settings.spec.text().c_str(),
                report.sent, report.sent + report.present, human_bytes(report.bytes).c_str());
  return 0;
}

}  // namespace

void add_flush(Command& program) {
  auto arguments = std::make_shared<FlushArguments>();
  Command* command = program.add_subcommand("flush", "Copy a set to a far place");
  command
      ->add_option("SET", arguments->set,
                   "The set: its path, its name as `shadowib list` shows it, or a\njob, which stands for its newest "
                   "set; default the only job alive")
      ->completed_by(kSetNames)
      ->not_empty("a set");
  add_far_options(command, &arguments->far, false);
  command->add_flag("--wait", arguments->wait, "Wait for another flush of the job that is under way");
  command->add_flag("--due", arguments->due, "Flush all sets of the job SET that are due")->hidden();
  add_common(command, &arguments->common);
  command->footer(kFlushExamples);
  command->callback([arguments] { return flush(*arguments); });
}

}  // namespace shadowib::cli
