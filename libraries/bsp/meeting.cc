#include "libraries/bsp/meeting.h"

#include <poll.h>
#include <shadowib/shadowib.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "libraries/bsp/complain.h"

namespace shadowib::bsp {
namespace {

constexpr int kEndedLookMs = 500;  // then the process that is waited for may have ended

// By a file of bsprun. A value of the process itself would go with it, if it were the job's only member.
bool has_ended(int process) {
  const char* ends = std::getenv("SHADOWIB_BSP_ENDS");
  return ends != nullptr && ::access((ends + ("." + std::to_string(process))).c_str(), F_OK) == 0;
}

[[noreturn]] void miss(std::uint64_t epoch, int process) {
  if (is_first_to_tell(epoch)) fail("process %d ended before bsp_begin()", process);
  ::poll(nullptr, 0, kToBeEndedMs);
  end_quietly();
}

}  // namespace

std::string name_of_run(std::uint64_t epoch, const std::string& what) {
  char number[20];
  std::snprintf(number, sizeof(number), "%016" PRIx64, epoch);
  return std::string("bsp.") + number + "." + what;
}

void show(const std::string& name, const void* value, std::size_t bytes) {
  if (shadowib_publish(name.c_str(), value, bytes) != 0)
    fail("cannot meet the other processes: %s", shadowib_last_error());
}

std::size_t await(std::uint64_t epoch, int from, const std::string& name, void* value, std::size_t capacity) {
  for (bool ended = false;; ended = has_ended(from)) {
    const int bytes = shadowib_lookup(name.c_str(), value, capacity, kEndedLookMs);
    if (bytes >= 0) return static_cast<std::size_t>(bytes);
    if (bytes != -ETIMEDOUT) fail("cannot meet process %d: %s", from, shadowib_last_error());
    if (ended) miss(epoch, from);
  }
}

// A name has one owner.
bool is_first_to_tell(std::uint64_t epoch) {
  return shadowib_publish(name_of_run(epoch, "told").c_str(), "", 0) != -EEXIST;
}

}  // namespace shadowib::bsp
