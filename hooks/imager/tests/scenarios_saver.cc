// A process that goes on while a saver writes its image. The saver stops before it writes private memory, and goes on
// when the program lets it (IMAGER_TEST_SAVER_STOPS).
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "hooks/imager/saver.h"
#include "hooks/imager/tests/subject.h"
#include "shadowib/base/descriptors.h"

using namespace shadowib::test;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t kBytes = 4 << 20;

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The letter in /proc/PID/stat; 0: there is no such process.
char state_of(int pid) {
  const std::string text = contents("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t at = text.rfind(") ");
  return at == std::string::npos ? '\0' : text[at + 2];
}

// Until the saver has stopped itself.
void await_stopped(int pid) {
  for (char state; (state = state_of(pid)) != 'T'; ::usleep(1000))
    CHECK_THAT(state != '\0' && state != 'Z');  // it has not stopped, or was let go
}

void let_go(int pid) { CHECK_THAT(::kill(pid, SIGCONT) == 0); }

char* map(int flags, int fd = -1) {
  void* at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, flags | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
  CHECK_THAT(at != MAP_FAILED);
  return static_cast<char*>(at);
}

bool all(const char* memory, char value) {
  for (std::size_t i = 0; i < kBytes; ++i)
    if (memory[i] != value) return false;
  return true;
}

int make_file(const std::string& path, char value) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  const std::string text(kBytes, value);
  CHECK_THAT(fd >= 0 && ::write(fd, text.data(), kBytes) == static_cast<ssize_t>(kBytes));
  return fd;
}

// All kinds of memory are written again before the saver has written any of it.
SCENARIO(saver_memory) {
  with_table();
  const std::string path = "/tmp/shadowib-imager-" + std::to_string(::getpid());
  char* plain = map(MAP_PRIVATE);
  char* not_forked = map(MAP_PRIVATE);
  char* wiped = map(MAP_PRIVATE);
  char* shared = map(MAP_SHARED);
  CHECK_THAT(::madvise(not_forked, kBytes, MADV_DONTFORK) == 0 && ::madvise(wiped, kBytes, MADV_WIPEONFORK) == 0);
  for (char* memory : {plain, not_forked, wiped, shared}) std::memset(memory, 'a', kBytes);
  const int fd = make_file(path, 'f');
  char* changed = map(MAP_PRIVATE, fd);
  char* unchanged = map(MAP_PRIVATE, fd);
  std::memset(changed, 'a', kBytes);
  ::close(fd);
  meanwhile([&](int saver) {
    await_stopped(saver);
    for (char* memory : {plain, not_forked, wiped, shared, changed}) std::memset(memory, 'b', kBytes);
    ::close(make_file(path, 'b'));
    let_go(saver);
  });
  if (!save()) {
    ::unlink(path.c_str());
    ::_exit(10);
  }
  for (char* memory : {plain, not_forked, wiped, shared, changed}) CHECK_THAT(all(memory, 'a'));
  CHECK_THAT(all(unchanged, 'f'));
}

// Whether the mapping that is there has the flag of smaps.
bool has_flag(const char* memory, const std::string& flag) {
  std::ifstream smaps("/proc/self/smaps");
  const auto at = reinterpret_cast<unsigned long>(memory);
  bool is_here = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long start, end;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &start, &end) == 2) is_here = start <= at && at < end;
    if (is_here && line.starts_with("VmFlags:")) return (line + " ").find(" " + flag + " ") != std::string::npos;
  }
  wrong(__FILE__, __LINE__, "the mapping is there");
}

shadowib::PinnedRange range_of(const char* memory, std::size_t from = 0, std::size_t to = kBytes) {
  const auto at = reinterpret_cast<std::uint64_t>(memory);
  return {at + from, at + to};
}

// Copied before the clone are whole mappings and parts of them; what is not as it was is left to the kernel.
SCENARIO(saver_pinned) {
  with_table();
  constexpr std::size_t kPage = 4096, kPart = 1 << 20;
  char *whole = map(MAP_PRIVATE), *part = map(MAP_PRIVATE), *huge = map(MAP_PRIVATE), *apart = map(MAP_PRIVATE);
  char *not_forked = map(MAP_PRIVATE), *shared = map(MAP_SHARED), *hole = map(MAP_PRIVATE), *gone = map(MAP_PRIVATE);
  char *unreadable = map(MAP_PRIVATE), *replaced = map(MAP_PRIVATE);
  (void)::madvise(huge, kBytes, MADV_HUGEPAGE);
  CHECK_THAT(::madvise(not_forked, kBytes, MADV_DONTFORK) == 0);
  // Its mapping is two, and the range goes over both.
  CHECK_THAT(::mprotect(apart, kPart, PROT_READ | PROT_WRITE | PROT_EXEC) == 0 || errno == EACCES);
  const auto all_memory = {whole, part, huge, apart, not_forked, shared, hole, unreadable, replaced};
  for (char* memory : all_memory) std::memset(memory, 'a', kBytes);
  std::vector<shadowib::PinnedRange> ranges{range_of(whole),       range_of(part, kPart + kPage, 2 * kPart),
                                            range_of(huge, kPage), range_of(apart),
                                            range_of(not_forked),  range_of(shared),
                                            range_of(hole),        range_of(gone),
                                            range_of(unreadable),  range_of(replaced)};
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
  with_pinned(ranges, [=] {
    CHECK_THAT(::munmap(gone, kBytes) == 0 && ::madvise(hole + kPart, kPage, MADV_DONTNEED) == 0);
    CHECK_THAT(::mprotect(unreadable, kBytes, PROT_NONE) == 0);
    CHECK_THAT(::mmap(replaced, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
               replaced);
    std::memset(replaced, 'a', kBytes);
  });
  meanwhile([=](int saver) {
    await_stopped(saver);
    CHECK_THAT(shadowib::test::pinned_bytes() == 3 * kBytes - kPage + kPart - kPage);
    CHECK_THAT(has_flag(not_forked, "dc") && !has_flag(whole, "dc") && !has_flag(part, "dc") &&
               !has_flag(huge, "dc"));
    const int child = ::fork();
    if (child == 0) ::_exit(all(whole, 'a') && all(part, 'a') && all(huge, 'a') && all(apart, 'a') ? 0 : 1);
    int status = 0;
    CHECK_THAT(::waitpid(child, &status, 0) == child && status == 0);
    CHECK_THAT(::mprotect(unreadable, kBytes, PROT_READ | PROT_WRITE) == 0);
    for (char* memory : all_memory) std::memset(memory, 'b', kBytes);
    let_go(saver);
  });
  if (!save()) ::_exit(10);
  for (char* memory : {whole, part, huge, apart, not_forked, shared, replaced}) CHECK_THAT(all(memory, 'a'));
  CHECK_THAT(::mprotect(unreadable, kBytes, PROT_READ) == 0 && all(unreadable, 'a'));
  for (std::size_t i = 0; i < kBytes; ++i) CHECK_THAT(hole[i] == (i / kPage == kPart / kPage ? 0 : 'a'));
}

// Whether a child of this process has one of the mappings that are shadowib's own, of so many bytes.
bool child_has_owned(std::size_t least) {
  const int child = ::fork();
  CHECK_THAT(child >= 0);
  if (child == 0) {
    std::uintptr_t start = 0;
    std::size_t bytes = 0;
    unsigned char resident;
    for (std::uintptr_t at = 0; shadowib::find_owned_mapping(at, ~std::uintptr_t{0} - at, &start, &bytes);
         at = start + bytes)
      if (bytes >= least && ::mincore(reinterpret_cast<void*>(start), 4096, &resident) == 0) ::_exit(1);
    ::_exit(0);
  }
  int status = 0;
  CHECK_THAT(::waitpid(child, &status, 0) == child && WIFEXITED(status));
  return WEXITSTATUS(status) != 0;
}

// A child that the program makes meanwhile would keep it for good, in its images, too.
SCENARIO(saver_for_the_program_alone) {
  with_table();
  char* memory = map(MAP_PRIVATE);
  std::memset(memory, 'a', kBytes);
  with_pinned({range_of(memory)}, [] { CHECK_THAT(!child_has_owned(kBytes)); });
  meanwhile([](int saver) {
    await_stopped(saver);
    CHECK_THAT(!child_has_owned(1));
    let_go(saver);
  });
  if (!save()) ::_exit(10);
  CHECK_THAT(all(memory, 'a'));
}

// A process that ends is no candidate any more when memory runs out. So a saver that ends has given its memory back.
SCENARIO(saver_gives_memory_back) {
  with_table();
  constexpr int kMaps = 16;
  for (int i = 0; i < kMaps; ++i) std::memset(map(MAP_PRIVATE), 'a', kBytes);
  meanwhile([](int saver) {
    await_stopped(saver);
    const auto resident = [saver] {
      std::ifstream statm("/proc/" + std::to_string(saver) + "/statm");
      std::size_t mapped = 0, pages = 0;
      statm >> mapped >> pages;
      return pages * 4096;
    };
    CHECK_THAT(resident() > kMaps * kBytes);
    CHECK_THAT(::ptrace(PTRACE_SEIZE, saver, nullptr, PTRACE_O_TRACEEXIT) == 0);
    let_go(saver);
    for (int status = 0; status >> 8 != (SIGTRAP | PTRACE_EVENT_EXIT << 8);) {
      CHECK_THAT(::waitpid(saver, &status, __WALL) == saver && WIFSTOPPED(status));
      if (status >> 8 != (SIGTRAP | PTRACE_EVENT_EXIT << 8))
        CHECK_THAT(::ptrace(PTRACE_CONT, saver, nullptr, 0) == 0);
    }
    const std::size_t at_its_end = resident();
    CHECK_THAT(::ptrace(PTRACE_DETACH, saver, nullptr, 0) == 0);
    CHECK_THAT(at_its_end < kMaps * kBytes / 2);
  });
  if (!save()) ::_exit(10);
}

// Addresses without memory cost a saver no time.
SCENARIO(saver_of_many_addresses) {
  constexpr std::size_t kReserved = 16ull << 40;
  constexpr rlim_t kSeconds = 3;  // of processor time
  with_table();
  auto* const reserved = static_cast<char*>(
      ::mmap(nullptr, kReserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  CHECK_THAT(reserved != MAP_FAILED);
  reserved[kReserved / 2] = 'a';
  meanwhile([](int saver) {
    await_stopped(saver);
    const rlimit limit{kSeconds, kSeconds};
    CHECK_THAT(::prlimit(saver, RLIMIT_CPU, &limit, nullptr) == 0);
    let_go(saver);
  });
  if (!save()) ::_exit(10);
  CHECK_THAT(reserved[kReserved / 2] == 'a');
}

// The saver changes nothing that the program, its relatives or its files could notice.
SCENARIO(saver_is_a_stranger) {
  with_table();
  const std::string path = "/tmp/shadowib-imager-" + std::to_string(::getpid());
  int ends[2];
  CHECK_THAT(::pipe(ends) == 0);
  const int locked = make_file(path, 'f'), mapped = ::open(path.c_str(), O_RDWR),
            other = ::open(path.c_str(), O_RDWR);
  ::unlink(path.c_str());
  CHECK_THAT(::flock(locked, LOCK_SH) == 0 && ::flock(mapped, LOCK_SH) == 0);
  // The last one is of a backend, such as pages of a device.
  char* views[3] = {map(MAP_PRIVATE, mapped), map(MAP_SHARED, mapped), map(MAP_SHARED, mapped)};
  CHECK_THAT(shadowib::own_mapping(views[2], kBytes));
  cpu_set_t one, all_before;
  CHECK_THAT(::sched_getaffinity(0, sizeof(all_before), &all_before) == 0);
  CPU_ZERO(&one);
  CPU_SET(::sched_getcpu(), &one);
  CHECK_THAT(::sched_setaffinity(0, sizeof(one), &one) == 0);
  meanwhile([&](int saver) {
    await_stopped(saver);
    // Ends of files and locks end with the program's last use.
    char byte;
    ::close(ends[1]);
    CHECK_THAT(::read(ends[0], &byte, 1) == 0);
    ::close(locked);
    ::close(mapped);
    shadowib::disown_mapping(views[2]);
    for (char* view : views) CHECK_THAT(::munmap(view, kBytes) == 0);
    CHECK_THAT(::flock(other, LOCK_EX | LOCK_NB) == 0);
    // No child, no part of the group. In the session, or its nice value would not count beside the program.
    CHECK_THAT(::waitpid(-1, nullptr, WNOHANG | __WALL) == -1 && errno == ECHILD);
    CHECK_THAT(::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD);
    CHECK_THAT(::getpgid(saver) == saver && ::getsid(saver) == ::getsid(0));
    const std::string process = "/proc/" + std::to_string(saver) + "/";
    CHECK_THAT(contents(process + "autogroup") == contents("/proc/self/autogroup"));
    CHECK_THAT(contents(process + "oom_score_adj") == "1000\n");
    CHECK_THAT(contents(process + "coredump_filter") == "00000000\n");
    // No hold on a processor.
    cpu_set_t processors;
    CHECK_THAT(::getpriority(PRIO_PROCESS, static_cast<id_t>(saver)) >= 10);
    CHECK_THAT(::sched_getscheduler(saver) == SCHED_BATCH);
    CHECK_THAT(::sched_getaffinity(saver, sizeof(processors), &processors) == 0);
    CHECK_THAT(CPU_COUNT(&processors) >= CPU_COUNT(&all_before));
    CHECK_THAT(fs::read_symlink(process + "cwd") == "/");
    CHECK_THAT(contents(process + "status").find("SigBlk:\tfffffffffffbfeff") != std::string::npos);
    for (const auto& entry : fs::directory_iterator(process + "fd"))
      CHECK_THAT(fs::read_symlink(entry.path()).string().find("0.img") != std::string::npos);
    CHECK_THAT(::kill(saver, SIGTERM) == 0);
    let_go(saver);
  });
  save_and_end();
}

// Holds back the end of the process that makes the saver, until the saver has stopped or had the time to.
[[noreturn]] void hold_back_makers_end(pid_t program, int ready) {
  constexpr int kLooks = 300;
  constexpr long kOptions = PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXIT;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  CHECK_THAT(::ptrace(PTRACE_SEIZE, program, nullptr, kOptions) == 0);
  CHECK_THAT(::write(ready, "y", 1) == 1);
  for (int status = 0;;) {
    const pid_t stopped = ::waitpid(-1, &status, __WALL);
    CHECK_THAT(stopped > 0);
    if (!WIFSTOPPED(status)) continue;
    const int event = status >> 16;
    if (event == PTRACE_EVENT_EXIT && stopped != program) {
      const std::string made = "/proc/" + std::to_string(stopped) + "/task/" + std::to_string(stopped) + "/children";
      const int saver = std::atoi(contents(made).c_str());
      CHECK_THAT(saver > 0);
      for (int looks = 0; looks < kLooks && state_of(saver) != 'T'; ++looks) ::usleep(1000);
    }
    ::ptrace(PTRACE_CONT, stopped, nullptr, event == 0 ? WSTOPSIG(status) : 0);
  }
}

// The kernel lets a stopped saver go on whose group loses its last parent in the session.
SCENARIO(saver_with_a_slow_maker) {
  int ready[2];
  CHECK_THAT(::pipe(ready) == 0);
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  const pid_t program = ::getpid(), tracer = ::fork();
  CHECK_THAT(tracer >= 0);
  if (tracer == 0) hold_back_makers_end(program, ready[1]);
  char byte = 0;
  ::close(ready[1]);
  CHECK_THAT(::read(ready[0], &byte, 1) == 1);
  meanwhile([](int saver) {
    await_stopped(saver);
    let_go(saver);
  });
  save_and_end();
}

// No process can be made. All memory is written before the program goes on.
SCENARIO(saver_that_cannot_be) {
  with_table();
  char* plain = map(MAP_PRIVATE);
  char* not_forked = map(MAP_PRIVATE);
  char* shared = map(MAP_SHARED);
  CHECK_THAT(::madvise(not_forked, kBytes, MADV_DONTFORK) == 0);
  for (char* memory : {plain, not_forked, shared}) std::memset(memory, 'a', kBytes);
  rlimit processes{};
  CHECK_THAT(::getrlimit(RLIMIT_NPROC, &processes) == 0);
  const rlimit none{0, processes.rlim_max};
  CHECK_THAT(::setrlimit(RLIMIT_NPROC, &none) == 0);
  without_saver([&](const char* reason) {
    CHECK_THAT(std::strstr(reason, "the kernel makes no saver: clone, errno 11") != nullptr);
    ::_exit(10);
  });
  if (!save()) ::_exit(11);
  for (char* memory : {plain, not_forked, shared}) CHECK_THAT(all(memory, 'a'));
}

SCENARIO(saver_killed) {
  meanwhile([](int saver) { CHECK_THAT(::kill(saver, SIGKILL) == 0); });
  save_and_end();
}

SCENARIO(saver_without_directory) {
  meanwhile([](int saver) {
    await_stopped(saver);
    const std::string directory = std::getenv("IMAGER_TEST_DIRECTORY");
    CHECK_THAT(fs::remove(directory + "/0.img"));
    let_go(saver);
  });
  save_and_end();
}

// A library of which the saver has not yet written anything is treated so.
void save_while(const std::function<void(const std::string& path)>& treat) {
  const std::string path = std::string(std::getenv("IMAGER_TEST_DIRECTORY")) + "/library.so";
  Dl_info library{};
  void* const original = ::dlopen("libresolv.so.2", RTLD_NOW);
  CHECK_THAT(original != nullptr && ::dladdr(::dlsym(original, "ns_name_pton"), &library) != 0);
  fs::copy_file(library.dli_fname, path, fs::copy_options::overwrite_existing);
  CHECK_THAT(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr);
  meanwhile([&](int saver) {
    await_stopped(saver);
    treat(path);
    let_go(saver);
  });
  save_and_end();
}

SCENARIO(saver_changed_library) {
  save_while([](const std::string& path) { CHECK_THAT(::utimensat(AT_FDCWD, path.c_str(), nullptr, 0) == 0); });
}

// With the file goes the memory, modified pages too.
SCENARIO(saver_cut_library) {
  save_while([](const std::string& path) { CHECK_THAT(::truncate(path.c_str(), 0) == 0); });
}

SCENARIO(saver_of_one_that_adopts) {
  CHECK_THAT(shadowib::judge_saver().ok());
  CHECK_THAT(::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
  const shadowib::Status status = shadowib::judge_saver();
  CHECK_THAT(!status.ok() && std::strstr(status.text(), "adopts orphans") != nullptr);
}

}  // namespace
