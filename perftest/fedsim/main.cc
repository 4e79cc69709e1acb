// fedsim: simulates checkpoints of a federation of clusters, or judges a trace.
#include <cstdio>
#include <fstream>
#include <iostream>

#include "perftest/fedsim/check.h"
#include "perftest/fedsim/report.h"
#include "shadowib/command_line/command_line.h"

namespace shadowib::fedsim {
namespace {

struct Settings {
  std::string topology, application, timers, trace_file, check;
  SimulationOptions simulation;
  std::uint32_t runs = 1;
  std::uint32_t failures = 0, suppositions = 0, trace = 0;
};

int tell(const Status& status) {
  std::fprintf(stderr, "fedsim: %s\n", status.text());
  return static_cast<int>(status.code());
}

int check_file(const std::string& path) {
  std::ifstream trace(path);
  if (!trace) return tell(Status::of(Code::kIo, errno, "%s cannot be read; give the path of a trace", path.c_str()));
  std::vector<std::string> complaints;
  TraceChecker checker;
  const std::uint64_t wrong = check_trace(trace, 20, &complaints, &checker);
  for (const std::string& complaint : complaints) std::printf("%s\n", complaint.c_str());
  std::printf("%llu messages posted, %llu delivered, %llu forced CLCs, %llu recoveries, %llu wrong\n",
              static_cast<unsigned long long>(checker.posts()), static_cast<unsigned long long>(checker.deliveries()),
              static_cast<unsigned long long>(checker.forced()),
              static_cast<unsigned long long>(checker.recoveries()), static_cast<unsigned long long>(wrong));
  return wrong == 0 ? 0 : static_cast<int>(Code::kCorrupt);
}

int simulate_all(Settings settings) {
  Input input;
  if (const Status status = read_input(settings.topology, settings.application, settings.timers, &input); !status)
    return tell(status);
  SimulationOptions options = settings.simulation;
  options.failures = settings.failures;
  options.suppositions = settings.suppositions;
  options.trace = static_cast<int>(settings.trace);
  std::ofstream file;
  if (!settings.trace_file.empty()) file.open(settings.trace_file);
  std::ostream& to = settings.trace_file.empty() ? std::cout : file;
  options.sink = [&to](const TraceEvent& event) { to << encode_event(event) << '\n'; };
  std::vector<Json> results;
  for (std::uint32_t run = 0; run < settings.runs; ++run, ++options.seed) {
    SimulationResult result;
    if (const Status status = simulate(input, options, &result); !status) {
      std::fprintf(stderr, "fedsim: seed %llu: ", static_cast<unsigned long long>(options.seed));
      return tell(status);
    }
    results.push_back(encode_result(result));
  }
  to.flush();
  if (!to) return tell(Status::of(Code::kIo, errno, "%s cannot be written", settings.trace_file.c_str()));
  const Json report = settings.runs == 1 ? results[0] : summarize(results);
  std::printf("%s\n", report.dump(1).c_str());
  return 0;
}

int main(int argc, char** argv) {
  Settings settings;
  command_line::Command program("fedsim",
                                "Simulates the checkpoints of a federation of clusters, or judges a trace.");
  program.add_option("--topology", settings.topology, "clusters, their networks, MTBF")->type_name("FILE");
  program.add_option("--application", settings.application, "who sends how much to whom")->type_name("FILE");
  program.add_option("--timers", settings.timers, "intervals of checkpoints and collections")->type_name("FILE");
  program.add_choice("--policy", settings.simulation.policy, policies(), "which messages force a checkpoint (paper)");
  program.add_option("--seed", settings.simulation.seed, "of the first run (1)");
  program.add_option("--runs", settings.runs, "with seeds one above the other; prints means and standard errors (1)")
      ->between(1, 100000, "runs");
  program.add_option("--failures", settings.failures, "of clusters, at random moments (0)");
  program.add_option("--suppose", settings.suppositions, "failures that only have their line found (0)");
  program.add_option("--trace", settings.trace, "0 none, 1 recoveries, 2 checkpoints, 3 messages (0)")->between(0, 3);
  program.add_option("--trace-file", settings.trace_file, "where the trace goes (standard output)")
      ->type_name("FILE");
  program.add_option("--check", settings.check, "judge this trace, and simulate nothing")->type_name("TRACE");
  int code = 0;
  if (!command_line::parse(program, "1", argc, argv, &code)) return code;
  if (!settings.check.empty()) return check_file(settings.check);
  if (settings.topology.empty() || settings.application.empty() || settings.timers.empty())
    return tell(Status::of(Code::kUsage, 0, "give --topology, --application and --timers, or --check"));
  if (settings.trace > 0 && settings.runs > 1)
    return tell(Status::of(Code::kUsage, 0, "a trace is of one run; leave --runs out"));
  return simulate_all(std::move(settings));
}

}  // namespace
}  // namespace shadowib::fedsim

int main(int argc, char** argv) { return shadowib::fedsim::main(argc, argv); }
