// The members of a job that live, have left, or died, by their locks and the records there. Needs no exchange.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "hooks/job/member_record.h"
#include "shadowib/base/status.h"

namespace shadowib::cli {

struct MemberLife {
  enum State { kAlive, kLeft, kDied };
  std::uint32_t index = 0;
  State state = kAlive;
  MemberRecord record;
  bool is_later_member = false;  // its process has executed another program, and joined again under a higher index
};

struct Lives {
  std::string epoch;                // "" before the first member
  std::vector<MemberLife> members;  // of that epoch, by index
  std::string other;                // a lock that a command holds: a restart, a checkpoint; "" if none is

  bool any_alive() const;
  // A name for this life of a member: an index may come again, after a loss of the exchange or by a recovery.
  std::string name_of(const MemberLife& member) const;
  const MemberLife* first_dead(const std::set<std::string>& known) const;
  // The first exit status of a member that is not 0; 0 if all ended with 0. -1: some have not left, or nobody knows
  // how they ended.
  int exit_status() const;
  // Names of members that are dead already, for first_dead().
  std::set<std::string> dead() const;
  // Names of members whose processes have executed other programs: their end is no member's.
  std::set<std::string> elsewhere() const;
};

// kIo: the locks cannot be read, and nothing is known.
Status look_who_lives(const std::string& directory, const std::string& job, Lives* lives);

// "member 1 (pid 42 on node1)".
std::string describe_life(const MemberLife& member);
// How a process of this host stands: "; it is in state D (uninterruptible)". Empty if it is not known.
std::string describe_standing(const MemberLife& member);

}  // namespace shadowib::cli
