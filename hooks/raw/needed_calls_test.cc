// The list of system calls against the code that makes them in a stopped process.
#include "hooks/raw/needed_calls.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

namespace shadowib {
namespace {

namespace fs = std::filesystem;

std::set<std::string> calls_in(const char* room) {
  std::set<std::string> calls;
  const std::regex name("__NR_([a-z0-9_]+)");
  for (const auto& entry : fs::directory_iterator(fs::path(HOOKS) / room)) {
    if (entry.path().extension() != ".cc" && entry.path().extension() != ".h") continue;
    std::ifstream file(entry.path());
    const std::string text(std::istreambuf_iterator<char>(file), {});
    for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at) calls.insert((*at)[1]);
  }
  return calls;
}

// A filter that ends the process at a call nobody has tried would end it in the middle of a checkpoint.
TEST(NeededCalls, HaveEveryCallOfTheRoomsThatStopJudgeAndSave) {
  // No filter lets a program live that may not ask its numbers; kill(2) serves where pidfd_send_signal(2) is denied.
  std::set<std::string> listed{"getpid", "gettid", "kill"};
  for (const NeededCall& call : kNeededCalls) listed.insert(call.name);
  listed.insert(std::begin(kUnfilteredCalls), std::end(kUnfilteredCalls));
  std::size_t seen = 0;
  for (const char* room : {"raw", "threads", "imager/save"})
    for (const std::string& call : calls_in(room)) {
      ++seen;
      EXPECT_TRUE(listed.contains(call)) << "hooks/" << room << " calls " << call << "; add it to kNeededCalls";
    }
  EXPECT_GT(seen, 40u);  // or the files were not found
}

}  // namespace
}  // namespace shadowib
