// A trace: the events of a federation, one a line. The simulator writes it; check.h judges it.
//
// docs/reference/formats.md has the fields. Lines stand in the order of time.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "hooks/federation/line.h"
#include "shadowib/base/json_value.h"

namespace shadowib::fedsim {

struct TraceEvent {
  enum class Kind : std::uint8_t { kStart, kPost, kHold, kCommit, kDeliver, kResume };

  Kind kind = Kind::kStart;
  std::uint64_t at_us = 0;
  std::string job;
  unsigned cluster = 0;
  federation::Incarnation incarnation = 0;
  federation::Sn sn = 0;
  unsigned peer = 0;  // of a post, where it goes; of a hold or delivery, where it comes from
  std::uint64_t flow = 0, number = 0;
  unsigned member = 0;            // of a post; of a commit, who tells it
  federation::PerCluster vector;  // of a post, under the policy that carries it; else it has no entry
  federation::ClcRecord record;   // of a commit
  // At the start.
  federation::Policy policy = federation::Policy::kPaper;
  unsigned clusters = 0;  // and `incarnation`, of all of them
  // At a resume.
  std::vector<unsigned> failed;
  std::vector<bool> stays;
  federation::PerCluster sns, incarnations;
  std::vector<std::optional<federation::PerCluster>> running;
};

std::string encode_event(const TraceEvent& event);
// Fields must be there, of their kind and in their range; none besides. kCorrupt names the field.
[[nodiscard]] Status decode_event(const std::string& line, TraceEvent* event);

// All policies by their names.
const std::vector<std::pair<std::string, federation::Policy>>& policies();

}  // namespace shadowib::fedsim
