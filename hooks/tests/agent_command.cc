// A checkpoint command for agent_test: agent_command DIRECTORY. The exit code is the Status's.
#include <cstdio>

#include "hooks/coordinator.h"

int main(int, char** argv) {
  shadowib::CheckpointOptions options;
  options.directory = argv[1];
  options.job = "job";
  shadowib::CheckpointReport report;
  shadowib::Status status = shadowib::run_checkpoint(options, &report);
  std::puts(status.ok() ? report.set_path.c_str() : status.text());
  return static_cast<int>(status.code());
}
