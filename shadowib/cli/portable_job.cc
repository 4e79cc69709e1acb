#include "shadowib/cli/portable_job.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "hooks/job/job_directory.h"
#include "hooks/job/member_record.h"
#include "hooks/job/protocol.h"
#include "hooks/store/files.h"
#include "shadowib/base/networks.h"
#include "shadowib/base/processes.h"
#include "shadowib/cli/history.h"
#include "shadowib/cli/inherited_signals.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/program.h"
#include "shadowib/command_line/architecture.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

// As libraries/portable/runtime/job.cc has it.
constexpr std::size_t kRequestBytes = 16384, kDecisionAt = 8, kTextAt = 16;

std::string request_path(const std::string& directory, const std::string& job) {
  return portable_path(directory, job) + "/request";
}

std::string member_path(const std::string& directory, const std::string& job, std::uint32_t member) {
  return portable_path(directory, job) + "/member-" + std::to_string(member) + ".json";
}

std::string member_lock(const std::string& directory, const std::string& job, std::uint32_t member) {
  return alive_path(directory, job, present_epoch(directory, job), std::to_string(member));
}

// The command that runs a program of another architecture, as words.
Status runner_of(const std::string& program, const std::vector<std::string>& runners, Arguments* words) {
  const std::string architecture = command_line::architecture_of(program);
  if (architecture.empty())
    return Status::of(Code::kRefused, ENOEXEC, "%.200s is no program that shadowib-cc has linked", program.c_str());
  if (architecture == command_line::this_architecture()) return {};
  for (const std::string& runner : runners) {
    if (!runner.starts_with(architecture + "=")) continue;
    std::istringstream list(runner.substr(architecture.size() + 1));
    for (std::string word; list >> word;) words->push_back(word);
    break;
  }
  if (words->empty())
    return Status::of(Code::kRefused, ENOEXEC,
                      "%.150s is a program of %.20s: say what runs it here, as --runner %.20s='qemu-%.20s -L "
                      "/usr/%.20s-linux-gnu'",
                      program.c_str(), architecture.c_str(), architecture.c_str(), architecture.c_str(),
                      architecture.c_str());
  return {};
}

Status take_member(const std::string& directory, const std::string& job, int wanted, std::uint32_t* member,
                   int* lock) {
  constexpr std::uint32_t kMost = 100000;
  for (std::uint32_t i = wanted < 0 ? 0 : static_cast<std::uint32_t>(wanted); i < kMost; ++i) {
    const std::string path = member_lock(directory, job, i);
    *member = i;
    *lock = hold_alive_lock(path);
    if (*lock >= 0) return {};
    if (errno != EAGAIN)
      return Status::of(Code::kIo, errno, "cannot lock %.200s: %.60s", path.c_str(), std::strerror(errno));
    if (wanted >= 0) break;
  }
  return Status::of(Code::kBusy, 0, "member %u of job %.64s is alive", *member, job.c_str());
}

// Where processes of a BSP job on other hosts find this one: in a network that the user has chosen, IPv4 first. A
// host that has only itself is all hosts.
Status give_address() {
  ::unsetenv("SHADOWIB_BSP_ADDRESS");
  const char *here = std::getenv("SHADOWIB_BSP_HERE"), *all = std::getenv("SHADOWIB_BSP_PROCESSES");
  if (here == nullptr || all == nullptr || std::atoi(here) == std::atoi(all)) return {};
  std::vector<HostAddress> addresses;
  SHADOWIB_TRY(choose_addresses(environment("IB2TCP_NETWORK"), &addresses));
  addresses.push_back({"lo", kLoopback4, 128, true});
  const auto rank = [](const HostAddress& a) { return std::pair(a.loopback, !is_ipv4(a.address)); };
  const auto best = std::min_element(addresses.begin(), addresses.end(),
                                     [rank](const auto& a, const auto& b) { return rank(a) < rank(b); });
  ::setenv("SHADOWIB_BSP_ADDRESS", text_of(best->address).c_str(), 1);
  return {};
}

Status make_ready(Common& common, const PortableStart& start, Arguments* words) {
  std::string program;
  SHADOWIB_TRY(find_program(start.command[0], &program));
  SHADOWIB_TRY(runner_of(program, start.runners, words));
  if (!words->empty()) {
    std::string runner;
    SHADOWIB_TRY(find_program((*words)[0], &runner));
    (*words)[0] = runner;
  }
  words->push_back(program);
  words->insert(words->end(), start.command.begin() + 1, start.command.end());
  // First: a checkpoint that finds a job without a request takes it for one under the shim.
  PortableRequest request;
  SHADOWIB_TRY(request.open(common.directory, start.job));
  SHADOWIB_TRY(prepare_job(common.directory, start.job, exchange_of(common, start.job)));
  std::uint32_t member = 0;
  int lock = -1;
  SHADOWIB_TRY(take_member(common.directory, start.job, start.member, &member, &lock));
  std::error_code error;
  Arguments command = start.command;
  command[0] = fs::absolute(program, error).lexically_normal();
  Arguments programs;
  Json facts{{"member", member},
             {"pid", ::getpid()},
             {"host", host_name()},
             {"comm", fs::path(program).filename().string()},
             {"directory", fs::current_path(error).string()},
             {"command", command}};
  // How bsprun takes checkpoints of all, and what it runs where: a restart does the same.
  for (const auto& [variable, name] :
       {std::pair{"SHADOWIB_BSP_INTERVAL", "interval"}, {"SHADOWIB_BSP_KEEP", "keep"}}) {
    if (const char* value = std::getenv(variable)) facts[name] = value;
    ::unsetenv(variable);
  }
  if (!start.runners.empty()) facts["runners"] = start.runners;
  for (const std::string& one : start.among)
    programs.push_back(one.find('/') == std::string::npos ? one
                                                          : fs::absolute(one, error).lexically_normal().string());
  if (!programs.empty()) facts["programs"] = programs;
  // Of a BSP job: they save at one superstep, so none of them does so before all are there.
  if (const char* processes = std::getenv("SHADOWIB_BSP_PROCESSES")) facts["processes"] = std::atoi(processes);
  SHADOWIB_TRY(give_address());
  SHADOWIB_TRY(place_file(member_path(common.directory, start.job, member), facts.dump(2) + "\n", false));
  ::fcntl(lock, F_SETFD, 0);  // held until the program ends
  ::setenv("SHADOWIB_PORTABLE_JOB", portable_path(common.directory, start.job).c_str(), 1);
  ::setenv("SHADOWIB_PORTABLE_MEMBER", std::to_string(member).c_str(), 1);
  ::setenv("SHADOWIB_PORTABLE_LOCK", std::to_string(lock).c_str(), 1);
  // The program writes it, once it is one of shadowib-cc and has begun.
  ::setenv("SHADOWIB_PORTABLE_RECORD", joined_record(::getpid(), process_start_time(::getpid()), host_name()).c_str(),
           1);
  start.from.empty() ? ::unsetenv("SHADOWIB_PORTABLE_FROM")
                     : ::setenv("SHADOWIB_PORTABLE_FROM", start.from.c_str(), 1);
  // Started below `shadowib run`, which means other programs.
  if (std::getenv("SHADOWIB_COMMAND") != nullptr) ::unsetenv("LD_PRELOAD");
  return {};
}

}  // namespace

std::string portable_path(const std::string& directory, const std::string& job) {
  return job_paths(directory, job).top + "/portable";
}

bool is_portable_job(const std::string& directory, const std::string& job) {
  std::error_code error;
  return fs::exists(request_path(directory, job), error);
}

void forget_portable_job(const std::string& directory, const std::string& job) {
  std::error_code error;
  fs::remove_all(portable_path(directory, job), error);
}

int run_portable(Common& common, const PortableStart& begin) {
  Arguments words;
  if (Status s = make_ready(common, begin, &words); !s.ok()) {
    (void)fail(common, s);
    return s.code() == Code::kNotFound ? kRunNotFound : s.code() == Code::kRefused ? kRunRefused : kRunFailed;
  }
  if (begin.from.empty() && begin.member <= 0)
    note_event(common.directory, begin.job,
               HistoryEvent("started")
                   .add("command", fs::path(begin.command[0]).filename().string())
                   .add("backend", "portable"));
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  give_back_inherited_signals();
  ::execv(arguments[0], arguments.data());
  std::fprintf(stderr, "shadowib: cannot execute %s: %s\n", arguments[0], std::strerror(errno));
  return errno == ENOENT ? kRunNotFound : kRunRefused;
}

std::vector<PortableMember> portable_members(const std::string& directory, const std::string& job) {
  const std::string alive = job_paths(directory, job).alive, prefix = present_epoch(directory, job) + ".";
  std::vector<std::string> names;
  std::vector<PortableMember> members;
  (void)system_files().list(alive, &names);  // no directory: no member
  for (const std::string& name : names) {
    const std::string number = name.starts_with(prefix) ? name.substr(prefix.size()) : "";
    if (number.empty() || number.size() > 6 || number.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string lock = std::string(alive).append("/").append(name);
    if (is_alive(lock)) members.push_back({static_cast<std::uint32_t>(std::stoul(number)), lock});
  }
  std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  return members;
}

Status portable_facts(const std::string& directory, const std::string& job, std::uint32_t member, Json* facts) {
  std::string text;
  const std::string path = member_path(directory, job, member);
  SHADOWIB_TRY(read_file(path, &text));
  return Json::parse(text, facts) ? Status() : Status::of(Code::kIo, 0, "%.300s is damaged", path.c_str());
}

PortableRequest::~PortableRequest() {
  if (memory_ != nullptr) ::munmap(memory_, kRequestBytes);
}

Status PortableRequest::open(const std::string& directory, const std::string& job) {
  std::error_code error;
  fs::create_directories(portable_path(directory, job), error);
  const std::string path = request_path(directory, job);
  if (!fs::exists(path, error)) SHADOWIB_TRY(place_file(path, std::string(kRequestBytes, '\0'), true));
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return file_error(errno, "open", path);
  void* memory = ::mmap(nullptr, kRequestBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int failed = memory == MAP_FAILED ? errno : 0;
  ::close(fd);
  if (failed != 0) return file_error(failed, "map", path);
  memory_ = static_cast<unsigned char*>(memory);
  return {};
}

Status PortableRequest::ask(const std::string& staging, const std::string& lock, const std::string& set, bool kill,
                            const std::string& members, std::string* id) {
  const std::atomic_ref<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(memory_));
  *id = random_hex(8);
  const std::string text =
      staging + "\n" + lock + "\n" + set + "\n" + (kill ? "kill" : "go on") + "\n" + members + "\n";
  if (text.size() >= kRequestBytes - kTextAt)
    return Status(Code::kUsage, ENAMETOOLONG,
                  "the members of the job and the paths of the set are too long for a request");
  word.store(0);
  memory_[kDecisionAt] = 0;
  std::memset(memory_ + kTextAt, 0, kRequestBytes - kTextAt);
  std::memcpy(memory_ + kTextAt, text.data(), text.size());
  // The bytes in the order of the digits: processes may have another byte order.
  std::uint64_t number = 0;
  for (unsigned i = 0; i < 8; ++i) number |= std::stoull(id->substr(2 * i, 2), nullptr, 16) << (8 * i);
  word.store(number);
  show();
  return {};
}

void PortableRequest::decide(bool committed) {
  const std::atomic_ref<unsigned char> decision(memory_[kDecisionAt]);
  decision.store(committed ? 'c' : 'w');
  show();
  // One that is asked to end still has to read the decision.
  if (committed) return;
  std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(memory_)).store(0);
  show();
}

// Processes on other hosts read the file.
void PortableRequest::show() { (void)::msync(memory_, kRequestBytes, MS_SYNC); }

}  // namespace shadowib::cli
