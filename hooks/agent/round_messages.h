// Messages between the members of one checkpoint and its command (protocol.h). Internal to hooks/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hooks/agent/agent.h"
#include "hooks/imager/compression.h"
#include "hooks/job/cluster.h"
#include "hooks/job/phase.h"
#include "hooks/job/protocol.h"

namespace shadowib {

// 32 hex digits.
std::string to_hex(const std::uint8_t (&bytes)[16]);

// The command's request, as this member reads it.
struct RoundRequest {
  std::uint64_t number = 0;
  unsigned cluster = kWholeJob;  // of a CLC
  federation::Sn next_sn = 0;    // a CLC's number, as the command has told with "go"; 0: it has not
  std::vector<std::uint32_t> members;
  std::string staging;   // the directory that becomes the set
  std::string near;      // PLACE where images stay near, "" if they go to `staging` (job/near_directory.h)
  bool chooses = false;  // `near` comes with "go", by what each host tells of its room
  std::string mem_place, disk_place;  // what it may be then
  bool keepers = false;               // each host needs a keeper
  std::string image;                  // this member's file in it
  std::uint8_t set_id[16] = {};
  std::int64_t deadline_ns = 0;  // CLOCK_MONOTONIC, counted from parse()
  bool kill = false;             // all are to end once the set is committed
  bool incremental = false;      // images have hashes of their pages
  std::string base;              // the set whose images have pages that need not be written again; "": none
  Compression compression = Compression::kNone;
  bool forked = false;  // images are written while the program goes on, where that can be
  bool weighs = false;  // and where there is the memory for it: the command tells by "go"
  bool stands = false;  // there is not, for this member
  bool last = true;     // the command does not try again if the refusal passes (EAGAIN)
  // Behind the deadline, in which those who are late may come back: then the program goes on, whoever is.
  static constexpr std::int64_t kLateNs = 15'000'000'000;

  Status parse(const std::string& text);  // kVersion
  // Reads the words that the command adds with "go": `near` and `compression` if `chooses`, `next_sn` of a CLC,
  // `stands` if `weighs`.
  // kVersion: another protocol, a compression that is not known here, or no SN. `near` and `compression` are not
  // changed then.
  Status take_choice(const std::string& go);
  bool concerns(std::uint32_t member) const;
  bool is_clc() const { return cluster != kWholeJob; }
  std::string id() const { return checkpoint_id(cluster, number); }
  // One member speaks for all where any could.
  bool first_is(std::uint32_t member) const { return !members.empty() && members.front() == member; }
};

// For the agent thread. Nobody waits for a checkpoint that cannot succeed: every wait ends with kAborted as soon as
// somebody has given up or the command is dead, and with kTimeout at the request's deadline.
class RoundMessages {
 public:
  // How often a waiting member looks whether the command lives. The first member does so for all, and its abort wakes
  // them; the others look in case that one is dead, too.
  static constexpr int kSliceMs = 200, kSeldomMs = 2000;

  explicit RoundMessages(const RoundRequest& request);  // which outlives this

  const std::string& me() const { return me_; }
  // A key of this checkpoint, and the one of them that only this member publishes.
  std::string key(const std::string& rest) const { return checkpoint_key_of(g_job.info.epoch, request_.id(), rest); }
  std::string own(const char* what) const { return key(std::string(what) + "/" + me_); }
  const std::string& abort_key() const { return abort_key_; }
  int left_ms() const;   // until the deadline; 0 if it has passed
  int slice_ms() const;  // of this member, no longer than that
  bool command_alive() const;

  // This member has the request.
  Status tell_heard();
  // Every member of the checkpoint comes to a barrier before any passes it.
  Status barrier(Phase phase);
  // One of several barriers of a phase.
  Status barrier(const std::string& name);
  // Then looks up a key of this checkpoint, too.
  Status barrier_and_get(const std::string& name, const std::string& key, std::string* value, bool* found);
  // Publishes `first`, and waits. `beside`: a key that is published before it, if at all.
  Status wait_for_key(const char* name, std::string* value, std::vector<Exchange::Value> first = {},
                      const std::string& beside = "", std::string* value_beside = nullptr);
  // Until any key of this checkpoint changes, and then looks up one (Exchange::watch_and_lookup); does not look
  // whether waiting is in vain.
  Status watch(std::uint64_t* token, int timeout_ms, const std::string& key, std::string* value, bool* found);

  // Why waiting is in vain: somebody has given up, the command is dead, or the time-out has run out.
  Status check_others();

  // Tells the others that this member gives up, and why. True: it is on this member to tell people, since no other
  // does, and the command does not try again.
  bool give_up(const Status& status);
  // Tries again to claim the abort, if the exchange did not take it.
  void give_up_again();

 private:
  bool command_gave_up_for_good();
  Status meet(const std::string& name, Exchange::Look* look);
  Status claim_abort();

  const RoundRequest& request_;
  std::string abort_text_;       // of this member, once it gives up
  bool abort_is_there_ = false;  // of whoever was first
  const std::string me_, prefix_, abort_key_, command_lock_;
  std::uint64_t token_ = 0;  // of the last look at keys of this checkpoint that waits go on from
};

}  // namespace shadowib
