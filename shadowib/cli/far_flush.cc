#include "shadowib/cli/far_flush.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>

#include "hooks/imager/set/manifest.h"
#include "hooks/imager/set/near_images.h"
#include "hooks/job/job_directory.h"
#include "hooks/job/near_directory.h"
#include "hooks/job/phase.h"
#include "hooks/store/files.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/this_host.h"
#include "shadowib/cli/far_sets.h"
#include "shadowib/cli/far_turns.h"
#include "shadowib/cli/history.h"
#include "shadowib/cli/keepers.h"
#include "shadowib/cli/output.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

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
  if (has_packs(manifest))
    return Status::of(Code::kRefused, 0,
                      "set %.150s shares pages with earlier sets (--incremental) and cannot be flushed; take a "
                      "checkpoint without --incremental and flush that",
                      manifest.path.c_str());
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
  SHADOWIB_TRY(fault_point(Phase::kFlush));
  SHADOWIB_TRY(flush_pieces(*place, far_prefix(manifest.job, manifest.set_id), pieces, options, report));
  SHADOWIB_TRY(fault_point(Phase::kFlushed));

  std::vector<FarSet> sets;
  FlushReport list;
  FarSet line = line_of(manifest);
  SHADOWIB_TRY(try_again(
      options, [&] { return read_far_list(*place, directory, manifest.job, settings.spec.text(), &sets); }));
  if (std::find(sets.begin(), sets.end(), line) == sets.end()) {
    add_far_set(line, &sets);
    SHADOWIB_TRY(
        flush_pieces(*place, manifest.job + "/", {far_text(kFarList, encode_far_list(sets))}, options, &list));
  }
  line.far = settings.spec.text();
  return record_in_far(directory, manifest.job, line);
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
    if (!set.status.ok() || manifest.cluster || is_portable(manifest) || manifest.job != job ||
        !settings.is_due(manifest.number))
      continue;
    if (failed.contains(manifest.path) || (newest != nullptr && manifest.number < newest->number)) continue;
    const auto is_it = [&](const FarSet& line) { return line.set_id == manifest.set_id && line.far == far; };
    if (std::none_of(there.begin(), there.end(), is_it)) newest = &manifest;
  }
  return newest == nullptr ? "" : newest->path;
}

// For a flush that has a session of its own. Less good than the program's: all ranks of a program share the weight of
// one session, so the more they are, the more this one weighs beside each.
void nice_session() {
  constexpr int kMostTries = 100, kSessionUs = 100'000;
  constexpr std::string_view kNice = "19";
  const int fd = ::open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  // Users without privileges may change one session in 100 ms, all users of the machine together.
  for (int tries = 0; ::write(fd, kNice.data(), kNice.size()) < 0 && errno == EAGAIN && tries < kMostTries; ++tries)
    ::usleep(kSessionUs);
  ::close(fd);
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

[[noreturn]] void become_flush(const std::string& directory, std::vector<std::string>& words, bool beside_program) {
  if (beside_program) {
    ::setpgid(0, 0);            // ^C is for the program
    ::signal(SIGHUP, SIG_IGN);  // as is the end of its terminal
  } else {
    ::setsid();
  }
  if (::fork() != 0) ::_exit(0);
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  ::close_range(3, ~0u, 0);
  take_lowest_priority();
  if (!beside_program) nice_session();
  words.insert(words.begin(), {"shadowib", "flush", "--dir", directory});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv("/proc/self/exe", arguments.data());
  ::_exit(127);
}

}  // namespace

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

Status start_flush(const std::string& directory, std::vector<std::string> words, bool beside_program) {
  const pid_t child = ::fork();
  if (child < 0) return Status::of(Code::kIo, errno, "cannot fork: %s", std::strerror(errno));
  if (child == 0) become_flush(directory, words, beside_program);
  ::waitpid(child, nullptr, 0);
  return {};
}

}  // namespace shadowib::cli
