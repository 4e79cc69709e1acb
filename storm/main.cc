// shadowib-storm: one process of a storm, or all of them.
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "storm/ledger.h"
#include "storm/process.h"

namespace storm {
namespace {

using Report = nlohmann::ordered_json;

// Sums what the processes say. One that has left no report has failed, as its exit code says.
Report sum_of_reports(const Options& options) {
  Report sum{{"seed", options.seed}};
  for (int rank = 0; rank < options.processes; ++rank) {
    std::ifstream file(options.area + "/report-" + std::to_string(rank) + ".json");
    const Report one = Report::parse(file, nullptr, false);
    if (one.is_discarded()) continue;
    for (const auto& [part, numbers] : one.items())
      for (const auto& [name, value] : numbers.items()) {
        Report& total = sum[part][name];
        const auto n = value.get<std::uint64_t>(), before = total.is_null() ? 0 : total.get<std::uint64_t>();
        total = name == "deepest" ? std::max(n, before) : n + before;
      }
  }
  return sum;
}

void print(const Report& report, bool right) {
  for (const char* part : {"operations", "counts", "faults"}) {
    std::printf("  %s\n", part);
    if (!report.contains(part)) continue;
    for (const auto& [name, value] : report[part].items())
      std::printf("    %-20s %14lu\n", name.c_str(), value.get<std::uint64_t>());
  }
  std::printf("\n  seed %lu\n  verdict: %s\n", report["seed"].get<std::uint64_t>(), right ? "ok" : "WRONG");
}

// All processes, as children of this one, which opens no device.
int run_all(Options options) {
  const bool temporary = options.area.empty();
  if (temporary) {
    std::string pattern = (std::filesystem::temp_directory_path() / "shadowib-storm-XXXXXX").string();
    options.area = ::mkdtemp(pattern.data());
  }
  std::filesystem::create_directories(options.area);
  options.area = std::filesystem::absolute(options.area).string();
  if (!options.json)
    std::printf("storm of %d processes, seed %lu, in %s\n", options.processes, options.seed, options.area.c_str());
  std::fflush(stdout);
  for (int rank = 0; rank < options.processes; ++rank) {
    if (::fork() != 0) continue;
    options.rank = rank;
    std::exit(run_process(options));
  }
  bool right = true;
  for (int status; ::wait(&status) > 0;) {
    right &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (WIFSIGNALED(status)) std::fprintf(stderr, "storm: a process was killed by signal %d\n", WTERMSIG(status));
  }
  const Report report = sum_of_reports(options);
  if (options.json)
    std::printf("%s\n", report.dump(1).c_str());
  else
    print(report, right);
  if (temporary && right) std::filesystem::remove_all(options.area);
  return right ? 0 : 1;
}

}  // namespace
}  // namespace storm

int main(int argc, char** argv) {
  storm::Options options;
  int exit_code = 0;
  if (!storm::parse_options(argc, argv, &options, &exit_code)) return exit_code;
  return options.rank >= 0 ? storm::run_process(options) : storm::run_all(options);
}
