#include "shadowib/cli/supervise/event_command.h"

#include <sys/wait.h>
#include <unistd.h>

#include "shadowib/base/deadline.h"
#include "shadowib/cli/supervise/processes.h"

namespace shadowib::cli {
namespace {

constexpr int kFinishMs = 10'000, kFinishStepUs = 20'000;

bool has_ended(pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) != 0; }  // or was reaped as an orphan

}  // namespace

void EventCommand::run(const char* event, const std::string& text, const std::string& set) {
  if (settings_.on_event.empty()) return;
  std::erase_if(running_, has_ended);
  const std::vector<std::string> words{"/usr/bin/env",
                                       std::string("SHADOWIB_EVENT=") + event,
                                       "SHADOWIB_EVENT_TEXT=" + text,
                                       "SHADOWIB_EVENT_SET=" + set,
                                       "SHADOWIB_JOB=" + settings_.job,
                                       "SHADOWIB_DIR=" + settings_.common.directory,
                                       "/bin/sh",
                                       "-c",
                                       settings_.on_event};
  pid_t pid = -1;
  if (const Status status = start_process(words, -1, &pid); !status.ok()) {
    tell(settings_, "--on-event: " + std::string(status.text()));
    return;
  }
  spare(pid);
  running_.push_back(pid);
}

void EventCommand::finish() {
  for (const Deadline deadline = Deadline::in_ms(kFinishMs); !running_.empty() && !deadline.has_passed();) {
    std::erase_if(running_, has_ended);
    if (!running_.empty()) ::usleep(kFinishStepUs);
  }
}

}  // namespace shadowib::cli
