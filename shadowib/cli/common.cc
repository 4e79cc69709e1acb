#include "shadowib/cli/common.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "hooks/store/files.h"
#include "shadowib/cli/output.h"

namespace shadowib::cli {
namespace fs = std::filesystem;

void add_common(Command* command, Common* common) {
  command
      ->add_option("--dir", common->directory,
                   "Where jobs and checkpoint sets lie; default $SHADOWIB_DIR,\nelse ./shadowib-ckpt")
      ->not_empty("a directory")
      ->type_name("DIR");
  command
      ->add_option("--exchange", common->exchange,
                   "How the processes find each other; default what the job was\nstarted with, else dir: below DIR")
      ->not_empty("an exchange")
      ->type_name("URI");
  command->add_flag("--json", common->json, "Answer in JSON on standard output");
}

std::string environment(const char* name) {
  const char* value = std::getenv((std::string("SHADOWIB_") + name).c_str());
  return value != nullptr ? value : "";
}

std::string variable_of(const char* name, const std::string& job) {
  const std::string owner = environment("JOB");
  return owner.empty() || owner == job ? environment(name) : "";
}

bool speaks_for_launch() {
  for (const char* name : {"PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name); rank != nullptr && rank[0] != '\0') return std::strcmp(rank, "0") == 0;
  return true;
}

Status backend_variable(std::string* backend) {
  *backend = environment("BACKEND");
  if (backend->empty() || *backend == "auto" || *backend == "verbs" || *backend == "ib2tcp") return {};
  return Status::of(Code::kUsage, 0, "SHADOWIB_BACKEND='%.60s' is none of auto, verbs, ib2tcp", backend->c_str());
}

Status seconds_variable(const char* name) {
  const std::string value = environment(name);
  char* end = nullptr;
  const double seconds = std::strtod(value.c_str(), &end);
  if (value.empty() || (*end == '\0' && std::isfinite(seconds) && seconds > 0)) return {};
  return Status::of(Code::kUsage, 0, "SHADOWIB_%.40s='%.60s' is no number of seconds above 0", name, value.c_str());
}

namespace {

Status count_variable(const char* name, const char* what, unsigned most, unsigned* count) {
  const std::string value = environment(name);
  if (value.empty()) return {};
  constexpr std::size_t kMostDigits = 9;
  const bool digits = value.size() <= kMostDigits && value.find_first_not_of("0123456789") == std::string::npos;
  const unsigned long number = digits ? std::stoul(value) : 0;
  if (number < 1 || number > most)
    return Status::of(Code::kUsage, 0, "SHADOWIB_%.40s='%.40s' is no number of %s from 1 to %u", name, value.c_str(),
                      what, most);
  *count = static_cast<unsigned>(number);
  return {};
}

}  // namespace

Status keep_variable(unsigned* count) { return count_variable("KEEP", "sets", kMostKept, count); }

Status processes_variable(unsigned* count) { return count_variable("PROCESSES", "processes", kMostProcesses, count); }

std::string absolute_exchange(const std::string& uri) {
  if (uri.compare(0, 4, "dir:") != 0 || uri.size() == 4) return uri;
  std::error_code error;
  return "dir:" + fs::absolute(uri.substr(4), error).lexically_normal().string();
}

Status resolve(Common* common) {
  common->directory_given = !common->directory.empty();
  if (!common->directory_given) common->directory = environment("DIR");
  if (common->directory.empty()) common->directory = "shadowib-ckpt";
  std::error_code error;
  fs::path path = fs::absolute(common->directory, error).lexically_normal();
  if (error) return file_error(error.value(), "find", common->directory);
  if (!path.has_filename() && path.has_relative_path()) path = path.parent_path();
  common->directory = path;
  if (common->directory.size() > 800)
    return Status::of(Code::kUsage, ENAMETOOLONG, "--dir has %zu bytes, at most 800 can be used",
                      common->directory.size());
  common->exchange = absolute_exchange(common->exchange);
  return {};
}

Status require_directory(const Common& common) {
  std::error_code error;
  if (fs::is_directory(common.directory, error)) return {};
  const char* remedy = common.directory_given ? "" : "; name the directory of your jobs with --dir";
  if (fs::exists(common.directory, error))
    return Status::of(Code::kUsage, ENOTDIR, "%.250s is no directory%s", common.directory.c_str(), remedy);
  return Status::of(Code::kNotFound, ENOENT, "there is no directory %.250s%s", common.directory.c_str(), remedy);
}

int fail(const Common& common, const Status& status) {
  if (common.json) print_json({{"error", status.text()}, {"code", static_cast<int>(status.code())}});
  std::fprintf(stderr, "shadowib: %s\n", status.text());
  return static_cast<int>(status.code());
}

std::string exchange_of(const Common& common, const std::string& job) {
  if (!common.exchange.empty()) return common.exchange;
  // A variable that `run` has set for another job is not meant for this one.
  std::string owner = environment("JOB"), uri = environment("EXCHANGE");
  if (!uri.empty() && (owner.empty() || owner == job)) return absolute_exchange(uri);
  std::string recorded;
  JobPaths paths = job_paths(common.directory, job);
  std::error_code error;
  if (fs::exists(paths.exchange, error) && read_file(paths.exchange, &recorded).ok() && !recorded.empty()) {
    while (!recorded.empty() && recorded.back() == '\n') recorded.pop_back();
    return recorded;
  }
  return default_exchange(common.directory, job);
}

}  // namespace shadowib::cli
