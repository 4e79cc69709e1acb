#include "shadowib/cli/portable_set.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "hooks/imager/set/manifest.h"
#include "hooks/job/job_directory.h"
#include "hooks/store/store.h"
#include "shadowib/cli/exchange_place.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/portable_job.h"
#include "shadowib/cli/program.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

volatile sig_atomic_t g_signal = 0;

void note_signal(int signal) { g_signal = signal; }

std::string beside(const char* name) {
  std::error_code error;
  const fs::path path = fs::read_symlink("/proc/self/exe", error).parent_path() / name;
  return fs::exists(path, error) ? path.string() : name;
}

pid_t start(const Arguments& words, const std::string& directory) {
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kRunFailed);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_DFL);
  if (!directory.empty() && ::chdir(directory.c_str()) != 0)
    std::fprintf(stderr, "shadowib: %s is not here, so the program starts in the present directory\n",
                 directory.c_str());
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  std::fprintf(stderr, "shadowib: cannot execute %s: %s\n", arguments[0], std::strerror(errno));
  ::_exit(kRunNotFound);
}

// Each entry of `processes` has a pid and gets its status.
void await_all(std::vector<RestartedProcess>* processes) {
  std::size_t left = processes->size();
  while (left > 0) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, 0);
    if (pid < 0 && errno != EINTR) return;
    if (g_signal != 0) {
      for (const RestartedProcess& p : *processes)
        if (p.exit_status == -1) ::kill(p.pid, g_signal);
      g_signal = 0;
    }
    for (RestartedProcess& p : *processes)
      if (pid > 0 && p.pid == pid) p.exit_status = status, --left;
  }
}

Arguments command_of(const PortableSet::Member& member, const PortableRestart& how) {
  Arguments command = member.command;
  if (how.programs.empty()) return command;
  std::error_code error;
  command[0] = fs::absolute(how.programs[member.index % how.programs.size()], error).lexically_normal();
  return command;
}

std::vector<std::string> words_of(const Json& object, const char* name) {
  std::vector<std::string> words;
  if (object.contains(name))
    for (const Json& word : object.at(name)) words.push_back(word.get<std::string>());
  return words;
}

std::vector<std::string> runners_of(const PortableSet& set, const PortableRestart& how) {
  std::vector<std::string> runners = how.runners;  // the first of an architecture counts
  runners.insert(runners.end(), set.runners.begin(), set.runners.end());
  return runners;
}

// What bsprun is given: of a job on one host a program for each member, else those that a host may choose from.
std::vector<std::string> programs_of(const PortableSet& set, const PortableRestart& how) {
  std::vector<std::string> programs;
  if (!how.hosts.empty() && !how.programs.empty()) return how.programs;
  if (!how.hosts.empty() && !set.programs.empty()) return set.programs;
  for (const PortableSet::Member& member : set.members) {
    const std::string program = command_of(member, how)[0];
    const bool is_new = std::find(programs.begin(), programs.end(), program) == programs.end();
    if (how.hosts.empty() || is_new) programs.push_back(program);
  }
  return programs;
}

// What bsprun says of its end, in a pipe: its exit code may be the program's.
class BsprunEnd {
 public:
  ~BsprunEnd() {
    for (const int fd : pipe_)
      if (fd >= 0) ::close(fd);
  }
  Status open() {
    return ::pipe(pipe_) == 0 && ::fcntl(pipe_[0], F_SETFD, FD_CLOEXEC) == 0
               ? Status()
               : Status::of(Code::kIo, errno, "cannot make a pipe: %.60s", std::strerror(errno));
  }
  int writer() const { return pipe_[1]; }
  // bsprun has its own end of the pipe.
  void begin() { ::close(std::exchange(pipe_[1], -1)); }
  // Behind its end. "": none.
  std::string lost_host() const {
    char text[4096];
    const ssize_t bytes = ::read(pipe_[0], text, sizeof(text));
    Json told;
    if (bytes <= 0 || !Json::parse(std::string(text, static_cast<std::size_t>(bytes)), &told)) return {};
    return told.contains("process") ? "" : told.value("host", "");
  }

 private:
  int pipe_[2] = {-1, -1};
};

// Process 0's words for all; bsprun starts as many. Where, it reads in SHADOWIB_HOSTS.
Arguments bsprun_words(const Common& common, const SetManifest& manifest, const PortableSet& set,
                       const PortableRestart& how, int end) {
  Arguments words{
      beside("bsprun"), "--portable", "--images", manifest.path,    "-n",         std::to_string(set.members.size()),
      "--job",          manifest.job, "--dir",    common.directory, "--tell-end", std::to_string(end)};
  if (!set.interval.empty()) words.insert(words.end(), {"--interval", set.interval});
  if (set.keep != 0 && !set.interval.empty()) words.insert(words.end(), {"--keep", std::to_string(set.keep)});
  if (how.lease_s > 0) words.insert(words.end(), {"--lease", std::to_string(how.lease_s)});
  for (const std::string& runner : runners_of(set, how)) words.insert(words.end(), {"--runner", runner});
  for (const std::string& program : programs_of(set, how)) words.insert(words.end(), {"--program", program});
  words.push_back("--");
  const Arguments& first = set.members[0].command;
  words.insert(words.end(), first.begin(), first.end());
  return words;
}

}  // namespace

Status read_portable_set(const SetManifest& manifest, PortableSet* set) {
  std::string text;
  SHADOWIB_TRY(open_store_of(manifest.path)->read(manifest.path, kManifestFile, &text));
  try {
    Json json;
    Json::parse(text, &json);
    const Json& portable = json.at("portable");
    set->is_bsp = portable.at("kind").get<std::string>() == "bsp";
    set->superstep = portable.at("superstep").get<std::uint64_t>();
    set->interval = portable.value("interval", "");
    set->keep = portable.value("keep", 0u);
    set->programs = words_of(portable, "programs");
    set->runners = words_of(portable, "runners");
    set->members.clear();
    for (const Json& entry : portable.at("members")) {
      PortableSet::Member member;
      member.index = entry.at("index").get<std::uint32_t>();
      member.target = entry.at("target").get<std::string>();
      member.directory = entry.at("directory").get<std::string>();
      member.visits = entry.at("visits").get<std::uint64_t>();
      for (const Json& word : entry.at("command")) member.command.push_back(word.get<std::string>());
      if (member.command.empty()) throw std::domain_error("a member has no command");
      set->members.push_back(std::move(member));
    }
    if (set->members.size() != manifest.members.size()) throw std::domain_error("members do not agree");
    for (std::size_t i = 0; i < set->members.size(); ++i)
      if (set->members[i].index != manifest.members[i].index) throw std::domain_error("members do not agree");
  } catch (const std::exception& error) {
    return Status::of(Code::kCorrupt, 0, "set %.150s: manifest: %.150s", manifest.path.c_str(), error.what());
  }
  return {};
}

Status take_portable_job(const std::string& directory, const std::string& job) {
  const std::string lock = job_paths(directory, job).alive + "/restart";
  SHADOWIB_TRY(ensure_directory(job_paths(directory, job).alive));
  const int fd = hold_alive_lock(lock);
  const int error = errno;
  if (std::string who; members_alive(directory, job, &who))
    return Status::of(Code::kBusy, 0, "job %.64s is alive (%.80s)", job.c_str(), who.c_str());
  if (fd >= 0) return note_lock_holder(fd, lock);
  return error == EAGAIN || error == EWOULDBLOCK
             ? Status::of(Code::kBusy, error, "job %.64s is just being restarted by another command", job.c_str())
             : file_error(error, "lock", lock);
}

Status restart_portable(const Common& common, const SetManifest& manifest, const PortableSet& set,
                        const PortableRestart& how, const std::function<void()>& started,
                        std::vector<RestartedProcess>* processes, std::string* lost_host) {
  const std::string& job = manifest.job;
  for (const std::string& named : how.hosts.empty() ? programs_of(set, how) : Arguments{}) {
    std::string program;
    SHADOWIB_TRY(find_program(named, &program));
  }
  std::string exchange = exchange_of(common, job);
  SHADOWIB_TRY(settle_exchange(job_paths(common.directory, job).password, &exchange));
  SHADOWIB_TRY(renew_job(common.directory, job, exchange, {}, new_epoch(manifest.generation + 1)));
  forget_portable_job(common.directory, job);
  PortableRequest request;  // the job is one of portable programs, before their `run` looks
  SHADOWIB_TRY(request.open(common.directory, job));
  std::error_code error;
  const std::string own = fs::read_symlink("/proc/self/exe", error);
  struct sigaction action {};
  action.sa_handler = note_signal;  // without SA_RESTART: waitpid() returns
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
  BsprunEnd end;
  if (set.is_bsp) {
    SHADOWIB_TRY(end.open());
    how.hosts.empty() ? ::unsetenv("SHADOWIB_HOSTS") : ::setenv("SHADOWIB_HOSTS", how.hosts.c_str(), 1);
    if (!how.shell.empty()) ::setenv("SHADOWIB_RSH", how.shell.c_str(), 1);
    processes->push_back(
        {0, start(bsprun_words(common, manifest, set, how, end.writer()), set.members[0].directory), -1, false});
    end.begin();
  }
  for (std::size_t i = 0; !set.is_bsp && i < set.members.size(); ++i) {
    Arguments words{own,
                    "run",
                    "--portable",
                    "--job",
                    job,
                    "--dir",
                    common.directory,
                    "--member",
                    std::to_string(set.members[i].index),
                    "--image",
                    manifest.path + "/" + manifest.members[i].file};
    for (const std::string& runner : runners_of(set, how)) words.insert(words.end(), {"--runner", runner});
    words.push_back("--");
    const Arguments command = command_of(set.members[i], how);
    words.insert(words.end(), command.begin(), command.end());
    processes->push_back({set.members[i].index, start(words, set.members[i].directory), -1, false});
  }
  for (const RestartedProcess& p : *processes)
    if (p.pid < 0) return Status::of(Code::kIo, errno, "cannot fork: %.60s", std::strerror(errno));
  started();
  await_all(processes);
  if (set.is_bsp) *lost_host = end.lost_host();
  return {};
}

int print_values(const std::string& image) {
  std::fflush(nullptr);
  int status = 0;
  const pid_t pid = start({beside("shadowib-values"), image}, "");
  return pid > 0 && ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : kRunFailed;
}

}  // namespace shadowib::cli
