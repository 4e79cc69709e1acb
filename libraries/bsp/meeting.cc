#include "libraries/bsp/meeting.h"

#include <poll.h>
#include <shadowib/shadowib.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "libraries/bsp/complain.h"

namespace shadowib::bsp {
namespace {

constexpr char kCountFile[] = "begun";
constexpr char kAbortFile[] = "aborted";  // a process has told why the job ends
constexpr int kEndedLookMs = 500;         // then the process that is waited for may have ended

// Where bsprun keeps what values of a job cannot say: they go with its last member. "": no bsprun.
std::string file_of_ends(const std::string& what) {
  const char* ends = std::getenv("SHADOWIB_BSP_ENDS");
  return ends == nullptr ? "" : ends + ("." + what);
}

// `who`: a process, or kAbortFile for the job.
bool has_ended(const std::string& who) {
  const std::string file = file_of_ends(who);
  return !file.empty() && ::access(file.c_str(), F_OK) == 0;
}

[[noreturn]] void miss(std::uint64_t epoch, int process) {
  if (is_first_to_tell(epoch)) fail("process %d ended before bsp_begin()", process);
  for (int waited = 0; waited < kToBeEndedMs && !has_ended(kAbortFile); waited += kLookMs)
    ::poll(nullptr, 0, kLookMs);
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
  for (bool ended = false;; ended = has_ended(std::to_string(from))) {
    const int bytes = shadowib_lookup(name.c_str(), value, capacity, kEndedLookMs);
    if (bytes >= 0) return static_cast<std::size_t>(bytes);
    if (bytes != -ETIMEDOUT) fail("cannot meet process %d: %s", from, shadowib_last_error());
    if (ended) miss(epoch, from);
  }
}

void note_count(int count) {
  const std::string file = file_of_ends(kCountFile), part = file + ".new";
  if (file.empty()) return;
  std::FILE* out = std::fopen(part.c_str(), "we");
  const bool whole = out != nullptr && std::fprintf(out, "%d\n", count) > 0;
  if (out == nullptr || std::fclose(out) != 0 || !whole || ::rename(part.c_str(), file.c_str()) != 0)
    fail("cannot write %s: %s", file.c_str(), std::strerror(errno));
}

int noted_count() {
  const std::string file = file_of_ends(kCountFile);
  std::FILE* in = file.empty() ? nullptr : std::fopen(file.c_str(), "re");
  if (in == nullptr) return 0;
  int count = 0;
  const bool read = std::fscanf(in, "%d", &count) == 1;
  std::fclose(in);
  return read ? count : 0;
}

// A name has one owner.
bool is_first_to_tell(std::uint64_t epoch) {
  return shadowib_publish(name_of_run(epoch, "told").c_str(), "", 0) != -EEXIST;
}

}  // namespace shadowib::bsp
