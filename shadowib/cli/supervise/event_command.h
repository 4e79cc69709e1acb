// The command that a supervisor runs when something happens to its job (--on-event): to mail, to count, to page.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "shadowib/cli/supervise/settings.h"

namespace shadowib::cli {

class EventCommand {
 public:
  explicit EventCommand(const SuperviseSettings& settings) : settings_(settings) {}

  // Starts the command, if there is one, by sh(1); nothing waits for it. `event`: a word of shadowib-supervise(1).
  // `set`: a set's name, or "".
  void run(const char* event, const std::string& text, const std::string& set);
  // At the end of the supervisor: waits for commands that still run, 10 s at most.
  void finish();

 private:
  const SuperviseSettings& settings_;
  std::vector<pid_t> running_;
};

}  // namespace shadowib::cli
