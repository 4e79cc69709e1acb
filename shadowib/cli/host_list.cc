#include "shadowib/cli/host_list.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace shadowib::cli {
namespace {

using command_line::Host;

// "shadowib3\nshadowib4\n": what Slurm's own command makes of the list of nodes.
std::vector<std::string> slurm_nodes() {
  std::vector<std::string> names;
  FILE* output = ::popen("scontrol show hostnames \"$SLURM_JOB_NODELIST\"", "re");
  if (output == nullptr) return {};
  char line[512];
  while (std::fgets(line, sizeof(line), output) != nullptr) {
    names.emplace_back(line);
    while (names.back().ends_with('\n')) names.back().pop_back();
  }
  ::pclose(output);
  return names;
}

Status hosts_of_slurm(std::vector<Host>* hosts) {
  if (std::getenv("SLURM_JOB_NODELIST") == nullptr)
    return Status(Code::kUsage, EINVAL, "--hosts slurm: SLURM_JOB_NODELIST is not set; is this a job of Slurm?");
  const char* tasks = std::getenv("SLURM_TASKS_PER_NODE");
  const std::vector<std::string> names = slurm_nodes();
  const std::vector<int> slots = slurm_counts(tasks != nullptr ? tasks : "");
  if (names.empty() || names.size() != slots.size())
    return Status(Code::kUsage, EINVAL,
                  "--hosts slurm: scontrol and SLURM_TASKS_PER_NODE do not tell which nodes have how many tasks; "
                  "write --hosts a:2,b:2");
  for (std::size_t i = 0; i < names.size(); ++i) hosts->push_back({names[i], slots[i], {}});
  return {};
}

}  // namespace

Status parse_host_list(const std::string& text, std::vector<Host>* hosts) {
  hosts->clear();
  if (text == "slurm") return hosts_of_slurm(hosts);
  const std::string why = command_line::parse_hosts(text, hosts);
  return why.empty() ? Status() : Status::of(Code::kUsage, EINVAL, "%.200s", why.c_str());
}

std::vector<int> slurm_counts(const std::string& text) {
  constexpr int kMost = 100'000;
  std::vector<int> counts;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, end - at);
    int count = 0, times = 1, used = 0;
    const bool repeated = std::sscanf(word.c_str(), "%6d(x%6d)%n", &count, &times, &used) == 2;
    if (!repeated) times = std::sscanf(word.c_str(), "%6d%n", &count, &used);
    if (times < 1 || times > kMost || count < 1 || used != static_cast<int>(word.size())) return {};
    counts.insert(counts.end(), static_cast<std::size_t>(times), count);
    at = end + 1;
  }
  return counts;
}

}  // namespace shadowib::cli
