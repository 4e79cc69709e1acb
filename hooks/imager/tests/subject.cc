// A program that is saved and restarted: subject SCENARIO DIRECTORY. It builds up the scenario's state, saves itself
// to DIRECTORY/0.img, and ends with 10 in the original process. Restarted, it checks its state, ends with 42, or
// names what is wrong and ends with 1. "again" saves a second time to 1.img after a restart, and so on.
#include "hooks/imager/tests/subject.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/imager.h"
#include "hooks/imager/processor.h"
#include "hooks/imager/saver.h"
#include "hooks/imager/shared_memory.h"
#include "hooks/imager/tests/test_stop.h"

namespace shadowib::test {
namespace {

std::map<std::string, Scenario>& scenarios() {
  static std::map<std::string, Scenario> map;
  return map;
}
std::string g_directory;
int g_saves = 0;
std::uint32_t g_member = 0;
bool g_with_table = false;
std::string g_table;
SharedMemorySource g_source;
std::function<void(int)> g_meanwhile;
std::function<void(const char*)> g_without_saver;
Saver* g_saver = nullptr;  // while it may be stopped
std::vector<PinnedRange> g_pinned;
std::function<void()> g_before_stop;
PinnedCopies g_copies;

Status capture(SaveRequest* request) {
  if (!g_with_table) return {};
  SHADOWIB_TRY(check_capturable());
  ::close(request->directory_fd);  // no descriptor of the program's
  SHADOWIB_TRY(capture_descriptors(g_member, &g_table));
  const bool incremental = std::getenv("IMAGER_TEST_INCREMENTAL") != nullptr;
  const std::string own = incremental ? g_directory + "/" + std::to_string(g_saves - 1) : g_directory;
  request->directory_fd = ::open(own.c_str(), O_RDONLY | O_DIRECTORY);
  std::map<std::uint32_t, std::string> duties;
  SHADOWIB_TRY(assign_shared_memory({{g_member, g_table}}, &duties));
  SHADOWIB_TRY(g_source.open(g_table, duties[g_member]));
  request->descriptors = &g_table;
  request->shared = g_source.list().data();
  request->shared_count = static_cast<std::uint32_t>(g_source.list().size());
  return {};
}

// The program goes on, and ends when the image is complete.
void await(Saver* saver, SaveResult* result) {
  if (!saver->runs() && g_without_saver) {
    g_without_saver(saver->refusal().text());
    saver->end();
    return;
  }
  if (!saver->runs()) {
    std::fprintf(stderr, "no saver: %s\n", saver->refusal().text());
    ::_exit(30);
  }
  g_saver = saver;
  if (g_meanwhile) g_meanwhile(saver->pid());
  g_saver = nullptr;
  pollfd ended{saver->descriptor(), POLLIN, 0};
  while (::poll(&ended, 1, -1) < 0) CHECK_THAT(errno == EINTR);
  const Status status = saver->result(result);
  saver->end();
  if (status.ok()) return;
  std::fprintf(stderr, "save: %s\n", status.text());
  ::_exit(20 + static_cast<int>(status.code()));
}

}  // namespace

void meanwhile(std::function<void(int)> function) { g_meanwhile = std::move(function); }
void without_saver(std::function<void(const char*)> function) { g_without_saver = std::move(function); }

Registration::Registration(const char* name, Scenario scenario) { scenarios()[name] = std::move(scenario); }

[[noreturn]] void wrong(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: %s does not hold (errno %d)\n", file, line, what, errno);
  if (g_saver != nullptr) g_saver->end();
  ::_exit(1);
}

namespace {

// IMAGER_TEST_INCREMENTAL: each image has a directory of its own, as in a set, and is the next one's base.
std::string set_directory(int number) { return g_directory + "/" + std::to_string(number); }

void make_incremental(SaveRequest* request, const std::string& base) {
  request->incremental = true;
  request->most_packs = kPacksOfSubject;
  std::memset(request->set_id, g_saves, sizeof(request->set_id));
  request->base_directory = base.c_str();
  request->base_name = g_saves == 1 ? "" : request->file_name;
  const char* treats = std::getenv("IMAGER_TEST_BASE");
  if (treats == nullptr || g_saves < 2) return;
  const std::string path = base + "/" + request->file_name;
  const std::string pack = base + "/member-0.01010101010101010101010101010101.pages";
  if (g_saves == 3 && std::strcmp(treats, "lose pack") == 0) CHECK_THAT(::unlink(pack.c_str()) == 0);
  if (g_saves != 2) return;
  if (std::strcmp(treats, "remove") == 0) CHECK_THAT(::unlink(path.c_str()) == 0);
  if (std::strcmp(treats, "spoil") == 0) CHECK_THAT(::truncate(path.c_str(), 64 << 10) == 0);
}

}  // namespace

bool save() {
  const bool incremental = std::getenv("IMAGER_TEST_INCREMENTAL") != nullptr;
  const std::string base = set_directory(g_saves - 1), own = incremental ? set_directory(g_saves) : g_directory;
  const std::string name = (incremental ? "0" : std::to_string(g_saves)) + ".img";
  ++g_saves;
  if (incremental) ::mkdir(own.c_str(), 0700);
  const int directory = ::open(own.c_str(), O_RDONLY | O_DIRECTORY);
  SaveRequest request{};
  request.directory_fd = directory;
  request.file_name = name.c_str();
  request.member = g_member;
  std::memset(request.set_id, 7, sizeof(request.set_id));
  if (incremental) make_incremental(&request, base);
  if (const char* name = std::getenv("IMAGER_TEST_COMPRESS"))
    CHECK_THAT(parse_compression(name, &request.compression));
  // As shadowib run --cpu has it, and the agent.
  if (const char* level = std::getenv("SHADOWIB_CPU")) request.processor_level = processor_level(level);
  request.binds_at_start = std::getenv("LD_BIND_NOW") != nullptr;
  if (std::getenv("IMAGER_TEST_LATE") != nullptr) request.deadline_ns = 1;
  Saver saver;
  if (std::getenv("IMAGER_TEST_SAVER") != nullptr) {
    CHECK_THAT(saver.prepare().ok());
    request.saver = &saver;
  }
  if (!g_pinned.empty()) {
    CHECK_THAT(g_copies.prepare(
        g_pinned.data(), static_cast<std::uint32_t>(g_pinned.size()), [](void*) { return true; }, nullptr));
    g_before_stop();
    request.pinned = &g_copies;
  }
  SaveResult result{};
  SaveOutcome outcome{};
  JobInfo job{};
  stop_all();
  Status status = capture(&request);
  if (status.ok()) status = save_image(request, &result, &outcome, &job);
  if (!status.ok()) {
    std::fprintf(stderr, "save: %s\n", status.text());
    ::_exit(20 + static_cast<int>(status.code()));
  }
  release_all();
  if (result.why_whole[0] != '\0') std::fprintf(stderr, "whole: %s\n", result.why_whole);
  if (outcome == SaveOutcome::kSaved && request.saver != nullptr) await(&saver, &result);
  if (outcome == SaveOutcome::kSaved) g_copies.end();
  if (outcome == SaveOutcome::kSaved) g_source.close();
  if (outcome == SaveOutcome::kSaved) ::close(directory);
  if (outcome == SaveOutcome::kRestarted)
    CHECK_THAT(lock_mappings_to_come().ok() && std::strcmp(job.job, "restarted") == 0);
  return outcome == SaveOutcome::kRestarted;
}

void with_table() {
  g_with_table = true;
  ::close_range(3, ~0u, 0);  // a test runner's pipes
}

void with_pinned(std::vector<PinnedRange> ranges, std::function<void()> function) {
  g_pinned = std::move(ranges);
  g_before_stop = std::move(function);
}
std::uint64_t pinned_bytes() { return g_copies.bytes(); }

void set_member(unsigned member) { g_member = member; }

void save_and_end() {
  if (!save()) ::_exit(10);
}

}  // namespace shadowib::test

int main(int argc, char** argv) {
  using namespace shadowib::test;
  if (argc < 3 || scenarios().count(argv[1]) == 0) {
    for (const auto& [name, scenario] : scenarios()) std::printf("%s\n", name.c_str());
    return argc < 2 ? 0 : 2;
  }
  g_directory = argv[2];
  install_stop_handler(false);
  scenarios()[argv[1]]();
  return 42;
}
