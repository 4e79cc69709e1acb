#include "shadowib/cli/portable_set.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>

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
                        std::vector<RestartedProcess>* processes) {
  const std::string& job = manifest.job;
  for (const PortableSet::Member& member : set.members) {
    std::string program;
    SHADOWIB_TRY(find_program(command_of(member, how)[0], &program));
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
  if (set.is_bsp) {
    // Process 0's words for all; bsprun starts as many.
    Arguments words{
        beside("bsprun"), "--portable", "--images", manifest.path,   "-n", std::to_string(set.members.size()),
        "--job",          job,          "--dir",    common.directory};
    if (!set.interval.empty()) words.insert(words.end(), {"--interval", set.interval});
    if (set.keep != 0 && !set.interval.empty()) words.insert(words.end(), {"--keep", std::to_string(set.keep)});
    for (const std::string& runner : how.runners) words.insert(words.end(), {"--runner", runner});
    for (const PortableSet::Member& member : set.members)
      words.insert(words.end(), {"--program", command_of(member, how)[0]});
    words.push_back("--");
    const Arguments& first = set.members[0].command;
    words.insert(words.end(), first.begin(), first.end());
    processes->push_back({0, start(words, set.members[0].directory), -1, false});
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
    for (const std::string& runner : how.runners) words.insert(words.end(), {"--runner", runner});
    words.push_back("--");
    const Arguments command = command_of(set.members[i], how);
    words.insert(words.end(), command.begin(), command.end());
    processes->push_back({set.members[i].index, start(words, set.members[i].directory), -1, false});
  }
  for (const RestartedProcess& p : *processes)
    if (p.pid < 0) return Status::of(Code::kIo, errno, "cannot fork: %.60s", std::strerror(errno));
  started();
  await_all(processes);
  return {};
}

int print_values(const std::string& image) {
  std::fflush(nullptr);
  int status = 0;
  const pid_t pid = start({beside("shadowib-values"), image}, "");
  return pid > 0 && ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : kRunFailed;
}

}  // namespace shadowib::cli
