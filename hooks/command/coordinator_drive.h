// Internal to coordinator*.cc: one checkpoint as its command drives it.
#pragma once

#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "hooks/command/coordinator.h"
#include "hooks/command/copies.h"
#include "hooks/command/federation_view.h"
#include "hooks/imager/descriptors.h"
#include "hooks/job/members.h"
#include "hooks/store/store.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/descriptors.h"

namespace shadowib {

struct MemberResults;  // coordinator_manifest.h

// One checkpoint as its command drives it. The members notice the end of this object by its lock. In one thread.
//
// The turns of clusters, the number and the members are found in coordinator_turns.cc. The claim of a CLC is in
// coordinator_claim.cc. The place of images is chosen in coordinator_place.cc. All else is in coordinator.cc.
class CheckpointDrive {
 public:
  // `last`: what passes is not waited for any longer. `full`: stores that ran out of space in attempts before.
  CheckpointDrive(const CheckpointOptions& options, JobView& view, int attempt, bool last,
                  const std::vector<StoreSpec>& full)
      : options_(options),
        view_(view),
        attempt_(attempt),
        last_(last),
        plan_(options.store),
        near_place_(options.near_place),
        full_(full),
        compression_(options.compression) {}
  ~CheckpointDrive() {
    close_owned_descriptor(lock_);
    for (const int turn : turns_) close_owned_descriptor(turn);
  }
  CheckpointDrive(const CheckpointDrive&) = delete;
  CheckpointDrive& operator=(const CheckpointDrive&) = delete;

  Status run(CheckpointReport* report);
  // Whether a checkpoint that ended so is worth another attempt: a member is in the middle of something that passes,
  // or left by itself before any was stopped.
  bool worth_another(const Status& status) const {
    return passes(status) ? !last_ : left_early_ && attempt_ < kAttempts;
  }
  static bool passes(const Status& status) { return status.code() == Code::kRefused && status.error() == EAGAIN; }
  // A store that was chosen had less room than was expected: what it lacks shows when it is written to.
  bool ran_out_of_space(const Status& status) const {
    return options_.choice && going_ && (status.error() == ENOSPC || status.error() == EDQUOT);
  }
  // A saver did: there was less memory than was expected.
  bool ran_out_of_memory(const Status& status) const {
    return going_ && status.code() == Code::kAborted && status.error() == ENOMEM;
  }
  const StoreSpec& plan() const { return plan_; }
  // The job has another epoch by now.
  static bool is_outdated(const Status& status) { return status.code() == Code::kBusy && status.error() == ESTALE; }

 private:
  static constexpr std::int64_t kSilenceNs = 1'500'000'000;
  static constexpr int kAttempts = 3;  // if a member leaves in an orderly way before anybody was stopped

  bool is_clc() const { return cluster_ != kWholeJob; }
  std::string which() const;
  Status find_cluster();
  Status take_turn(unsigned cluster);
  Status take_all_turns();
  Status take_number();
  Status find_members();
  Status judge_dead() const;
  Status keep_cluster();
  Status judge_number() const;
  Status request();
  Status join_borders();
  Status add_left(federation::PerCluster* depends) const;
  void describe_clusters(SetManifest* manifest) const;
  Status claim(const std::string& set_path);
  Status find_base();
  bool wants_keepers() const;
  Status drive(CheckpointReport* report);
  Status find_hosts();
  Status choose(const std::map<std::uint32_t, Fields>& rooms);
  // A CLC's members have the next SN before their threads run, and so wait for its commit.
  bool is_forked() const { return options_.save != SaveWay::kStopped && !options_.kill && !is_clc(); }
  // Adds to *go which members are to stand for want of memory.
  Status judge_savers(Fields* go);
  void remove_near();
  // Waits until every member has published `what`/<index> and returns the values; fails as soon as one gives up or
  // dies.
  Status collect(const char* what, std::map<std::uint32_t, std::string>* values);
  Status check_members();
  Status check_locks();
  Status late();
  std::vector<std::uint32_t> indices() const;
  std::set<std::uint32_t> entered(const char* barrier);
  bool all_at(const char* barrier) { return entered(barrier).size() >= members_.size(); }
  Status judge_silent();
  Status failure_of_members(const std::string& abort_text);
  Status complete_tables(const MemberResults& results);
  Status commit(CheckpointReport* report);
  Status publish_outcome(const Fields& fields) {
    return view_.exchange->publish(key("outcome"), encode_fields(fields));
  }
  void await_members(bool ended_by_kill);
  void tell_outcome(const Fields& fields);
  Status publish_end(const Fields& outcome);
  Status tell_to_end(const Fields& outcome, const CheckpointReport& report);
  void forget_earlier();
  void show_progress(std::size_t saved);
  std::string id() const { return checkpoint_id(cluster_, n_); }
  std::string key(const std::string& rest) const { return checkpoint_key_of(view_.epoch, id(), rest); }
  // Without the epoch.
  std::string below(const std::string& rest) const { return checkpoint_key_of("", id(), rest).substr(1); }
  Status get(const std::string& rest, Fields* fields, bool* found) {
    return view_.fields(below(rest), fields, found);
  }

  const CheckpointOptions& options_;
  JobView& view_;
  const int attempt_;
  const bool last_;
  std::vector<MemberStatus> members_;
  unsigned cluster_ = kWholeJob;
  FederationView federation_;
  SetCluster clc_;
  Fields decision_;  // over the CLC
  std::uint64_t n_ = 0;
  int lock_ = -1;
  std::vector<int> turns_;  // locks
  StoreSpec plan_;          // where images lie, with its place
  std::string near_place_;
  const std::vector<StoreSpec>& full_;
  Compression compression_;
  std::vector<StoreOption> considered_;
  std::unique_ptr<Store> store_;
  std::string staging_, set_id_;
  std::string base_;     // path of the set that an incremental checkpoint goes by
  MemberTables tables_;  // of descriptors
  NearHosts hosts_;      // of a near store
  std::uint32_t number_ = 0;
  Deadline deadline_ = Deadline::in_ms(0);
  std::int64_t silence_ns_ = 0;  // CLOCK_MONOTONIC of the next look at members that do not answer
  std::int64_t locks_ns_ = 0;    // and at their locks
  bool left_early_ = false, requested_ = false;
  bool unheard_ = false;  // a member cannot answer, so nobody waits for its word
  CheckpointProgress progress_;
  bool going_ = false;          // members have been told to save
  bool perhaps_there_ = false;  // neither the commit nor its undoing went well
};

}  // namespace shadowib
