#include "shadowib/cli/far_options.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "hooks/job/protocol.h"
#include "hooks/store/files.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/sets.h"

namespace shadowib::cli {
namespace {

std::string far_record_path(const std::string& directory, const std::string& job) {
  return far_path(directory, job) + "/settings";
}

std::string number_text(double number) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.17g", number);
  return text;
}

Status parse_flush(const std::string& text, unsigned* every) {
  *every = text == "all" ? 1 : 0;
  if (text == "all" || text == "none") return {};
  char* end = nullptr;
  const unsigned long number = std::strtoul(text.c_str(), &end, 10);
  if (text.empty() || text[0] < '0' || text[0] > '9' || *end != '\0' || number < 1 || number > 1000000)
    return Status::of(Code::kUsage, EINVAL, "flush '%.60s': use all, none, or N from 1 to 1000000 for each N-th set",
                      text.c_str());
  *every = static_cast<unsigned>(number);
  return {};
}

Status read_record(const std::string& directory, const std::string& job, FarSettings* settings) {
  std::string text;
  Fields fields;
  const Status status = read_file(far_record_path(directory, job), &text);
  if (status.error() == ENOENT || status.error() == ENOTDIR) return {};
  SHADOWIB_TRY(status);
  if (!decode_fields(text, &fields) || !parse_far(field_text(fields, "far"), &settings->spec).ok() ||
      !parse_flush(field_text(fields, "flush"), &settings->every).ok())
    return Status::of(Code::kVersion, 0, "%.250s is of another shadowib; name the far place with --far",
                      far_record_path(directory, job).c_str());
  settings->known = true;
  settings->from = static_cast<std::uint32_t>(field_number(fields, "from"));
  settings->rate = std::strtod(field_text(fields, "rate").c_str(), nullptr);
  settings->timeout_s = std::strtod(field_text(fields, "timeout").c_str(), nullptr);
  return {};
}

Status of_variable(const char* name, const Status& status) {
  return status.ok() ? status : Status::of(Code::kUsage, EINVAL, "%s: %.300s", name, status.text());
}

}  // namespace

void add_far_options(Command* command, FarOptions* options, bool automatic) {
  command
      ->add_option(
          "--far", options->far,
          "Where sets are copied to, and fetched from: dir:PATH, a directory\nof another file system, or exec:CMD, "
          "a command that puts and gets\nobjects; default $SHADOWIB_FAR, else as the job was started")
      ->not_empty("a far place")
      ->type_name("FAR");
  if (automatic)
    command
        ->add_option("--flush", options->flush,
                     "Which sets are copied to FAR once they are committed: all, each\nN-th, or none; default "
                     "$SHADOWIB_FLUSH, else as the job was\nstarted, else all")
        ->not_empty("all, none or a number")
        ->type_name("WHICH");
  command
      ->add_option("--flush-rate", options->rate,
                   "How many bytes a second a flush may move; by default there is no\nlimit")
      ->between(1, 1e15, "bytes a second")
      ->type_name("BYTES");
  command
      ->add_option("--far-timeout", options->timeout_s,
                   "How long the command of exec:CMD may move no byte before it is\nended; default 60")
      ->between(0.1, 2000000, "seconds")
      ->type_name("S");
}

std::string far_path(const std::string& directory, const std::string& job) { return directory + "/far/" + job; }

std::string flush_text(unsigned every) { return every == 0 ? "none" : every == 1 ? "all" : std::to_string(every); }

Status choose_far(const FarOptions& options, const std::string& directory, const std::string& job,
                  FarSettings* settings) {
  *settings = {};
  const std::string far = variable_of("FAR", job), flush = variable_of("FLUSH", job);
  const bool named = !options.far.empty() || !far.empty();
  const Status recorded = read_record(directory, job, settings);
  if (!named) SHADOWIB_TRY(recorded);
  if (named && !settings->known) settings->every = 1;
  if (!options.far.empty()) SHADOWIB_TRY(parse_far(options.far, &settings->spec));
  if (options.far.empty() && named) SHADOWIB_TRY(of_variable("SHADOWIB_FAR", parse_far(far, &settings->spec)));
  settings->known = settings->known || named;
  if (!options.flush.empty())
    SHADOWIB_TRY(parse_flush(options.flush, &settings->every));
  else if (!flush.empty())
    SHADOWIB_TRY(of_variable("SHADOWIB_FLUSH", parse_flush(flush, &settings->every)));
  if (options.rate > 0) settings->rate = options.rate;
  if (options.timeout_s > 0) settings->timeout_s = options.timeout_s;
  if (!settings->known && !options.flush.empty() && settings->every > 0)
    return Status::of(Code::kUsage, EINVAL, "--flush %.60s: job %.64s has no far place; name one with --far",
                      options.flush.c_str(), job.c_str());
  return {};
}

Status record_far(const std::string& directory, const std::string& job, const FarSettings& settings) {
  const std::string path = far_record_path(directory, job);
  if (!settings.known) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT && errno != ENOTDIR) return file_error(errno, "remove", path);
    return {};
  }
  SHADOWIB_TRY(ensure_directory(far_path(directory, job)));
  return place_file(path,
                    encode_fields({{"far", settings.spec.text()},
                                   {"flush", flush_text(settings.every)},
                                   {"from", std::to_string(settings.from)},
                                   {"rate", number_text(settings.rate)},
                                   {"timeout", number_text(settings.timeout_s)}}),
                    false);
}

Status take_far(const FarOptions& options, const std::string& directory, const std::string& job,
                FarSettings* settings) {
  std::string who;
  FarSettings before;
  if (!job_in_use(directory, job, &who)) SHADOWIB_TRY(record_far(directory, job, {}));
  SHADOWIB_TRY(read_record(directory, job, &before));
  SHADOWIB_TRY(choose_far(options, directory, job, settings));
  if (!settings->known) return {};
  settings->from = before.known ? before.from : 1;
  std::uint32_t number = 0;
  std::string name;
  if (!before.known && parse_set_name(newest_set(directory, job), &name, &number)) settings->from = number + 1;
  return settings->open()->check();
}

}  // namespace shadowib::cli
