// How a process finds its job and becomes a member of it.
#include "hooks/agent/join.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "hooks/agent/own_cluster.h"
#include "hooks/job/current_job.h"
#include "hooks/job/member_record.h"
#include "hooks/raw/tasks.h"
#include "hooks/threads/fault.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/shared_names.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

constexpr std::int64_t kJoinWaitNs = 20'000'000'000;
constexpr std::int64_t kRestartWaitNs = 600'000'000'000;
constexpr std::uint32_t kMaxMembers = 100000;

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] != '\0' ? value : nullptr;
}

template <std::size_t N>
Status copy(char (&to)[N], const std::string& from, const char* what) {
  if (from.size() >= N) return Status::of(Code::kUsage, ENAMETOOLONG, "%s is longer than %zu bytes", what, N - 1);
  std::memcpy(to, from.c_str(), from.size() + 1);
  return {};
}

std::string read_link(const char* path) {
  char text[4096];
  ssize_t n = ::readlink(path, text, sizeof(text) - 1);
  return n > 0 ? std::string(text, static_cast<std::size_t>(n)) : std::string();
}

bool write_all(int fd, const void* data, std::size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t n = ::write(fd, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

Status io_error(const char* what, const std::string& path) {
  return Status::of(Code::kIo, errno, "cannot %s %.200s: %.60s", what, path.c_str(), std::strerror(errno));
}

// Reads at most `capacity` bytes of a file to `to` and nowhere else; *size is the file's. kNotFound if absent.
Status read_bytes(const std::string& path, void* to, std::size_t capacity, std::size_t* size) {
  revalidate_parent(path);
  UnownedDescriptors unowned;
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0 && errno == ENOENT) return Status::of(Code::kNotFound, ENOENT, "%.200s does not exist", path.c_str());
  if (fd < 0) return io_error("open", path);
  struct stat st {};
  ssize_t n = ::fstat(fd, &st) == 0 ? ::read(fd, to, capacity) : -1;
  Status status = n >= 0 ? Status() : io_error("read", path);
  raw_close(fd);
  if (n >= 0) *size = static_cast<std::size_t>(static_cast<std::size_t>(n) < capacity ? n : st.st_size);
  return status;
}

// Reads a small file; kNotFound if absent.
Status read_small(const std::string& path, std::string* text) {
  char buffer[256];
  std::size_t size = 0;
  SHADOWIB_TRY(read_bytes(path, buffer, sizeof(buffer), &size));
  text->assign(buffer, std::min(size, sizeof(buffer)));
  return {};
}

// Puts a whole file in place: replacing, or only if there is none (kBusy otherwise). Mode 0600.
Status place_small(const std::string& path, std::string_view bytes, bool replace) {
  std::string temporary = path + "." + random_hex(8);
  begin_unowned_descriptors();
  int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool written = fd >= 0 && write_all(fd, bytes.data(), bytes.size());
  Status status = written ? Status() : io_error(fd < 0 ? "create" : "write", temporary);
  if (fd >= 0) raw_close(fd);
  end_unowned_descriptors();
  if (fd < 0) return status;
  if (written) {
    int rc = replace ? ::rename(temporary.c_str(), path.c_str()) : ::link(temporary.c_str(), path.c_str());
    if (rc != 0)
      status =
          errno == EEXIST ? Status::of(Code::kBusy, EEXIST, "%.200s exists", path.c_str()) : io_error("place", path);
  }
  ::unlink(temporary.c_str());
  return status;
}

// Held while the epoch is chosen and an index taken, so that members that start together agree.
Status lock_joining(const JobInfo& info, int* lock) {
  const std::string path = job_paths(info.directory, info.job).joining;
  const std::int64_t deadline = monotonic_ns() + kJoinWaitNs;
  while ((*lock = hold_alive_lock(path)) < 0) {
    if (errno != EAGAIN) return io_error("lock", path);
    if (monotonic_ns() > deadline)
      return Status::of(Code::kBusy, EAGAIN,
                        "another process has been joining job %.80s for too long (%.200s is locked)", info.job,
                        path.c_str());
    raw_sleep_ms(1);
  }
  return {};
}

Status being_restarted(const JobInfo& info) {
  return Status::of(Code::kBusy, EAGAIN, "job %.80s is being restarted; its new process gave up waiting for that",
                    info.job);
}

// The job's epoch. A job name that was used before, and of which nobody lives, begins afresh: what its dead members
// left in the exchange must not be taken for the new ones'. *waits: a restart has come that will replace it.
Status choose_epoch(JobInfo* info, Exchange* exchange, bool* waits) {
  const JobPaths paths = job_paths(info->directory, info->job);
  const std::string& path = paths.epoch;
  std::string epoch;
  Status status = read_epoch(*info, &epoch);
  if (status.code() == Code::kNotFound) {
    status = place_small(path, new_epoch(0), false);
    if (!status.ok() && status.code() != Code::kBusy) return status;
    status = read_epoch(*info, &epoch);
  }
  SHADOWIB_TRY(status);
  std::vector<std::string> members;
  SHADOWIB_TRY(exchange->list(epoch + "/member", &members));
  bool alive = false;
  for (const auto& member : members) alive = alive || is_alive(alive_path(info->directory, info->job, epoch, member));
  // Members that a restart is bringing back are not there yet, and those it has brought back may have ended.
  if (!alive) {
    if (!is_alive(paths.restart)) {
      if (!members.empty()) {
        epoch = new_epoch(0);
        SHADOWIB_TRY(place_small(path, epoch, true));
      }
    } else if (is_alive(paths.renewing)) {  // taken before the other (RestartPlace::take_alone)
      *waits = true;
      return being_restarted(*info);
    }
  }
  return take_epoch(epoch, info);
}

// `run` and `supervise` have looked before, but not everybody is started by them.
Status check_processes() {
  const char* processes = environment("SHADOWIB_PROCESSES");
  if (processes == nullptr) return {};
  const std::string_view digits = processes;
  constexpr unsigned long kMost = 100'000;  // as `run --processes`
  const unsigned long number =
      digits.find_first_not_of("0123456789") == digits.npos ? std::strtoul(processes, nullptr, 10) : 0;
  if (number > 0 && number <= kMost) return {};
  return Status::of(Code::kUsage, EINVAL, "SHADOWIB_PROCESSES='%.40s' is no number of processes from 1 to %lu",
                    processes, kMost);
}

}  // namespace

Status read_epoch(const JobInfo& info, std::string* epoch) {
  SHADOWIB_TRY(read_small(job_paths(info.directory, info.job).epoch, epoch));
  while (!epoch->empty() && epoch->back() == '\n') epoch->pop_back();
  return {};
}

// A job that was restarted is of that generation for those who join it later, too: its ids are translated.
Status take_epoch(const std::string& epoch, JobInfo* info) {
  if (epoch[0] != 'g')
    return Status::of(Code::kCorrupt, 0,
                      "%.200s holds '%.60s', which is no epoch; remove it while the job is not running",
                      job_paths(info->directory, info->job).epoch.c_str(), epoch.c_str());
  info->generation = static_cast<std::uint32_t>(std::strtoul(epoch.c_str() + 1, nullptr, 10));
  return copy(info->epoch, epoch, "the job's epoch");
}

Status fill_job_info(JobInfo* info) {
  *info = {};
  const std::string exe = read_link("/proc/self/exe");
  const char* job = environment("SHADOWIB_JOB");
  const std::string name = job != nullptr ? job : default_job_name(exe, raw_getpid());
  if (!valid_job_name(name))
    return Status::of(Code::kUsage, EINVAL, "SHADOWIB_JOB='%.100s' is no job name: %s", name.c_str(), kJobNameRule);
  SHADOWIB_TRY(copy(info->job, name, "the job's name (SHADOWIB_JOB)"));
  std::string directory = environment("SHADOWIB_DIR") ? environment("SHADOWIB_DIR") : "shadowib-ckpt";
  if (directory[0] != '/') directory = read_link("/proc/self/cwd") + "/" + directory;
  SHADOWIB_TRY(copy(info->directory, directory, "the checkpoint directory (SHADOWIB_DIR)"));
  std::string exchange =
      environment("SHADOWIB_EXCHANGE") ? environment("SHADOWIB_EXCHANGE") : default_exchange(directory, name);
  SHADOWIB_TRY(copy(info->exchange, exchange, "the exchange (SHADOWIB_EXCHANGE)"));
  SHADOWIB_TRY(check_processes());
  return copy(info->backend, environment("SHADOWIB_BACKEND") ? environment("SHADOWIB_BACKEND") : "auto",
              "SHADOWIB_BACKEND");
}

std::uint64_t latest_request(Exchange* exchange, const char* epoch, const char* name) {
  std::uint64_t number = 0;
  look_up_requests(exchange, epoch, {{name, &number}});
  return number;
}

void look_up_requests(Exchange* exchange, const char* epoch, std::initializer_list<RequestNumber> requests) {
  std::vector<std::string> keys, values;
  std::vector<bool> found;
  for (const RequestNumber& request : requests) {
    *request.number = 0;
    keys.push_back(std::string(epoch) + "/control/" + request.name);
  }
  if (!exchange->lookup(keys, &values, &found).ok()) return;
  std::size_t i = 0;
  for (const RequestNumber& request : requests) {
    Fields fields;
    if (found[i] && decode_fields(values[i], &fields)) *request.number = field_number(fields, "n");
    ++i;
  }
}

namespace {

// *waits: not now, a restart is making the job's new epoch.
Status try_to_enter(JobInfo* info, Exchange** exchange, int* alive_lock, std::uint64_t* last_request,
                    std::uint64_t* last_status, bool* waits) {
  int joining = -1;
  SHADOWIB_TRY(lock_joining(*info, &joining));  // also makes the directories
  // Before the epoch is read: a restart that begins after this look waits until nobody is joining, and sees us then,
  // or we see it.
  *waits = is_alive(job_paths(info->directory, info->job).renewing);
  std::unique_ptr<Exchange> opened;
  Status status = *waits ? being_restarted(*info) : Exchange::open(info->exchange, true, &opened);
  if (status.ok()) status = choose_epoch(info, opened.get(), waits);
  std::vector<std::string> members;
  if (status.ok()) {
    look_up_requests(opened.get(), info->epoch, {{"checkpoint", last_request}, {"status", last_status}});
    status = opened->list(std::string(info->epoch) + "/member", &members);
  }
  if (status.ok() && is_in_cluster()) status = enter_cluster(*info, *opened, members, waits);
  std::size_t first = members.size();
  if (std::string reserved; status.ok()) {
    bool found = false;
    status = opened->get(reserved_members_key(info->epoch), &reserved, &found);
    if (found) first = std::max<std::size_t>(first, std::strtoul(reserved.c_str(), nullptr, 10));
  }
  // First the lock, then the key: a lock without a key is somebody who is joining, a key without a lock is dead.
  for (std::uint32_t index = static_cast<std::uint32_t>(first); status.ok(); ++index) {
    const std::string path = alive_path(info->directory, info->job, info->epoch, std::to_string(index));
    if ((*alive_lock = hold_alive_lock(path)) < 0 && errno != EAGAIN) status = io_error("lock", path);
    if (*alive_lock < 0) continue;
    info->member = index;
    status = opened->claim(member_key(info->epoch, index), describe_member());
    if (status.ok()) {
      record_member(path);
      break;
    }
    close_owned_descriptor(*alive_lock);
    if (status.code() == Code::kBusy && index < kMaxMembers) status = {};
  }
  close_owned_descriptor(joining);
  if (status.ok()) *exchange = opened.release();
  return status;
}

}  // namespace

Status enter_job(JobInfo* info, Exchange** exchange, int* alive_lock, std::uint64_t* last_request,
                 std::uint64_t* last_status) {
  // Verifying a large set takes a while, and who comes meanwhile belongs to the job as it is afterwards.
  const std::int64_t deadline = monotonic_ns() + kRestartWaitNs;
  for (;;) {
    bool waits = false;
    Status status = try_to_enter(info, exchange, alive_lock, last_request, last_status, &waits);
    if (!waits || monotonic_ns() > deadline) return status;
    raw_sleep_ms(20);
  }
}

std::string describe_member() {
  Fields fields;
  char text[1024];
  fields["pid"] = std::to_string(raw_getpid());
  if (std::uint64_t start = 0; task_stat(0, 22, &start)) fields["starttime"] = std::to_string(start);
  if (read_task_file(0, "comm", text, sizeof(text)) > 0) fields["comm"] = std::string(text, std::strcspn(text, "\n"));
  utsname system{};
  ::uname(&system);
  fields["host"] = system.nodename;
  fields["exe"] = read_link("/proc/self/exe");
  fields["version"] = SHADOWIB_VERSION;
  fields["meets"] = std::to_string(kMeetingVersion);
  if (const char* processes = environment("SHADOWIB_PROCESSES")) fields["expects"] = processes;
  if (is_in_cluster()) {
    fields["cluster"] = own_cluster().name;
    fields["cluster_index"] = std::to_string(own_cluster().running.index);
  }
  return encode_fields(fields);
}

void record_member(const std::string& lock_path) {
  std::uint64_t start = 0;
  (void)task_stat(0, 22, &start);
  utsname system{};
  ::uname(&system);
  record_joined(lock_path, raw_getpid(), start, system.nodename, own_cluster().name);
}

Status read_job_key(std::uint8_t key[32]) {
  constexpr std::size_t kBytes = 32;
  const std::string path = job_paths(g_job.info.directory, g_job.info.job).key;
  std::size_t size = kBytes;
  Status status = read_bytes(path, key, kBytes, &size);
  if (status.code() == Code::kNotFound) {
    if (::getrandom(key, kBytes, 0) != kBytes) return io_error("draw random bytes for", path);
    size = kBytes;
    status = place_small(path, {reinterpret_cast<const char*>(key), kBytes}, false);
    if (status.code() == Code::kBusy) status = read_bytes(path, key, kBytes, &size);
  }
  SHADOWIB_TRY(status);
  if (size != kBytes)
    return Status::of(Code::kCorrupt, 0,
                      "%.200s holds %zu bytes instead of 32; remove it while the job is not running", path.c_str(),
                      size);
  return {};
}

}  // namespace shadowib
