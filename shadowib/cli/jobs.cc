#include "shadowib/cli/jobs.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "hooks/job/job_directory.h"
#include "hooks/job/protocol.h"
#include "hooks/store/files.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/processes.h"
#include "shadowib/base/shared_names.h"
#include "shadowib/cli/exchange_place.h"
#include "shadowib/cli/sets.h"
#include "shadowib/exchange/exchange.h"
#include "shadowib/exchange/remove_below.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

std::string random_key() {
  std::string hex = random_hex(32), key;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    key.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return key;
}

Status make_directories_of(const std::string& directory, const JobPaths& paths) {
  SHADOWIB_TRY(ensure_directory(directory));
  for (const std::string& path : {paths.top, paths.alive, paths.started}) SHADOWIB_TRY(ensure_directory(path));
  return {};
}

// What `run` has noted of a process that it has started: <host>,<pid>,<start time>.
struct StartedProcess {
  std::string host, pid, start_time;
  bool is_local() const { return host == host_name(); }
  bool exists() const {  // of a local one
    const std::uint64_t present = process_start_time(std::atoi(pid.c_str()));
    return present != 0 && std::to_string(present) == start_time;
  }
};

bool parse_started(const std::string& name, StartedProcess* process) {
  const std::size_t second = name.rfind(','), first = second == 0 ? second : name.rfind(',', second - 1);
  if (second == std::string::npos || first == std::string::npos) return false;
  *process = {name.substr(0, first), name.substr(first + 1, second - first - 1), name.substr(second + 1)};
  return true;
}

// A process that `run` has started after `since` and that still exists. On another host, where nobody can look, it
// counts as existing for a week, unless `here`: by then it is a member, or has ended.
bool started_process(const std::string& directory, const std::string& job, bool here, std::string* who,
                     fs::file_time_type since = fs::file_time_type::min()) {
  constexpr std::chrono::hours kUnseen{7 * 24};
  const std::string started = job_paths(directory, job).started;
  std::vector<std::string> names;
  std::error_code error;
  (void)system_files().list(started, &names);
  for (const std::string& name : names) {
    StartedProcess process;
    if (!parse_started(name, &process)) continue;
    const fs::file_time_type noted = fs::last_write_time(started + "/" + name, error);
    if (error || noted <= since) continue;
    const bool local = process.is_local(), unseen = here || fs::file_time_type::clock::now() - noted > kUnseen;
    if (local ? !process.exists() : unseen) continue;
    *who = "process " + process.pid + (local ? "" : " on host " + process.host);
    return true;
  }
  return false;
}

// Whether two URIs surely are of two exchanges. A server's address may differ from host to host, and a directory's
// path.
bool other_exchange(const std::string& a, const std::string& b) {
  constexpr std::size_t kScheme = 4;  // "dir:", "redi", "pmix"
  std::error_code error;
  if (a.compare(0, kScheme, b, 0, kScheme) != 0) return true;
  return a.starts_with("dir:") && !fs::equivalent(a.substr(kScheme), b.substr(kScheme), error);
}

// Commands find the job by the URI on record: it must be the one that its processes use.
Status record_exchange(const std::string& directory, const std::string& job, const std::string& uri) {
  const std::string path = job_paths(directory, job).exchange;
  std::string recorded, who;
  std::error_code error;
  if (!fs::exists(path, error)) SHADOWIB_TRY(place_file(path, uri + "\n", true));
  if (Status s = read_file(path, &recorded); !s.ok() || recorded == uri + "\n") return s;
  while (!recorded.empty() && recorded.back() == '\n') recorded.pop_back();
  // An earlier launcher's server is gone, and its job with it.
  const bool alive = !recorded.starts_with("pmix:") &&
                     (job_alive(directory, job, &who) || started_process(directory, job, true, &who));
  if (!alive) return place_file(path, uri + "\n", false);
  if (!other_exchange(recorded, uri)) return {};
  return Status::of(Code::kBusy, 0,
                    "job %.64s is alive (%.80s) and its exchange is %.100s: leave out --exchange to join it, or end "
                    "it first",
                    job.c_str(), who.c_str(), Exchange::shown(recorded).c_str());
}

}  // namespace

Status place_file(const std::string& path, const std::string& content, bool keep) {
  const std::string temporary = path + ".new-" + random_hex(8);
  SHADOWIB_TRY(write_new_file(temporary, content));
  int rc = keep ? ::link(temporary.c_str(), path.c_str()) : ::rename(temporary.c_str(), path.c_str());
  int err = rc == 0 || (keep && errno == EEXIST) ? 0 : errno;
  ::unlink(temporary.c_str());
  return err == 0 ? Status() : file_error(err, "write", path);
}

Status ensure_job(const std::string& directory, const std::string& job) {
  const JobPaths paths = job_paths(directory, job);
  std::error_code error;
  SHADOWIB_TRY(make_directories_of(directory, paths));
  return fs::exists(paths.key, error) ? Status() : place_file(paths.key, random_key(), true);
}

Status prepare_job(const std::string& directory, const std::string& job, const std::string& exchange) {
  JobPaths paths = job_paths(directory, job);
  SHADOWIB_TRY(make_directories_of(directory, paths));
  std::error_code error;
  if (!fs::exists(paths.key, error)) SHADOWIB_TRY(place_file(paths.key, random_key(), true));
  SHADOWIB_TRY(record_exchange(directory, job, recorded_exchange(exchange)));
  const pid_t pid = ::getpid();
  SHADOWIB_TRY(place_file(
      paths.started + "/" + host_name() + "," + std::to_string(pid) + "," + std::to_string(process_start_time(pid)),
      "", false));
  // Last: a job that has an epoch and no member yet is one that starts.
  return fs::exists(paths.epoch, error) ? Status() : place_file(paths.epoch, new_epoch(0), true);
}

Status renew_job(const std::string& directory, const std::string& job, const std::string& exchange,
                 const std::set<std::uint32_t>& members, const std::string& epoch) {
  JobPaths paths = job_paths(directory, job);
  SHADOWIB_TRY(make_directories_of(directory, paths));
  std::unique_ptr<Exchange> opened;
  SHADOWIB_TRY(Exchange::open(exchange, true, &opened));
  SHADOWIB_TRY(opened->publish(reserved_members_key(epoch), encode_reserved_members(members)));
  SHADOWIB_TRY(place_file(paths.key, random_key(), false));
  SHADOWIB_TRY(place_file(paths.exchange, recorded_exchange(exchange) + "\n", false));
  SHADOWIB_TRY(place_file(paths.epoch, epoch, false));
  for (const std::string& earlier : earlier_epochs(directory, job))
    (void)remove_epoch(directory, job, exchange, earlier).ok();  // gc tries it again
  return {};
}

std::string present_epoch(const std::string& directory, const std::string& job) {
  std::string present;
  if (!read_file(job_paths(directory, job).epoch, &present).ok()) return {};
  while (!present.empty() && present.back() == '\n') present.pop_back();
  return present;
}

std::vector<std::string> earlier_epochs(const std::string& directory, const std::string& job) {
  const JobPaths paths = job_paths(directory, job);
  std::set<std::string> held, all;
  std::vector<std::string> names;
  if (system_files().list(paths.alive, &names) != 0) return {};
  for (const std::string& name : names) {
    const std::string epoch = name.substr(0, name.find('.'));
    if (epoch.size() == name.size()) continue;  // a lock of the job's
    all.insert(epoch);
    if (is_alive(paths.alive + "/" + name)) held.insert(epoch);
  }
  // Asked last: an epoch that has locks by now is the present one, or was.
  const std::string present = present_epoch(directory, job);
  if (present.empty()) return {};
  held.insert(present);
  std::vector<std::string> earlier;
  std::set_difference(all.begin(), all.end(), held.begin(), held.end(), std::back_inserter(earlier));
  return earlier;
}

Status remove_epoch(const std::string& directory, const std::string& job, const std::string& exchange,
                    const std::string& epoch) {
  SHADOWIB_TRY(remove_below(exchange, epoch));
  const std::string alive = job_paths(directory, job).alive;
  std::error_code error;
  std::vector<std::string> names;
  (void)system_files().list(alive, &names);
  for (const std::string& name : names)
    if (name.starts_with(epoch + ".")) fs::remove(alive + "/" + name, error);
  return {};
}

namespace {

// How long a restart waits for commands that look at the job, or come to their end.
constexpr std::int64_t kOthersNs = 20'000'000'000;

bool is_checkpoint(const std::string& lock) { return lock.find(".ckpt") != std::string::npos; }

// False: nobody knows what is in there. A directory that is not there has no locks.
bool list_locks(const std::string& alive, std::vector<std::string>* names) {
  const int error = system_files().list(alive, names);
  return error == 0 || error == ENOENT || error == ENOTDIR;
}

}  // namespace

bool is_supervised(const std::string& directory, const std::string& job) {
  const fs::path lock = job_paths(directory, job).supervisor;  // and of each cluster: supervisor.<name>
  std::vector<std::string> names;
  if (!list_locks(lock.parent_path().string(), &names)) return true;
  return std::any_of(names.begin(), names.end(), [&lock](const std::string& name) {
    const std::string own = lock.filename().string();
    return (name == own || name.starts_with(own + ".")) && is_alive((lock.parent_path() / name).string());
  });
}

bool checkpoint_running(const std::string& directory, const std::string& job) {
  const std::string alive = job_paths(directory, job).alive;
  std::vector<std::string> names;
  if (!list_locks(alive, &names)) return true;
  return std::any_of(names.begin(), names.end(), [&alive](const std::string& name) {
    return is_checkpoint(name) && is_alive(alive + "/" + name);
  });
}

namespace {

template <typename Except>
bool lock_held(const std::string& directory, const std::string& job, Except except, std::string* who) {
  const std::string alive = job_paths(directory, job).alive;
  std::vector<std::string> names;
  if (!list_locks(alive, &names)) {
    *who = "perhaps a member: " + alive + " cannot be read";
    return true;
  }
  for (const std::string& name : names) {
    if (is_guest_lock(name) || except(name) || !is_alive(alive + "/" + name)) continue;
    *who = "member or command " + name;
    return true;
  }
  return false;
}

}  // namespace

bool job_alive(const std::string& directory, const std::string& job, std::string* who) {
  return lock_held(
      directory, job, [](const std::string&) { return false; }, who);
}

bool members_alive(const std::string& directory, const std::string& job, std::string* who) {
  const std::string joining = job_paths(directory, job).joining;
  const Deadline deadline = Deadline::in_ns(kOthersNs);
  // Who has it after that has begun since, and only looks whether the job is being restarted.
  bool joins = is_alive(joining);
  for (; joins && !deadline.has_passed(); joins = is_alive(joining)) ::usleep(1000);
  const auto is_other = [joins](const std::string& name) {
    return name == "restart" || name == "renewing" || (name == "joining" && !joins);
  };
  const auto is_no_member = [is_other](const std::string& name) { return is_other(name) || is_checkpoint(name); };
  while (lock_held(directory, job, is_other, who)) {
    if (deadline.has_passed() || lock_held(directory, job, is_no_member, who)) return true;
    ::usleep(1000);
  }
  return false;
}

namespace {

// When the last process has become a member in the job's present epoch: its lock's file stays. The beginning of time:
// none has.
fs::file_time_type last_joined(const std::string& directory, const std::string& job) {
  const std::string prefix = present_epoch(directory, job) + ".";
  fs::file_time_type last = fs::file_time_type::min();
  const std::string alive = job_paths(directory, job).alive;
  std::vector<std::string> names;
  std::error_code error;
  (void)system_files().list(alive, &names);
  for (const std::string& name : names) {
    if (!name.starts_with(prefix) || name.find_first_not_of("0123456789", prefix.size()) != std::string::npos)
      continue;
    if (const auto joined = fs::last_write_time(alive + "/" + name, error); !error) last = std::max(last, joined);
  }
  return last;
}

// "; jobs there: a, b, ...", or "" if there is none.
std::string other_jobs(const std::string& directory) {
  constexpr std::size_t kNamed = 4;
  const std::vector<std::string> jobs = jobs_in(directory);
  std::string text;
  for (std::size_t i = 0; i < jobs.size() && i < kNamed; ++i) text += (i == 0 ? "; jobs there: " : ", ") + jobs[i];
  return jobs.size() > kNamed ? text + ", ..." : text;
}

}  // namespace

bool job_in_use(const std::string& directory, const std::string& job, std::string* who) {
  return job_alive(directory, job, who) || started_process(directory, job, false, who);
}

RemovalLocks::~RemovalLocks() { release(); }

void RemovalLocks::release() {
  for (const int lock : locks_) release_alive_lock(lock);
  locks_.clear();
}

bool RemovalLocks::take(const std::string& directory, const std::string& job, std::string* who) {
  const bool taken = take_all(directory, job, who);
  if (!taken) release();
  return taken;
}

bool RemovalLocks::take_all(const std::string& directory, const std::string& job, std::string* who) {
  const JobPaths paths = job_paths(directory, job);
  // In the order of who takes several of them.
  for (const std::string* path : {&paths.renewing, &paths.restart, &paths.joining}) {
    const int lock = hold_alive_lock(*path);
    *who = "command or member that has " + *path;
    if (lock < 0) return false;
    locks_.push_back(lock);
  }
  const auto is_ours = [](const std::string& name) {
    return name == "restart" || name == "renewing" || name == "joining";
  };
  return !lock_held(directory, job, is_ours, who) && !started_process(directory, job, false, who);
}

std::vector<int> started_here(const std::string& directory, const std::string& job) {
  std::vector<std::string> names;
  std::vector<int> pids;
  StartedProcess process;
  (void)system_files().list(job_paths(directory, job).started, &names);
  for (const std::string& name : names)
    if (parse_started(name, &process) && process.is_local() && process.exists())
      pids.push_back(std::stoi(process.pid));
  return pids;
}

Status note_lock_holder(int lock, const std::string& path) {
  const std::string text =
      host_name() + " " + std::to_string(::getpid()) + " " + std::to_string(process_start_time(::getpid())) + "\n";
  if (::ftruncate(lock, 0) == 0 && ::pwrite(lock, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()))
    return {};
  return file_error(errno, "write", path);
}

LockHolder lock_holder(const std::string& path) {
  LockHolder holder;
  std::ifstream(path) >> holder.host >> holder.pid >> holder.start_time;
  return holder;
}

namespace {

std::vector<int> restarts_here(const std::string& directory, const std::string& job) {
  const std::string alive = job_paths(directory, job).alive;
  std::vector<std::string> names;
  std::vector<int> pids;
  (void)system_files().list(alive, &names);
  for (const std::string& name : names) {
    if ((name != "restart" && name.find(".share") == std::string::npos) || !is_alive(alive + "/" + name)) continue;
    const LockHolder holder = lock_holder(alive + "/" + name);
    if (holder.pid > 0 && holder.host == host_name() && process_start_time(holder.pid) == holder.start_time &&
        std::find(pids.begin(), pids.end(), holder.pid) == pids.end())
      pids.push_back(holder.pid);
  }
  return pids;
}

bool is_below(int pid, const std::vector<int>& others) {
  for (int above = process_stat(pid).parent; above > 1; above = process_stat(above).parent)
    if (std::find(others.begin(), others.end(), above) != others.end()) return true;
  return false;
}

}  // namespace

std::vector<int> heads_here(const std::string& directory, const std::string& job) {
  std::vector<int> heads = restarts_here(directory, job);
  if (!heads.empty()) return heads;
  const std::vector<int> started = started_here(directory, job);
  std::copy_if(started.begin(), started.end(), std::back_inserter(heads),
               [&started](int pid) { return !is_below(pid, started); });
  return heads;
}

Status why_no_member(const std::string& directory, const std::string& job) {
  std::string who;
  if (started_process(directory, job, false, &who, last_joined(directory, job)))
    return Status::of(Code::kBusy, 0,
                      "job %.64s is starting: %.100s has not opened an RDMA device or come to MPI_Init yet, so there "
                      "is nothing to save; try again",
                      job.c_str(), who.c_str());
  // A launcher whose ranks have ended.
  if (started_process(directory, job, true, &who))
    return Status::of(Code::kNotFound, 0, "no process of job %.64s is alive any more; %.100s lives, and is no member",
                      job.c_str(), who.c_str());
  if (const std::string set = newest_set(directory, job); !set.empty())
    return Status::of(
        Code::kNotFound, 0,
        "job %.64s has ended: none of its processes is alive; `shadowib restart %.64s` starts its newest "
        "set, %.80s",
        job.c_str(), job.c_str(), set.c_str());
  return Status::of(Code::kNotFound, 0, "job %.64s has ended: none of its processes is alive, and it has no set",
                    job.c_str());
}

std::vector<std::string> jobs_in(const std::string& directory) {
  std::vector<std::string> jobs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(jobs_path(directory), error))
    if (std::string name = entry.path().filename(); entry.is_directory(error) && valid_job_name(name))
      jobs.push_back(name);
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

Status choose_job(const std::string& directory, const std::string& given, std::string* job) {
  if (!given.empty()) {
    if (!valid_job_name(given))
      return Status::of(Code::kUsage, 0, "'%.100s' is no job name: %s", given.c_str(), kJobNameRule);
    std::error_code error;
    revalidate_parent(job_paths(directory, given).epoch);
    if (!fs::is_directory(job_paths(directory, given).top, error))
      return Status::of(Code::kNotFound, 0, "there is no job %.64s in %.180s%.100s", given.c_str(), directory.c_str(),
                        other_jobs(directory).c_str());
    *job = given;
    return {};
  }
  std::vector<std::string> alive;
  std::string who;
  for (const std::string& name : jobs_in(directory))
    if (job_in_use(directory, name, &who)) alive.push_back(name);
  if (alive.empty())
    return Status::of(Code::kNotFound, 0, "no job is alive in %.200s%.100s", directory.c_str(),
                      other_jobs(directory).c_str());
  if (alive.size() > 1)
    return Status::of(Code::kUsage, 0, "several jobs are alive in %.150s (%.64s, %.64s%s); name one",
                      directory.c_str(), alive[0].c_str(), alive[1].c_str(), alive.size() > 2 ? ", ..." : "");
  *job = alive[0];
  return {};
}

}  // namespace shadowib::cli
