#include "shadowib/cli/probe_calls.h"

#include <unistd.h>

#include <string>

#include "hooks/raw/needed_calls.h"

namespace shadowib::cli {
namespace {

void say(const char* word) {
  const std::string line = std::string(word) + "\n";
  [[maybe_unused]] const ssize_t n = ::write(STDOUT_FILENO, line.data(), line.size());
}

}  // namespace

int probe_calls() {
  constexpr long kNothing = -1;  // no descriptor, address, signal, process or option
  for (const NeededCall& call : kNeededCalls) {
    say(call.name);
    ::syscall(call.number, kNothing, kNothing, kNothing, kNothing, kNothing, kNothing);
  }
  say(kProbeDone);
  return 0;
}

}  // namespace shadowib::cli
