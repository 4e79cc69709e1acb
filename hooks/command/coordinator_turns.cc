// The right to a checkpoint: a cluster's turn, the checkpoint's number, and who takes part.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "hooks/command/coordinator_drive.h"
#include "hooks/job/cluster.h"
#include "hooks/job/protocol.h"
#include "hooks/raw/tasks.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

constexpr int kTurnMs = 20;  // between tries to take a cluster's turn

}  // namespace

Status CheckpointDrive::find_cluster() {
  if (options_.cluster.empty()) return {};
  SHADOWIB_TRY(read_federation(view_, &federation_));
  const ViewedCluster* cluster = federation_.find(options_.cluster);
  if (cluster == nullptr) return no_such_cluster(federation_, view_.job, options_.cluster);
  cluster_ = cluster->index;
  return take_turn(cluster_);
}

// A cluster's checkpoints come one by one, and those of the whole job are everybody's. Who joins the cluster
// meanwhile waits (agent/own_cluster.h).
Status CheckpointDrive::take_turn(unsigned cluster) {
  const std::string path = view_.alive(turn_lock(cluster));
  const int turn = hold_alive_lock(path);
  if (turn < 0 && errno != EAGAIN)
    return Status::of(Code::kIo, errno, "cannot lock %.200s: %.60s", path.c_str(), std::strerror(errno));
  if (turn < 0)
    return Status::of(Code::kBusy, 0, "a checkpoint of cluster %.32s of job %.64s, or of the whole job, is under way",
                      federation_.clusters[cluster].name.c_str(), view_.job.c_str());
  turns_.push_back(turn);
  return {};
}

// Of a federation: those of all clusters, and then its members again, of whom none joins any more. A CLC that is
// under way has its own turn alone and asks for no other, so this command may wait for it with turns in its hand.
Status CheckpointDrive::take_all_turns() {
  const auto has_cluster = [](const MemberStatus& m) { return !m.cluster.empty(); };
  if (is_clc() || std::none_of(members_.begin(), members_.end(), has_cluster)) return {};
  SHADOWIB_TRY(read_federation(view_, &federation_));
  for (const ViewedCluster& cluster : federation_.clusters) {
    Status status = take_turn(cluster.index);
    for (; status.code() == Code::kBusy && !deadline_.has_passed(); status = take_turn(cluster.index))
      raw_sleep_ms(kTurnMs);
    SHADOWIB_TRY(status);
  }
  silence_ns_ = monotonic_ns() + kSilenceNs;
  return find_members();
}

// The number of this checkpoint, and the right to it: whoever holds its lock. Numbers only grow.
Status CheckpointDrive::take_number() {
  const std::string request = "control/" + request_name(cluster_);
  for (;;) {
    Fields fields;
    bool found = false;
    SHADOWIB_TRY(view_.fields(request, &fields, &found));
    const std::uint64_t latest = found ? field_number(fields, "n") : 0;
    const std::string running = view_.alive("ckpt" + checkpoint_id(cluster_, latest));
    if (latest > 0 && is_alive(running))
      return Status::of(Code::kBusy, 0, "a checkpoint of job %.64s%.40s is under way", view_.job.c_str(),
                        which().c_str());
    n_ = latest + 1;
    const std::string path = view_.alive("ckpt" + id());
    lock_ = hold_alive_lock(path);
    if (lock_ < 0 && errno == EAGAIN)
      return Status::of(Code::kBusy, 0, "a checkpoint of job %.64s%.40s is under way", view_.job.c_str(),
                        which().c_str());
    if (lock_ < 0)
      return Status::of(Code::kIo, errno, "cannot lock %.200s: %.60s", path.c_str(), std::strerror(errno));
    found = false;
    fields.clear();
    SHADOWIB_TRY(view_.fields(request, &fields, &found));
    if (!found || field_number(fields, "n") < n_) {
      // Nobody takes a number up to `latest` any more.
      if (latest > 0) ::unlink(running.c_str());
      return {};
    }
    close_owned_descriptor(lock_);  // somebody took that number, and ended, since we looked
    lock_ = -1;
  }
}

// A cluster goes back to its newest CLC. One without a member that has died would leave it out for ever.
Status CheckpointDrive::judge_dead() const {
  for (const MemberStatus& member : members_)
    if (!member.alive && !member.gone && !member.cluster.empty())
      return Status::of(
          Code::kRefused, EAGAIN,
          "%.150s of cluster %.32s has died; `shadowib restart --job %.64s` takes its cluster back to a "
          "checkpoint that has it",
          describe(member).c_str(), member.cluster.c_str(), view_.job.c_str());
  return {};
}

// The members of the CLC. A job that is mixed has come about past `run`.
Status CheckpointDrive::keep_cluster() {
  if (!is_clc()) return {};
  for (const MemberStatus& member : members_)
    if (member.alive && member.cluster.empty())
      return Status::of(Code::kRefused, 0,
                        "%.150s is in no cluster, and the job has clusters: start all its processes with --cluster",
                        describe(member).c_str());
  std::erase_if(members_, [this](const MemberStatus& m) { return m.cluster != options_.cluster; });
  return {};
}

}  // namespace shadowib
