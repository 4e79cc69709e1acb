// A checkpoint command for agent_test: agent_command DIRECTORY, or as a member starts it: agent_command checkpoint
// JOB
// --dir DIRECTORY ... [--kill]. The exit code is the Status's. With AGENT_TEST_FOREIGN another command's checkpoint
// follows before this one tells of its own. With AGENT_TEST_TALKS a long line comes before the answer.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "hooks/command/coordinator.h"

int main(int argc, char** argv) {
  shadowib::CheckpointOptions options;
  options.directory = argv[1];
  for (int i = 2; i < argc; ++i) {
    if (std::strcmp(argv[i], "--dir") == 0) options.directory = argv[i + 1];
    if (std::strcmp(argv[i], "--exchange") == 0) options.exchange = argv[i + 1];
    if (std::strcmp(argv[i], "--kill") == 0) options.kill = true;
    if (std::strcmp(argv[i], "--timeout-ms") == 0) options.timeout_ms = std::atoi(argv[i + 1]);
  }
  options.job = "job";
  shadowib::CheckpointReport report;
  shadowib::Status status = shadowib::run_checkpoint(options, &report);
  if (std::getenv("AGENT_TEST_FOREIGN") != nullptr) {
    shadowib::CheckpointReport foreign;
    if (shadowib::run_checkpoint(options, &foreign).ok() == status.ok()) std::abort();
  }
  if (std::getenv("AGENT_TEST_TALKS") != nullptr) std::printf("%0600d\n", 0);
  std::puts(status.ok() ? report.set_path.c_str() : status.text());
  return static_cast<int>(status.code());
}
