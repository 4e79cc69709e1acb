#include "shadowib/cli/restart_place.h"

#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <vector>

#include "hooks/job/protocol.h"
#include "hooks/store/files.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"
#include "shadowib/cli/clusters.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/portable_job.h"
#include "shadowib/cli/sharing_lock.h"
#include "shadowib/cli/workers.h"

namespace shadowib::cli {
namespace {

constexpr int kStepMs = 200;
constexpr std::int64_t kEndingNs = 3'000'000'000;

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Whether the job is alive, and not just coming to its end: a launcher that has killed its ranks does not wait until
// the kernel has taken all of them down, and a script restarts the job as soon as the launcher has ended.
bool stays_alive(const std::string& directory, const std::string& job, std::string* who) {
  if (!job_alive(directory, job, who)) return false;
  Progress progress;
  progress.step("waiting for the end of " + *who);
  for (const Deadline deadline = Deadline::in_ns(kEndingNs); job_alive(directory, job, who); ::usleep(20000))
    if (deadline.has_passed()) return true;
  return false;
}

}  // namespace

RestartPlace::~RestartPlace() {
  for (const int fd : {share_lock_, restart_lock_, renewing_lock_}) close_owned_descriptor(fd);  // as they were taken
}

std::string RestartPlace::share_path(const std::string& name) const {
  return alive_path(directory_, job_, epoch_, name);
}

Status RestartPlace::take_alone(const SetManifest& manifest) {
  job_ = manifest.job;
  for (const SetMember& m : manifest.members) all_.insert(m.index);
  const std::string alive = job_paths(directory_, job_).alive;
  SHADOWIB_TRY(ensure_directory(alive));
  // Locks of members are refused first: they are what a user has to act on.
  std::string who;
  if (stays_alive(directory_, job_, &who))
    return Status::of(Code::kBusy, 0, "job %.64s is alive (%.100s); end it first, or use checkpoint --kill",
                      job_.c_str(), who.c_str());
  // In this order: who joins sees by the first whether the second is of a restart that has renewed the job already.
  renewing_lock_ = hold_alive_lock(alive + "/renewing");
  if (renewing_lock_ >= 0) restart_lock_ = hold_alive_lock(alive + "/restart");
  if (restart_lock_ >= 0) {
    // Somebody may have joined between the look and the locks; nobody can any more.
    if (!members_alive(directory_, job_, &who)) return note_lock_holder(restart_lock_, alive + "/restart");
    return Status::of(Code::kBusy, 0, "job %.64s is alive (%.100s); end it first, or use checkpoint --kill",
                      job_.c_str(), who.c_str());
  }
  if (errno == EWOULDBLOCK || errno == EAGAIN)
    return Status::of(Code::kBusy, errno, "job %.64s is just being restarted by another command", job_.c_str());
  return file_error(errno, "lock", alive + (renewing_lock_ < 0 ? "/renewing" : "/restart"));
}

void RestartPlace::choose(const SetManifest& manifest) {
  epoch_ = new_epoch(manifest.generation + 1);
  federation_ = manifest.federation;
}

Status RestartPlace::begin() {
  forget_portable_job(directory_, job_);  // an earlier one of that name may have been one of portable programs
  SHADOWIB_TRY(renew_job(directory_, job_, exchange_uri_, all_, epoch_));
  if (federation_.clusters.empty()) {
    SHADOWIB_TRY(forget_clusters(directory_, job_));
  } else {
    SHADOWIB_TRY(open_exchange());
    SHADOWIB_TRY(renew_clusters(directory_, job_, *exchange_, epoch_, federation_));
  }
  if (!workers_.empty()) {
    SHADOWIB_TRY(open_exchange());
    SHADOWIB_TRY(exchange_->publish(epoch_ + "/" + kWorkersKey, workers_));
  }
  release_alive_lock(renewing_lock_);
  renewing_lock_ = -1;
  return {};
}

Status RestartPlace::open_exchange() {
  return exchange_ != nullptr ? Status() : Exchange::open(exchange_uri_, false, &exchange_);
}

Status RestartPlace::joinable(const SetManifest& manifest, const std::string& files, bool* can) const {
  *can = false;
  const JobPaths paths = job_paths(directory_, manifest.job);
  Fields begun;
  if (!decode_fields(read_text(paths.top + "/share"), &begun) || begun["set"] != manifest.set_id) return {};
  if (begun["epoch"] != read_text(paths.epoch) || !is_alive(paths.alive + "/restart")) return {};
  std::unique_ptr<Exchange> exchange;
  SHADOWIB_TRY(Exchange::open(exchange_uri_, false, &exchange));
  std::string why;
  bool aborted = false;
  SHADOWIB_TRY(exchange->get(begun["epoch"] + "/restart/abort", &why, &aborted));
  if (aborted)
    return Status::of(Code::kBusy, 0, "a restart of the set is just giving up (%.200s); try again", why.c_str());
  if (begun["files"] != files)
    return Status::of(Code::kUsage, 0,
                      "another command of this restart has --files %.20s, this one --files %.20s; give all the same",
                      begun["files"].c_str(), files.c_str());
  *can = true;
  return {};
}

Status RestartPlace::share(const SetManifest& manifest, const std::set<std::uint32_t>& members,
                           const std::string& files) {
  job_ = manifest.job;
  for (const SetMember& m : manifest.members) all_.insert(m.index);
  const JobPaths paths = job_paths(directory_, job_);
  SHADOWIB_TRY(ensure_directory(paths.top));
  SharingLock lock;
  SHADOWIB_TRY(lock.take(paths.top + "/sharing"));
  bool join = false;
  SHADOWIB_TRY(joinable(manifest, files, &join));
  if (join) {
    epoch_ = read_text(paths.epoch);
  } else {
    SHADOWIB_TRY(take_alone(manifest));
    choose(manifest);
    SHADOWIB_TRY(begin());
    ::unlink((paths.top + "/share").c_str());
    const std::string begun = encode_fields({{"epoch", epoch_}, {"set", manifest.set_id}, {"files", files}});
    SHADOWIB_TRY(write_new_file(paths.top + "/share", begun));
  }
  SHADOWIB_TRY(open_exchange());
  return claim(members);
}

Status RestartPlace::claim(const std::set<std::uint32_t>& members) {
  // Nobody else is here (sharing), so that to look first is enough, and a refusal leaves nothing half claimed.
  std::vector<std::string> started;
  SHADOWIB_TRY(exchange_->list(key("started"), &started));
  for (const std::string& name : started)
    if (members.contains(static_cast<std::uint32_t>(std::stoul(name))))
      return Status::of(Code::kBusy, EEXIST, "member %.20s is being restarted by another command already",
                        name.c_str());
  const std::string name = "share" + std::to_string(*members.begin());
  if ((share_lock_ = hold_alive_lock(share_path(name))) < 0) return file_error(errno, "lock", share_path(name));
  SHADOWIB_TRY(note_lock_holder(share_lock_, share_path(name)));
  for (const std::uint32_t member : members)
    SHADOWIB_TRY(exchange_->claim(key("started/" + std::to_string(member)), name));
  return {};
}

Status RestartPlace::lost(std::string* text) {
  text->clear();
  std::vector<std::string> started, done;
  SHADOWIB_TRY(exchange_->list(key("started"), &started));
  SHADOWIB_TRY(exchange_->list(key("done"), &done));
  all_run_ = done.size() >= all_.size();
  for (const std::string& member : started) {
    std::string name;
    bool found = false;
    if (std::find(done.begin(), done.end(), member) != done.end()) continue;
    SHADOWIB_TRY(exchange_->get(key("started/" + member), &name, &found));
    if (found && is_alive(share_path(name))) continue;
    // It may have come to its end in between.
    SHADOWIB_TRY(exchange_->get(key("done/" + member), &name, &found));
    if (!found) *text += (text->empty() ? "" : ", ") + member;
  }
  return {};
}

Status RestartPlace::await_others(int timeout_s) {
  Progress progress;
  const Deadline deadline = Deadline::in_ms(timeout_s * std::int64_t{1000});
  std::uint64_t token = 0;
  for (bool told = false;;) {
    std::vector<std::string> started;
    SHADOWIB_TRY(exchange_->list(key("started"), &started));
    if (started.size() >= all_.size()) return {};
    std::string missing, gone, why;
    bool aborted = false;
    for (const std::uint32_t m : all_)
      if (std::find(started.begin(), started.end(), std::to_string(m)) == started.end())
        missing += (missing.empty() ? "" : ",") + std::to_string(m);
    SHADOWIB_TRY(lost(&gone));
    SHADOWIB_TRY(exchange_->get(key("abort"), &why, &aborted));
    if (aborted) return Status::of(Code::kAborted, 0, "another part of the restart gave up: %.300s", why.c_str());
    Status status;
    if (!gone.empty())
      status = Status::of(Code::kAborted, 0, "the command that was to restart member %.100s is gone", gone.c_str());
    else if (deadline.has_passed())
      status = Status::of(Code::kTimeout, 0,
                          "after %d s nobody restarts member %.100s; start that share with --members %.100s",
                          timeout_s, missing.c_str(), missing.c_str());
    if (!status.ok()) {
      (void)exchange_->claim(key("abort"), status.text()).ok();
      return status;
    }
    if (!told) progress.step("waiting for who restarts member " + missing);
    told = true;
    const Status watched = exchange_->watch(key("started"), &token, kStepMs, -1);
    if (!watched.ok() && watched.code() != Code::kTimeout) return watched;
  }
}

Status RestartPlace::watch() {
  if (all_run_) return {};
  std::string gone;
  SHADOWIB_TRY(lost(&gone));
  if (!gone.empty())
    (void)exchange_->claim(key("abort"), "the command that was to restart member " + gone + " is gone").ok();
  return {};
}

}  // namespace shadowib::cli
