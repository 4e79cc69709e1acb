#include "shadowib/cli/history.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <set>

#include "hooks/job/protocol.h"
#include "hooks/store/files.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/processes.h"
#include "shadowib/cli/wall_clock.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr char kSuffix[] = ".jsonl";
constexpr std::size_t kManyFiles = 64;  // of one host, before a writer packs them

std::string name_of_host() {
  std::string text = host_name();
  std::replace(text.begin(), text.end(), '/', '_');
  return text;
}

std::string own_file() { return name_of_host() + "." + std::to_string(::getpid()) + kSuffix; }

std::string now_text() {
  const std::int64_t now = wall_clock_ns();
  const time_t seconds = now / 1'000'000'000;
  tm broken{};
  ::gmtime_r(&seconds, &broken);
  char date[40], text[64];
  ::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &broken);
  std::snprintf(text, sizeof(text), "%s.%06ldZ", date, static_cast<long>(now % 1'000'000'000 / 1000));
  return text;
}

// A line that the disk has no room for is taken back: half of it would spoil the next.
int append_line(int fd, const std::string& line) {
  struct stat before {};
  if (::fstat(fd, &before) != 0) return errno;
  const ssize_t wrote = ::write(fd, line.data(), line.size());
  if (wrote == static_cast<ssize_t>(line.size())) return 0;
  const int err = wrote < 0 ? errno : ENOSPC;
  if (wrote > 0) (void)!::ftruncate(fd, before.st_size);
  return err;
}

// The writer's pid, if the file is this host's and its writer has ended; 0 otherwise.
pid_t ended_writer(const std::string& file) {
  const std::string host = name_of_host() + ".";
  if (!file.starts_with(host) || !file.ends_with(kSuffix)) return 0;
  const std::string pid = file.substr(host.size(), file.size() - host.size() - (sizeof(kSuffix) - 1));
  if (pid.empty() || pid.size() > 9 || pid.find_first_not_of("0123456789") != std::string::npos) return 0;
  const pid_t number = std::stoi(pid);
  return number != 0 && number != ::getpid() && ::kill(number, 0) != 0 && errno == ESRCH ? number : 0;
}

std::vector<std::string> files_of_ended_writers(const std::string& path) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error))
    if (ended_writer(entry.path().filename()) != 0) files.push_back(entry.path());
  return files;
}

Status append_lines_of(const std::string& file, std::string* text) {
  std::string content;
  SHADOWIB_TRY(read_file(file, &content));
  *text += content;
  if (!text->empty() && text->back() != '\n') *text += '\n';
  return {};
}

Status pack_locked(const std::string& path) {
  std::vector<std::string> files = files_of_ended_writers(path);
  if (files.size() < 2) return {};
  const std::string packed = path + "/" + name_of_host() + ".0" + kSuffix;
  const std::string temporary = path + "/." + name_of_host() + ".packing";
  std::string text;
  if (Status s = append_lines_of(packed, &text); !s.ok() && s.error() != ENOENT) return s;
  // A file that cannot be read stays, such as one of another user.
  std::erase_if(files, [&text](const std::string& file) { return !append_lines_of(file, &text).ok(); });
  ::unlink(temporary.c_str());
  SHADOWIB_TRY(write_new_file(temporary, text));
  if (::rename(temporary.c_str(), packed.c_str()) != 0) return file_error(errno, "write", packed);
  // Cut short here some lines stand twice, which who reads them notices.
  for (const std::string& file : files) ::unlink(file.c_str());
  return {};
}

// *is_whole: false if a file has been packed meanwhile; its lines may be missing.
Status read_lines(const std::string& path, std::string* text, bool* is_whole) {
  std::vector<std::string> names;
  text->clear();
  *is_whole = true;
  const int error = system_files().list(path, &names);
  if (error != 0) return error == ENOENT ? Status() : file_error(error, "read directory", path);
  for (const std::string& name : names) {
    if (!name.ends_with(kSuffix) || name[0] == '.') continue;
    const Status status = append_lines_of(path + "/" + name, text);
    if (status.error() == ENOENT) *is_whole = false;
    // One of another user is never read.
    else if (!status.ok() && status.error() != EACCES)
      return status;
  }
  return {};
}

}  // namespace

HistoryEvent::HistoryEvent(const char* name)
    : json_{{"time", now_text()}, {"event", name}, {"host", name_of_host()}, {"pid", ::getpid()}} {}

double milliseconds(std::int64_t ns) { return std::round(static_cast<double>(ns) / 1e3) / 1e3; }

std::string history_path(const std::string& directory, const std::string& job) {
  return directory + "/history/" + job;
}

Status append_history(const std::string& directory, const std::string& job, const HistoryEvent& event) {
  const std::string path = history_path(directory, job), file = path + "/" + own_file();
  SHADOWIB_TRY(ensure_directory(path));
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return file_error(errno, "open", file);
  const int err = append_line(fd, event.line() + "\n");
  ::close(fd);
  if (err != 0) return file_error(err, "write", file);
  return files_of_ended_writers(path).size() >= kManyFiles ? pack_history(directory, job) : Status();
}

void note_event(const std::string& directory, const std::string& job, const HistoryEvent& event) {
  if (const Status s = append_history(directory, job, event); !s.ok())
    std::fprintf(stderr, "shadowib: the history of job %s lacks this: %s\n", job.c_str(), s.text());
}

Status pack_history(const std::string& directory, const std::string& job) {
  const std::string path = history_path(directory, job), lock = path + "/." + name_of_host() + ".lock";
  std::error_code error;
  if (!fs::is_directory(path, error)) return {};
  const int fd = hold_alive_lock(lock);
  if (fd < 0) return errno == EAGAIN ? Status() : file_error(errno, "lock", lock);
  const Status status = pack_locked(path);
  int owned = fd;
  close_owned_descriptor(owned);
  return status;
}

Status read_history(const std::string& directory, const std::string& job, std::vector<PastEvent>* events,
                    unsigned* torn) {
  events->clear();
  *torn = 0;
  std::string text;
  for (bool is_whole = false; !is_whole;) SHADOWIB_TRY(read_lines(history_path(directory, job), &text, &is_whole));
  std::set<std::string, std::less<>> seen;  // a line that is being packed may stand in two files
  for (std::size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string_view line = std::string_view(text).substr(at, end - at);
    PastEvent event;
    if (seen.contains(line)) continue;
    if (!parse_event(line, &event)) {
      ++*torn;
      continue;
    }
    seen.emplace(line);
    events->push_back(std::move(event));
  }
  if (events->empty())
    return Status::of(Code::kNotFound, 0,
                      "job %.64s has no history in %.200s; `shadowib history` lists the jobs that have", job.c_str(),
                      directory.c_str());
  std::stable_sort(events->begin(), events->end(), [](const PastEvent& a, const PastEvent& b) {
    return a.time_ms != b.time_ms ? a.time_ms < b.time_ms : a.text("time") < b.text("time");
  });
  return {};
}

bool only_started(const std::string& directory, const std::string& job) {
  std::vector<PastEvent> events;
  unsigned torn = 0;
  return read_history(directory, job, &events, &torn).ok() && torn == 0 &&
         std::all_of(events.begin(), events.end(), [](const PastEvent& e) { return e.name == "started"; });
}

std::vector<std::string> jobs_with_history(const std::string& directory) {
  std::vector<std::string> jobs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory + "/history", error))
    if (const std::string name = entry.path().filename(); entry.is_directory(error) && valid_job_name(name))
      jobs.push_back(name);
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

}  // namespace shadowib::cli
