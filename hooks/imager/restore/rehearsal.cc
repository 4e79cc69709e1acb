#include "hooks/imager/restore/rehearsal.h"

#include <fcntl.h>
#include <gnu/libc-version.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/restore/file_check.h"
#include "hooks/imager/restore/namespaces.h"
#include "hooks/imager/restore/process_groups.h"
#include "hooks/imager/restore/process_tree.h"
#include "hooks/imager/restore/processor_check.h"
#include "hooks/imager/restore/recorded_files.h"
#include "hooks/imager/restore/shared_memory.h"
#include "hooks/imager/restore/system_v.h"
#include "hooks/imager/restore/vdso.h"
#include "hooks/imager/restorer/restorer_args.h"
#include "hooks/threads/sanitizer_thread.h"

namespace shadowib {
namespace {

constexpr std::size_t kNamed = 3;  // of a longer list of obstacles
constexpr char kLibc[] = "libc.so.6";

using Step = RehearsedStep;

// What stands in the way of one step, each thing told once.
class Obstacles {
 public:
  void add(const std::string& text, Code code = Code::kRefused) {
    if (text.empty() || std::find(list_.begin(), list_.end(), text) != list_.end()) return;
    if (list_.empty()) code_ = code;
    list_.push_back(text);
  }
  // A file that is missing is a refusal of this place: kNotFound would say so of the set.
  void add(const Status& status) {
    const Code code = status.code() == Code::kNotFound ? Code::kRefused : status.code();
    if (!status.ok()) add(std::string(status.text()), code);
  }
  bool none() const { return list_.empty(); }
  std::string text() const {
    std::string text;
    for (std::size_t i = 0; i < list_.size() && i < kNamed; ++i) text += (i == 0 ? "" : "; ") + list_[i];
    if (list_.size() > kNamed) text += "; and " + std::to_string(list_.size() - kNamed) + " more";
    return text;
  }
  Step step(const char* what, const std::string& good, Step::Outcome bad = Step::kRefused) const {
    return none() ? Step{Step::kReady, what, good} : Step{bad, what, text(), code_};
  }

 private:
  Code code_ = Code::kOk;
  std::vector<std::string> list_;
};

std::uint64_t number_in(const char* path, std::uint64_t otherwise) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : otherwise;
}

// --- processor and vdso ---

Step rehearse_processor(const OpenedSet& set, const MachineLimits&) {
  Obstacles obstacles;
  std::vector<MemoryPatch> patches;
  for (const MemberImage& m : set.members) obstacles.add(fit_to_processor(m.image, m.fd, &patches));
  return obstacles.step("processor", "has what the members found on theirs");
}

Step rehearse_vdso(const OpenedSet& set, const MachineLimits&) {
  Obstacles obstacles;
  std::vector<CurrentMapping> current;
  obstacles.add(read_current_mappings(&current));
  VdsoPlan plan;
  for (const MemberImage& m : set.members)
    if (obstacles.none()) obstacles.add(plan_vdso(m.image, current, &plan));
  return obstacles.step("vdso", "the same as recorded under Linux " + set.members.front().image.kernel);
}

// --- users, namespaces and pids ---

// As the restorer would set it (restorer/credentials.cc, restore_identity); who is privileged may become anybody.
Step rehearse_user(const OpenedSet& set, const MachineLimits&) {
  Obstacles obstacles;
  std::uint32_t u[3], g[3];
  ::syscall(SYS_getresuid, &u[0], &u[1], &u[2]);
  ::syscall(SYS_getresgid, &g[0], &g[1], &g[2]);
  const bool free = has_capability(CAP_SYS_ADMIN) && has_capability(CAP_SETUID) && has_capability(CAP_SETGID);
  for (const MemberImage& m : set.members) {
    const ProcessRecord& p = m.image.process;
    if (!free && (std::memcmp(u, p.uid, sizeof(u)) != 0 || std::memcmp(g, p.gid, sizeof(g)) != 0))
      obstacles.add("member " + std::to_string(m.image.header.member) + " ran as user " + std::to_string(p.uid[0]) +
                    ", group " + std::to_string(p.gid[0]));
  }
  return obstacles.step("user", "may run the members as who they were");
}

// In the first process of a pid namespace, with whose end all that is made here ends.
Status make_all_pids(const OpenedSet& set, const RestartPart& part) {
  SHADOWIB_TRY(mount_proc());
  int hold[2];
  if (::pipe2(hold, O_CLOEXEC) != 0) return Status(Code::kIo, errno, "cannot make a pipe");
  ::signal(SIGCHLD, SIG_DFL);
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  const auto nothing = [] { ::_exit(0); };
  std::map<std::uint32_t, Family> families;
  SHADOWIB_TRY(read_families(set.tables, &families));
  std::vector<PlacedProcess> processes;
  std::set<pid_t> made;
  for (const MemberImage* m : part) {
    PlacedProcess placed{0, 0, 0, nothing};
    SHADOWIB_TRY(place_of(*m, families, &placed));
    made.insert({placed.pid, placed.group, placed.session});
    for (const EndedChild& e : placed.ended) made.insert({e.pid, e.group});
    processes.push_back(std::move(placed));
  }
  // Those that ended at once keep their numbers: nobody waits for them.
  SHADOWIB_TRY(place_processes(processes, hold[0], hold[1]));
  std::vector<pid_t> numbers;  // of threads, which are of the same space
  for (const MemberImage* m : part)
    for (const ThreadRecord& t : m->image.threads)
      if (made.insert(t.tid).second) numbers.push_back(t.tid);
  return take_numbers(numbers);
}

// What a restart does before its first process is made. A Status has its text inside, so it can come through a pipe.
Status in_namespaces(const OpenedSet& set, const RestartPart& part) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return Status(Code::kIo, errno, "cannot make a pipe");
  const auto tell = [&pipe](const Status& status) {
    [[maybe_unused]] const ssize_t n = ::write(pipe[1], &status, sizeof(status));
    ::_exit(0);
  };
  end_sanitizer_thread();
  const pid_t outer = ::fork();
  if (outer == 0) {
    await_single_thread();
    const Status entered = enter_namespaces(clock_floor(part), has_system_v(set, part));
    if (!entered.ok()) tell(entered);
    const pid_t inner = ::fork();
    if (inner == 0) tell(make_all_pids(set, part));
    if (inner < 0) tell(Status(Code::kPermission, errno, "cannot start the first process of the pid namespace"));
    ::waitpid(inner, nullptr, 0);
    ::_exit(0);
  }
  ::close(pipe[1]);
  Status status = Status(Code::kInternal, 0, "the trial process died");
  Status told;
  ssize_t n = 0;
  do n = ::read(pipe[0], static_cast<void*>(&told), sizeof(told));
  while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(sizeof(told))) status = told;
  ::close(pipe[0]);
  while (outer > 0 && ::waitpid(outer, nullptr, 0) < 0 && errno == EINTR) {
  }
  return status;
}

Step rehearse_pids(const OpenedSet& set, const MachineLimits&) {
  Obstacles obstacles;
  std::vector<RestartPart> parts;
  obstacles.add(judge_parted(set));
  obstacles.add(split(set, &parts));
  for (const RestartPart& part : parts)
    if (obstacles.none()) obstacles.add(in_namespaces(set, part));
  std::size_t threads = 0;
  for (const MemberImage& m : set.members) threads += m.image.threads.size();
  return obstacles.step("pids", "namespaces, clocks and " + std::to_string(threads) + " recorded numbers can be had");
}

// --- files ---

using TableCheck = Status(const std::map<std::uint32_t, std::string>&, const std::set<std::uint32_t>&,
                          const std::function<void(const Status&)>&);

// What `check` says of the descriptors of each part of the restart.
void check_tables(const OpenedSet& set, TableCheck* check, const std::function<void(const Status&)>& add) {
  std::vector<RestartPart> parts;
  add(split(set, &parts));
  for (const RestartPart& part : parts) add(check(set.tables, indices_of(part), add));
}

// Files that are there, and that another process holds: a step of its own, with another remedy.
void check_open_files(const OpenedSet& set, bool held, Obstacles* obstacles) {
  check_tables(set, check_files, [held, obstacles](const Status& status) {
    if ((status.code() == Code::kBusy) == held) obstacles->add(status);
  });
}

Step rehearse_files(const OpenedSet& set, const MachineLimits&) {
  Obstacles obstacles;
  for (const MemberImage& m : set.members) {
    const LoadedImage& image = m.image;
    int fd = -1;
    obstacles.add(open_program(image, &fd));
    if (fd >= 0) ::close(fd);
    for (const std::string* directory : {&image.root, &image.cwd})
      if (::access(directory->c_str(), X_OK) != 0)
        obstacles.add(file_failure("change to the directory", directory->c_str()));
    for (std::size_t i = 0; i < image.mappings.size(); ++i) {
      if (image.mappings[i].kind != MappingKind::kSharedFile) continue;
      obstacles.add(open_shared_file(image.mappings[i], image.paths[i], &fd));
      if (fd >= 0) ::close(fd);
    }
  }
  check_open_files(set, false, &obstacles);
  return obstacles.step("files", "programs, directories and open files are there");
}

Step rehearse_held_files(const OpenedSet& set, const MachineLimits&) {
  Obstacles obstacles;
  check_open_files(set, true, &obstacles);
  return obstacles.step("held files", "no other process holds a lock or a socket of the members");
}

Step rehearse_shared_memory(const OpenedSet& set, const MachineLimits&) {
  Obstacles obstacles;
  const auto obstacle = [&obstacles](const Status& status) { obstacles.add(status); };
  obstacles.add(judge_shared_memory(set, obstacle));
  obstacles.add(judge_system_v_here(set, obstacle));
  std::uint64_t pages = 0;
  for (const MemberImage& m : set.members)
    for (const PageBatch& b : m.image.shared) pages += b.page_count;
  return obstacles.step("shared memory", std::to_string(pages * kPage >> 20) + " MiB can be shared again");
}

Step rehearse_ports(const OpenedSet& set, const MachineLimits&) {
  Obstacles obstacles;
  check_tables(set, check_ports, [&obstacles](const Status& status) { obstacles.add(status); });
  return obstacles.step("ports", "those the members listen at are free");
}

// The version that a libc says of itself, in the pages the image has of it. "" if there is none.
std::string recorded_libc(const MemberImage& m) {
  constexpr char kWords[] = "GNU C Library";
  constexpr char kRelease[] = "release version ";
  std::vector<std::uint8_t> pages;
  ImageFiles files(m.image, m.fd);
  for (const PageBatch& b : m.image.batches) {
    const std::string& path = m.image.paths[b.mapping];
    if (path.size() < sizeof(kLibc) || path.compare(path.size() - sizeof(kLibc) + 1, sizeof(kLibc) - 1, kLibc) != 0)
      continue;
    if (!files.read_unchecked(b, &pages).ok()) continue;
    const std::string_view text(reinterpret_cast<const char*>(pages.data()), pages.size());
    const std::size_t words = text.find(kWords);
    const std::size_t release = words == std::string_view::npos ? words : text.find(kRelease, words);
    if (release == std::string_view::npos || release - words > 64) continue;
    const std::size_t begin = release + sizeof(kRelease) - 1;
    return std::string(text.substr(begin, text.find_first_not_of("0123456789.", begin) - begin));
  }
  return {};
}

// A fresh backend is loaded by the loader that is in the image and gets this machine's libc. Both are of one glibc or
// do not work together. The version ends with the sentence's point.
Step rehearse_libc(const OpenedSet& set, const MachineLimits&) {
  const std::string here = ::gnu_get_libc_version();
  Obstacles obstacles;
  std::string seen;
  for (const MemberImage& m : set.members) {
    std::string recorded = recorded_libc(m);
    while (!recorded.empty() && recorded.back() == '.') recorded.pop_back();
    if (recorded.empty()) continue;
    seen = recorded;
    if (recorded != here)
      obstacles.add("member " + std::to_string(m.image.header.member) + " runs with glibc " + recorded +
                    ", here is " + here + ", with which its loader cannot load a backend");
  }
  return obstacles.step("C library", seen.empty() ? "none recorded" : "glibc " + seen + " as here");
}

// Other files do no harm, as the image has their pages; what they have in common is not shared then.
Step rehearse_mapped_files(const OpenedSet& set, const MachineLimits&) {
  std::set<std::string> same, other;
  for (const MemberImage& m : set.members) {
    SameFiles files(m.image, m.fd);
    std::set<int> opened;
    for (std::size_t i = 0; i < m.image.mappings.size(); ++i) {
      if (m.image.mappings[i].kind != MappingKind::kPrivateFile) continue;
      const int fd = files.open(i);
      (fd >= 0 ? same : other).insert(m.image.paths[i]);
      if (fd >= 0) opened.insert(fd);
    }
    files.close_unused();
    for (const int fd : opened) ::close(fd);
  }
  if (other.empty())
    return {Step::kReady, "mapped files", std::to_string(same.size()) + " are what they were, byte for byte"};
  Obstacles names;
  for (const std::string& path : other) names.add(path);
  return {Step::kLimited, "mapped files", "changed or missing, and taken from the image: " + names.text()};
}

// --- memory and descriptors ---

std::string hex_address(std::uint64_t address) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

constexpr std::uint64_t kOtherBytes = 16 << 20;  // of address space: the restorer and the vdso

// What the kernel counts as a process's data: private memory, no stack, that may be written to. While a mapping is
// filled, it may be.
std::uint64_t data_bytes(const LoadedImage& image) {
  std::vector<bool> counts(image.mappings.size());
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = (image.mappings[i].protection & PROT_WRITE) != 0;
  for (const PageBatch& b : image.batches)
    for (std::uint32_t i = 0; (b.flags & (kPagesGuard | kPagesClean)) == 0 && i < b.run_count; ++i)
      counts[image.runs[b.first_run + i].mapping] = true;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (const MappingRecord& r = image.mappings[i]; counts[i] && (r.flags & (MAP_SHARED | MAP_GROWSDOWN)) == 0)
      bytes += r.length;
  return bytes;
}

// The kernel's limits on all mappings of a process together.
void judge_sums(const LoadedImage& image, const MachineLimits& limits, Obstacles* obstacles) {
  const std::string member = "member " + std::to_string(image.header.member);
  const std::uint64_t data = kOtherBytes + data_bytes(image);
  std::uint64_t locked = 0, all = kOtherBytes + image.threads.size() * kRestorerThreadStack;
  for (const MappingRecord& r : image.mappings) {
    all += r.length;
    if ((r.advice & kAdviceLocked) != 0) locked += r.length;
  }
  const auto judge = [&](std::uint64_t needed, std::uint64_t limit, const char* what, const char* remedy) {
    if (needed <= limit) return;
    obstacles->add(member + " has " + std::to_string(needed) + " bytes " + what + ", the hard limit here is " +
                   std::to_string(limit) + "; " + remedy);
  };
  judge(locked, limits.locked_bytes, "locked (RLIMIT_MEMLOCK)",
        "raise it (ulimit -Hl), or restart as a user with CAP_IPC_LOCK");
  if (image.process.locks_future != 0 && limits.locked_bytes == 0)
    obstacles->add(member + " locks all memory to come (mlockall, MCL_FUTURE), the hard RLIMIT_MEMLOCK here is 0");
  judge(all, limits.address_bytes, "of addresses (RLIMIT_AS)", "raise it (ulimit -Hv)");
  judge(data, limits.data_bytes, "of private memory (RLIMIT_DATA)", "raise it (ulimit -Hd)");
  if (image.mappings.size() + kRestorerMappings > limits.map_count)
    obstacles->add(member + " has " + std::to_string(image.mappings.size()) +
                   " mappings, and the restorer needs some more, above vm.max_map_count; raise it (sysctl)");
}

// What only newer kernels have.
void judge_states(const LoadedImage& image, const MachineLimits& limits, Obstacles* obstacles) {
  const std::string member = "member " + std::to_string(image.header.member);
  std::uint32_t advice = 0;
  for (const MappingRecord& r : image.mappings) advice |= r.advice;
  const bool guards = std::any_of(image.batches.begin(), image.batches.end(),
                                  [](const PageBatch& b) { return (b.flags & kPagesGuard) != 0; });
  if (guards && !limits.guard_pages)
    obstacles->add(member + " has guard pages by madvise, which a kernel has from Linux 6.13 on");
  if ((advice & kAdviceSealed) != 0 && !limits.seals)
    obstacles->add(member + " has sealed memory (mseal), which a kernel has from Linux 6.10 on");
  if ((advice & kAdviceDroppable) != 0 && !limits.droppable)
    obstacles->add(member + " has droppable memory (MAP_DROPPABLE), which a kernel has from Linux 6.11 on");
}

Step rehearse_memory(const OpenedSet& set, const MachineLimits& limits) {
  Obstacles obstacles;
  std::uint64_t saved = 0;
  for (const MemberImage& m : set.members) {
    const LoadedImage& image = m.image;
    const std::string member = "member " + std::to_string(image.header.member);
    for (const std::uint64_t bytes : image.saved_bytes) saved += bytes;
    for (const PageBatch& b : image.shared) saved += b.page_count * kPage;
    for (const MappingRecord& r : image.mappings) {
      if (r.start < limits.lowest_address)
        obstacles.add(member + " has memory below vm.mmap_min_addr, at " + std::to_string(r.start));
      if (r.start + r.length > limits.highest_address)
        obstacles.add(member + " has memory at " + hex_address(r.start) + ", and addresses end at " +
                      hex_address(limits.highest_address) + " here (five levels of page tables there, four here)");
    }
    judge_states(image, limits, &obstacles);
    judge_sums(image, limits, &obstacles);
  }
  const std::string size =
      std::to_string(saved >> 20) + " MiB saved, " + std::to_string(limits.available_bytes >> 20) + " MiB free here";
  if (obstacles.none() && saved > limits.available_bytes)
    return {Step::kLimited, "memory", size + ": the kernel may kill members for want of memory"};
  return obstacles.step("memory", size);
}

// A hint above the 47 bits of four levels is heard by a kernel and processor with five.
std::uint64_t address_end() {
  constexpr std::uint64_t kFour = (1ull << 47) - kPage, kFive = (1ull << 56) - kPage, kHint = 1ull << 55;
  void* hint = reinterpret_cast<void*>(kHint);
  void* there = ::mmap(hint, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (there == MAP_FAILED) return kFour;
  ::munmap(there, kPage);
  return reinterpret_cast<std::uintptr_t>(there) > kFour ? kFive : kFour;
}

bool has_guard_pages() {
  void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  const bool has = ::madvise(page, kPage, 102 /* MADV_GUARD_INSTALL */) == 0;
  ::munmap(page, kPage);
  return has;
}

bool has_seals() { return ::syscall(462 /* mseal */, 0, 0, 0) == 0; }

bool has_droppable() {
  constexpr int kDroppable = 0x08;  // MAP_DROPPABLE
  void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, kDroppable | MAP_ANONYMOUS, -1, 0);
  if (page != MAP_FAILED) ::munmap(page, kPage);
  return page != MAP_FAILED;
}

// CAP_IPC_LOCK counts in the first user namespace alone, and a restart without CAP_SYS_ADMIN leaves it. So a child
// tries.
bool locks_without_limit() {
  if (!has_capability(CAP_IPC_LOCK) || !has_capability(CAP_SYS_ADMIN)) return false;
  void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  const pid_t child = ::fork();
  if (child == 0) {
    rlimit none{};
    ::setrlimit(RLIMIT_MEMLOCK, &none);
    ::_exit(::mlock(page, kPage) == 0 ? 0 : 1);
  }
  int status = 1;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  ::munmap(page, kPage);
  return status == 0;
}

Step rehearse_descriptors(const OpenedSet& set, const MachineLimits& limits) {
  Obstacles obstacles;
  int highest = -1;
  for (const MemberImage& m : set.members) {
    if (m.image.descriptors.empty()) continue;
    int member_highest = -1;
    obstacles.add(highest_descriptor(m.image.descriptors, &member_highest));
    highest = std::max(highest, member_highest);
  }
  if (highest >= 0 && static_cast<std::uint64_t>(highest) >= limits.descriptors)
    obstacles.add("descriptor " + std::to_string(highest) + " is at the hard RLIMIT_NOFILE, " +
                  std::to_string(limits.descriptors) + ", or above");
  // The first process has those of all members of its part, and four pipe ends for each member.
  constexpr std::uint64_t kOwn = 16;
  std::vector<RestartPart> parts;
  obstacles.add(split(set, &parts));
  for (const RestartPart& part : parts) {
    const std::set<std::uint32_t> here = indices_of(part);
    std::uint64_t needed = 0;
    obstacles.add(count_descriptors(set.tables, here, &needed));
    needed += kOwn + 4 * here.size();
    if (obstacles.none() && needed > limits.descriptors)
      return {Step::kLimited, "descriptors",
              "the restart may open about " + std::to_string(needed) + " at once, the hard RLIMIT_NOFILE here is " +
                  std::to_string(limits.descriptors) + "; raise it (ulimit -Hn)"};
  }
  return obstacles.step("descriptors", "numbers up to " + std::to_string(highest) + " can be had");
}

constexpr Step (*kSteps[])(const OpenedSet&, const MachineLimits&) = {
    rehearse_processor, rehearse_vdso,         rehearse_libc,       rehearse_user,
    rehearse_pids,      rehearse_files,        rehearse_held_files, rehearse_shared_memory,
    rehearse_ports,     rehearse_mapped_files, rehearse_memory,     rehearse_descriptors};

}  // namespace

MachineLimits machine_limits() {
  MachineLimits limits{};
  limits.map_count = number_in("/proc/sys/vm/max_map_count", ~0ull);
  limits.lowest_address = has_capability(CAP_SYS_RAWIO) ? 0 : number_in("/proc/sys/vm/mmap_min_addr", 0);
  limits.highest_address = address_end();
  limits.guard_pages = has_guard_pages();
  limits.seals = has_seals();
  limits.droppable = has_droppable();
  const auto hard_limit = [](auto resource) {
    rlimit limit{};
    ::getrlimit(resource, &limit);
    return static_cast<std::uint64_t>(limit.rlim_max);
  };
  limits.locked_bytes = locks_without_limit() ? ~0ull : hard_limit(RLIMIT_MEMLOCK);
  limits.address_bytes = hard_limit(RLIMIT_AS);
  limits.data_bytes = hard_limit(RLIMIT_DATA);
  limits.descriptors = hard_limit(RLIMIT_NOFILE);
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (std::uint64_t kib = 0; file >> name >> kib && std::getline(file, unit);)
    if (name == "MemAvailable:" || name == "SwapFree:") limits.available_bytes += kib << 10;
  return limits;
}

std::vector<RehearsedStep> rehearse_restart(const OpenedSet& set, const MachineLimits& limits) {
  std::vector<Step> steps;
  for (const auto& rehearse : kSteps) steps.push_back(rehearse(set, limits));
  return steps;
}

Status refusal_of_restart(const OpenedSet& set, const MachineLimits& given, Holders holders) {
  MachineLimits limits = given;
  if (holders == Holders::kMembers) limits.available_bytes = ~0ull;
  for (const auto& rehearse : kSteps) {
    if (rehearse == rehearse_mapped_files) continue;  // refuses nothing, and reads them all
    const bool asks_holders =
        rehearse == rehearse_held_files || rehearse == rehearse_shared_memory || rehearse == rehearse_ports;
    if (asks_holders && holders == Holders::kMembers) continue;
    const Step step = rehearse(set, limits);
    if (step.outcome == Step::kRefused) return Status::of(step.code, 0, "%s: %.330s", step.what, step.text.c_str());
  }
  return {};
}

}  // namespace shadowib
