// The losses that a set survives: as its store promises, and by the pieces that are left. Pure.
#pragma once

#include <cstddef>
#include <string>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/store/mirror.h"
#include "shadowib/base/json_value.h"
#include "shadowib/cli/keepers.h"

namespace shadowib::cli {

// "0 hosts", "1 host", "2 hosts a group".
std::string losses_text(int hosts, bool per_group);
// As losses_text() has the promise of a store; "all but DIR" of a central set.
std::string survival_text(const SetPlacement& placement);
// `hosts`, a number or "all"; `per`, "set" or "group"; `power_failure`, a bool.
Json survival_json(const SetPlacement& placement);
// The number of hosts is of each group.
bool is_per_group(const SetPlacement& placement);

inline constexpr std::size_t kMirrorCopies = 2;  // of each image, in two domains

// How many hosts may be lost at once before an image is, at most as many as the store promises. -1: an image is lost
// already. For sets with copies or parities.
int survived_losses(const SetManifest& manifest, const FileHolders& holders, const Domains& domains);

struct Redundancy {
  enum class State {
    kWhole,     // it survives what its store promises
    kDegraded,  // it survives less
    kLost,      // an image is nowhere, and cannot be made
    kNotKnown,  // less is known to be there, and some hosts have not answered
  };
  State state = State::kNotKnown;
  int survives = -1;  // hosts, at least: survived_losses()
  // Images, each as often as it must be there, and parities.
  std::size_t pieces = 0, missing = 0;
};
const char* state_name(Redundancy::State state);

// `all_answered`: pieces that no host has are missing, rather than not known.
Redundancy judge_redundancy(const SetManifest& manifest, const FileHolders& holders, const Domains& domains,
                            bool all_answered);

}  // namespace shadowib::cli
