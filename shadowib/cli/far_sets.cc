#include "shadowib/cli/far_sets.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "hooks/imager/set/manifest.h"
#include "hooks/imager/set/near_images.h"
#include "hooks/job/job_directory.h"
#include "hooks/job/near_directory.h"
#include "hooks/job/protocol.h"
#include "hooks/store/files.h"
#include "hooks/store/hex_hash.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/this_host.h"
#include "shadowib/cli/history.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/keepers.h"
#include "shadowib/cli/output.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr int kLookUs = 100000;
constexpr std::size_t kStep = 1 << 20;

std::string lease_path(const std::string& set_path) {
  std::error_code error;
  const fs::path set = fs::absolute(set_path, error).lexically_normal();
  return set.parent_path() / (".lease-" + set.filename().string());
}

std::string list_path(const std::string& directory, const std::string& job) {
  return far_path(directory, job) + "/" + kFarList;
}

std::string fetch_lock(const std::string& directory, const std::string& job) {
  return far_path(directory, job) + "/fetch.lock";
}

// The set's directory may have been named through a link.
bool same_file(int fd, const std::string& path) {
  struct stat here {
  }, there{};
  return ::fstat(fd, &here) == 0 && ::lstat(path.c_str(), &there) == 0 && here.st_dev == there.st_dev &&
         here.st_ino == there.st_ino;
}

Status lock_error(const std::string& path) {
  return Status::of(Code::kIo, errno, "cannot lock %.250s: %.60s", path.c_str(), std::strerror(errno));
}

Status record_in_far(const std::string& directory, const std::string& job, const FarSet& set) {
  std::vector<FarSet> sets = sets_in_far(directory, job);
  add_far_set(set, &sets);
  return record_far_sets(directory, job, sets);
}

FarSet line_of(const SetManifest& manifest) {
  FarSet set{.number = manifest.number, .set_id = manifest.set_id, .created = manifest.created};
  set.members = manifest.members.size();
  for (const SetMember& member : manifest.members) set.bytes += member.bytes;
  return set;
}

// Reads images as they are wanted: one that is on another host comes here first, and goes again after it.
class Images {
 public:
  Images(const std::string& directory, const SetManifest& manifest) : directory_(directory), manifest_(manifest) {}
  ~Images() {
    close();
    forget();
  }
  Images(const Images&) = delete;
  Images& operator=(const Images&) = delete;

  // Those that are here come first: images that no keeper serves are sent from their own hosts.
  std::vector<FarPiece> pieces() {
    std::vector<FarPiece> here, elsewhere;
    for (const SetMember& member : manifest_.members) {
      std::string path;
      const bool is_here = find_image(manifest_, member, &path).ok();
      (is_here ? here : elsewhere)
          .push_back({{member.file, member.bytes, member.xxh3},
                      [this, &member](PieceSource* source) { return open(member, source); }});
    }
    here.insert(here.end(), elsewhere.begin(), elsewhere.end());
    return here;
  }

 private:
  Status open(const SetMember& member, PieceSource* source) {
    std::string path;
    close();
    if (fetched_ != &member) forget();
    if (!find_image(manifest_, member, &path).ok()) {
      SHADOWIB_TRY(gather_images(directory_, manifest_, {member.index}, false));
      fetched_ = &member;
      SHADOWIB_TRY(find_image(manifest_, member, &path));
    }
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd_ < 0) return file_error(errno, "open", path);
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
    *source = [this, path](char* to, std::size_t bytes) -> Status {
      for (std::size_t at = 0; at < bytes;) {
        const ssize_t n = ::read(fd_, to + at, bytes - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return file_error(errno, "read", path);
        if (n == 0) return Status::of(Code::kCorrupt, 0, "%.250s is shorter than the manifest says", path.c_str());
        at += static_cast<std::size_t>(n);
      }
      return {};
    };
    return {};
  }

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  void forget() {
    if (fetched_ == nullptr) return;
    const PlacedPiece* placed = manifest_.placement.find(fetched_->file);
    const bool placed_here = placed != nullptr && std::any_of(placed->hosts.begin(), placed->hosts.end(),
                                                              [](auto& h) { return h.id == shadowib::this_host(); });
    if (!placed_here) remove_near_image(manifest_.placement.place, manifest_.job, manifest_.set_id, fetched_->file);
    fetched_ = nullptr;
  }

  const std::string& directory_;
  const SetManifest& manifest_;
  const SetMember* fetched_ = nullptr;
  int fd_ = -1;
};

Status flush_leased(const std::string& directory, const SetManifest& manifest, const FarSettings& settings,
                    FlushReport* report) {
  // In a far place each set is a central one: it needs no placement.
  SetManifest central = manifest;
  central.placement = {};
  const std::string json = encode_manifest(central);
  Images images(directory, manifest);
  std::vector<FarPiece> pieces = images.pieces();
  pieces.push_back(far_text(kManifestSumFile, manifest_sum(json)));
  pieces.push_back(far_text(kManifestFile, json));
  std::uint64_t total = 0;
  for (const SetMember& member : manifest.members) total += member.bytes;

  Progress progress;
  std::uint64_t done = 0;
  progress.step("flushing " + manifest.path + " to " + settings.spec.text());
  FlushOptions options{.bytes_per_s = static_cast<std::uint64_t>(settings.rate)};
  options.moved = [&](std::uint64_t bytes) { progress.update(std::min(done += bytes, total), total); };
  options.again = [](const Status& status) { std::fprintf(stderr, "shadowib: %s; trying again\n", status.text()); };
  const std::unique_ptr<FarPlace> place = settings.open();
  SHADOWIB_TRY(flush_pieces(*place, far_prefix(manifest.job, manifest.set_id), pieces, options, report));

  std::vector<FarSet> sets;
  FlushReport list;
  FarSet line = line_of(manifest);
  SHADOWIB_TRY(read_far_list(*place, directory, manifest.job, settings.spec.text(), &sets));
  if (std::find(sets.begin(), sets.end(), line) == sets.end()) {
    add_far_set(line, &sets);
    SHADOWIB_TRY(
        flush_pieces(*place, manifest.job + "/", {far_text(kFarList, encode_far_list(sets))}, options, &list));
  }
  line.far = settings.spec.text();
  return record_in_far(directory, manifest.job, line);
}

// The settings by which a lost set is looked for: as chosen, else where the set is known to be.
Status settings_for(const FarOptions& options, const std::string& directory, const std::string& job,
                    const std::string& set_id, std::uint32_t number, FarSettings* settings) {
  SHADOWIB_TRY(choose_far(options, directory, job, settings));
  if (!options.far.empty()) return {};
  const std::vector<FarSet> known = sets_in_far(directory, job);
  const FarSet* line = set_id.empty() ? find_far_set(known, number) : nullptr;
  for (const FarSet& set : known)
    if (!set_id.empty() && set.set_id == set_id) line = &set;
  if (line == nullptr) return {};
  SHADOWIB_TRY(parse_far(line->far, &settings->spec));
  settings->known = true;
  return {};
}

Status write_all(int fd, std::string_view part, const std::string& path) {
  while (!part.empty()) {
    const ssize_t n = ::write(fd, part.data(), part.size());
    if (n < 0 && errno != EINTR) return file_error(errno, "write", path);
    if (n > 0) part.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

// Into a new file, checked and synced.
Status fetch_file(FarPlace& place, const std::string& name, const Piece& piece, const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return file_error(errno, "create", path);
  Status status = get_piece(place, name, piece, [&](std::string_view part) { return write_all(fd, part, path); });
  if (status.ok() && ::fsync(fd) != 0) status = file_error(errno, "sync", path);
  ::close(fd);
  if (!status.ok()) ::unlink(path.c_str());
  return status;
}

Status stage_from_far(FarPlace& place, const SetManifest& manifest, Store& store, const std::string& staging,
                      std::string* path) {
  Progress progress;
  const std::string prefix = far_prefix(manifest.job, manifest.set_id);
  progress.step("fetching " + set_name(manifest.job, manifest.number) + " from the far place");
  for (const SetMember& member : manifest.members)
    SHADOWIB_TRY(fetch_file(place, prefix + member.file, {member.file, member.bytes, member.xxh3},
                            staging + "/" + member.file));
  return commit_set(store, staging, manifest, path);
}

bool is_good_file(const std::string& path, const SetMember& member) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  HexHash hash;
  std::vector<char> buffer(kStep);
  std::uint64_t bytes = 0;
  for (ssize_t n = 0; (n = ::read(fd, buffer.data(), buffer.size())) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    bytes += static_cast<std::uint64_t>(n);
    hash.add({buffer.data(), static_cast<std::size_t>(n)});
  }
  ::close(fd);
  return bytes == member.bytes && hash.hex() == member.xxh3;
}

Status fetch_image(FarPlace& place, const std::string& directory, const SetManifest& manifest,
                   const SetMember& member) {
  const std::string name = far_prefix(manifest.job, manifest.set_id) + member.file;
  const Piece piece{member.file, member.bytes, member.xxh3};
  const fs::path set(manifest.path);
  const std::string part = set.parent_path() / staging_name(manifest.job, manifest.number);
  SHADOWIB_TRY(fetch_file(place, name, piece, part));
  Status status;
  if (lies_near(manifest, member)) {
    const int fd = ::open(part.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) status = file_error(errno, "open", part);
    if (fd >= 0)
      status = write_piece({manifest.placement.place, manifest.job, manifest.set_id}, directory, piece,
                           [&](char* to, std::size_t bytes) -> Status {
                             for (std::size_t at = 0; at < bytes;) {
                               const ssize_t n = ::read(fd, to + at, bytes - at);
                               if (n <= 0 && errno != EINTR) return file_error(n == 0 ? EIO : errno, "read", part);
                               if (n > 0) at += static_cast<std::size_t>(n);
                             }
                             return {};
                           });
    if (fd >= 0) ::close(fd);
    ::unlink(part.c_str());
    return status;
  }
  const std::string path = set / member.file;
  if (::rename(part.c_str(), path.c_str()) != 0) {
    status = file_error(errno, "write", path);
    ::unlink(part.c_str());
    return status;
  }
  return sync_path(set);
}

// "": none. A set that was removed meanwhile is none.
std::string newest_due(const std::string& directory, const std::string& job, const FarSettings& settings,
                       const std::set<std::string>& failed) {
  std::vector<ListedSet> sets;
  if (!list_sets(directory, &sets).ok()) return {};
  const std::vector<FarSet> there = sets_in_far(directory, job);
  const std::string far = settings.spec.text();
  const SetManifest* newest = nullptr;
  for (const ListedSet& set : sets) {
    const SetManifest& manifest = set.manifest;
    if (!set.status.ok() || manifest.job != job || !settings.is_due(manifest.number)) continue;
    if (failed.contains(manifest.path) || (newest != nullptr && manifest.number < newest->number)) continue;
    const auto is_it = [&](const FarSet& line) { return line.set_id == manifest.set_id && line.far == far; };
    if (std::none_of(there.begin(), there.end(), is_it)) newest = &manifest;
  }
  return newest == nullptr ? "" : newest->path;
}

// Beside a program that computes and waits by polling.
void take_lowest_priority() {
  constexpr int kIoIdle = 3 << 13;
  sched_param none{};
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof(all));
  (void)::setpriority(PRIO_PROCESS, 0, 19);
  (void)::sched_setscheduler(0, SCHED_BATCH, &none);
  (void)::syscall(SYS_ioprio_set, 1, 0, kIoIdle);
  (void)::sched_setaffinity(0, sizeof(all), &all);  // a rank that has started this may be bound
}

[[noreturn]] void become_flush(const std::string& directory, std::vector<std::string>& words) {
  ::setsid();
  if (::fork() != 0) ::_exit(0);
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  ::close_range(3, ~0u, 0);
  take_lowest_priority();
  words.insert(words.begin(), {"shadowib", "flush", "--dir", directory});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv("/proc/self/exe", arguments.data());
  ::_exit(127);
}

// Several commands of one restart share DIR: the first one fetches.
class FetchTurn {
 public:
  ~FetchTurn() {
    if (fd_ >= 0) release_alive_lock(fd_);
  }
  Status take(const std::string& directory, const std::string& job) {
    const std::string path = fetch_lock(directory, job);
    while ((fd_ = hold_alive_lock(path)) < 0) {
      if (errno != EAGAIN) return lock_error(path);
      ::usleep(kLookUs);
    }
    return {};
  }

 private:
  int fd_ = -1;
};

}  // namespace

SetLease::~SetLease() {
  if (fd_ < 0) return;
  ::unlink(path_.c_str());
  release_alive_lock(fd_);
}

Status SetLease::take(const std::string& set_path) {
  path_ = lease_path(set_path);
  for (;;) {
    fd_ = hold_alive_lock(path_);
    if (fd_ < 0 && errno == EAGAIN)
      return Status::of(Code::kBusy, EAGAIN, "set %.250s is being flushed or removed; try again at the end of that",
                        set_path.c_str());
    if (fd_ < 0) return lock_error(path_);
    if (same_file(fd_, path_)) return {};
    release_alive_lock(fd_);  // its holder has just removed it
  }
}

FlushTurn::~FlushTurn() {
  if (fd_ >= 0) release_alive_lock(fd_);
}

Status FlushTurn::take(const std::string& directory, const std::string& job, bool wait) {
  const std::string path = far_path(directory, job) + "/flush.lock";
  while ((fd_ = hold_alive_lock(path)) < 0) {
    if (errno != EAGAIN) return lock_error(path);
    if (!wait)
      return Status::of(Code::kBusy, EAGAIN,
                        "a flush or gc of job %.64s in a far place is under way; wait for its end (flush --wait)",
                        job.c_str());
    ::usleep(kLookUs);
  }
  return {};
}

bool FlushTurn::taken(const std::string& directory, const std::string& job) {
  return is_alive(far_path(directory, job) + "/flush.lock");
}

Status flush_set(const std::string& directory, const std::string& set_path, const FarSettings& settings,
                 FlushReport* report) {
  SetLease lease;
  SetManifest manifest;
  SHADOWIB_TRY(lease.take(set_path));
  SHADOWIB_TRY(read_manifest(set_path, &manifest));
  const std::int64_t began_ns = monotonic_ns();
  const Status status = flush_leased(directory, manifest, settings, report);
  HistoryEvent event(status.ok() ? "flush" : "flush_failed");
  event.add("set", set_name(manifest.job, manifest.number)).add("far", settings.spec.text());
  if (status.ok())
    event.add("bytes", report->bytes).add("took_ms", milliseconds(monotonic_ns() - began_ns));
  else
    event.add("code", static_cast<int>(status.code())).add("error", status.text());
  note_event(directory, manifest.job, event);
  return status;
}

Status flush_due(const std::string& directory, const std::string& job, const FarSettings& settings, bool wait) {
  std::set<std::string> failed;
  std::string path;
  // A set that is committed while this one has the turn is seen by the look after it.
  while (!(path = newest_due(directory, job, settings, failed)).empty()) {
    FlushTurn turn;
    const Status taken = turn.take(directory, job, wait);
    if (taken.code() == Code::kBusy) return {};
    SHADOWIB_TRY(taken);
    while (!(path = newest_due(directory, job, settings, failed)).empty()) {
      FlushReport report;
      const Status status = flush_set(directory, path, settings, &report);
      if (status.ok()) continue;
      failed.insert(path);
      std::error_code error;
      if (status.code() == Code::kBusy || !fs::exists(path, error)) continue;  // it is being removed
      return status;
    }
  }
  return {};
}

Status start_flush(const std::string& directory, std::vector<std::string> words) {
  const pid_t child = ::fork();
  if (child < 0) return Status::of(Code::kIo, errno, "cannot fork: %s", std::strerror(errno));
  if (child == 0) become_flush(directory, words);
  ::waitpid(child, nullptr, 0);
  return {};
}

std::vector<FarSet> sets_in_far(const std::string& directory, const std::string& job) {
  std::string text;
  std::vector<FarSet> sets;
  const std::string path = list_path(directory, job);
  if (read_file(path, &text).ok()) (void)decode_far_list(text, path, &sets).ok();
  return sets;
}

Status read_far_list(FarPlace& place, const std::string& directory, const std::string& job, const std::string& far,
                     std::vector<FarSet>* sets) {
  std::string text;
  const std::string name = job + "/" + kFarList;
  Status status = get_text(place, name, &text);
  sets->clear();
  if (status.code() == Code::kNotFound) return {};
  if (status.ok()) status = decode_far_list(text, name, sets);
  if (status.code() != Code::kCorrupt) return status;
  std::fprintf(stderr, "shadowib: %s; what this directory knows of it counts\n", status.text());
  for (FarSet set : sets_in_far(directory, job)) {
    if (set.far != far) continue;
    set.far.clear();
    add_far_set(set, sets);
  }
  return {};
}

Status far_manifest(FarPlace& place, const std::string& job, const std::string& set_id, SetManifest* manifest) {
  std::string json, sum;
  const std::string prefix = far_prefix(job, set_id);
  SHADOWIB_TRY(get_text(place, prefix + kManifestFile, &json));
  SHADOWIB_TRY(get_text(place, prefix + kManifestSumFile, &sum));
  SHADOWIB_TRY(decode_manifest(json, sum, "far:" + prefix, manifest));
  if (manifest->job == job && manifest->set_id == set_id) return {};
  return Status::of(Code::kCorrupt, 0, "far: %.200s is the manifest of another set", prefix.c_str());
}

std::vector<std::string> jobs_in_far(const std::string& directory) {
  std::vector<std::string> jobs;
  std::error_code error;
  for (fs::directory_iterator job(directory + "/far", error), end; !error && job != end; job.increment(error))
    if (!sets_in_far(directory, job->path().filename()).empty()) jobs.push_back(job->path().filename());
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

Status record_far_sets(const std::string& directory, const std::string& job, const std::vector<FarSet>& sets) {
  SHADOWIB_TRY(ensure_directory(far_path(directory, job)));
  return place_file(list_path(directory, job), encode_far_list(sets), false);
}

Status settings_of(const FarSet& set, const std::string& directory, const std::string& job, FarSettings* settings) {
  SHADOWIB_TRY(choose_far({}, directory, job, settings));
  settings->known = true;
  return parse_far(set.far, &settings->spec);
}

bool is_in_far(const std::string& directory, const SetManifest& manifest) {
  const std::vector<FarSet> sets = sets_in_far(directory, manifest.job);
  return std::any_of(sets.begin(), sets.end(), [&](const FarSet& set) { return set.set_id == manifest.set_id; });
}

bool fetch_running(const std::string& directory, const std::string& job) {
  return is_alive(fetch_lock(directory, job));
}

Status fetch_set(const std::string& directory, const std::string& job, std::uint32_t number,
                 const FarOptions& options, std::string* path) {
  FarSettings settings;
  SHADOWIB_TRY(settings_for(options, directory, job, "", number, &settings));
  const std::string wanted = number == 0 ? "a set of job " + job : set_name(job, number);
  if (!settings.known)
    return Status::of(Code::kNotFound, ESRCH,
                      "there is no %.80s in %.150s; name a far place with --far if one has it", wanted.c_str(),
                      directory.c_str());
  const std::unique_ptr<FarPlace> place = settings.open();
  SHADOWIB_TRY(place->check());
  FetchTurn turn;
  std::error_code error;
  SHADOWIB_TRY(turn.take(directory, job));
  std::vector<FarSet> sets;
  SHADOWIB_TRY(read_far_list(*place, directory, job, settings.spec.text(), &sets));
  const FarSet* line = find_far_set(sets, number);
  if (line == nullptr)
    return Status::of(Code::kNotFound, ENOENT, "there is no %.80s in %.100s, and none in %.120s", wanted.c_str(),
                      directory.c_str(), settings.spec.text().c_str());
  *path = sets_path(directory) + "/" + set_name(job, line->number);
  SetManifest manifest;
  if (fs::exists(*path, error)) return {};  // another command of this restart has fetched it
  SHADOWIB_TRY(far_manifest(*place, job, line->set_id, &manifest));
  const std::unique_ptr<Store> store = open_directory_store(directory);
  std::string staging;
  std::uint32_t next = 0;
  SHADOWIB_TRY(store->stage(job, &staging, &next));
  if (const Status status = stage_from_far(*place, manifest, *store, staging, path); !status.ok()) {
    (void)store->discard(staging).ok();
    return status;
  }
  FarSet known = *line;
  known.far = settings.spec.text();
  std::fprintf(stderr, "shadowib: fetched %s from %s\n", path->c_str(), known.far.c_str());
  return record_in_far(directory, job, known);
}

Status fetch_images(const std::string& directory, const SetManifest& manifest, const std::set<std::uint32_t>& members,
                    const FarOptions& options, std::size_t* fetched) {
  FarSettings settings;
  *fetched = 0;
  SHADOWIB_TRY(settings_for(options, directory, manifest.job, manifest.set_id, manifest.number, &settings));
  if (!settings.known || (options.far.empty() && !is_in_far(directory, manifest))) return {};
  const std::unique_ptr<FarPlace> place = settings.open();
  for (const SetMember& member : manifest.members) {
    std::string path;
    if (!members.empty() && !members.contains(member.index)) continue;
    if (find_image(manifest, member, &path).ok() && is_good_file(path, member)) continue;
    if (*fetched == 0) SHADOWIB_TRY(place->check());
    SHADOWIB_TRY(fetch_image(*place, directory, manifest, member));
    std::fprintf(stderr, "shadowib: fetched %s from %s\n", member.file.c_str(), settings.spec.text().c_str());
    ++*fetched;
  }
  return {};
}

}  // namespace shadowib::cli
