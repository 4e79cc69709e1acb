// Where a set is to lie, and how many copies there are: the words after --store. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shadowib/base/status.h"

namespace shadowib {

// central: in the checkpoint directory. mem, disk: on the hosts of the members, on tmpfs or a local disk.
enum class Tier : std::uint8_t { kCentral, kMem, kDisk };
// single: each image once. mirror: a copy of each on another host. parity: groups of hosts keep parities of each
// other's images.
enum class Scheme : std::uint8_t { kSingle, kMirror, kParity };

struct StoreSpec {
  Tier tier = Tier::kCentral;
  Scheme scheme = Scheme::kSingle;
  int parities = 0;  // of kParity: 1 is xor, M is rs:M

  bool is_near() const { return tier != Tier::kCentral; }
  bool has_copies() const { return scheme == Scheme::kMirror; }
  bool has_parity() const { return scheme == Scheme::kParity; }
  // It survives the loss of a host, by its keepers.
  bool is_redundant() const { return scheme != Scheme::kSingle; }
  std::string text() const;  // as --store takes it
  bool operator==(const StoreSpec&) const = default;
};

// The values of --store, for help and messages.
inline constexpr char kStoreSpecs[] =
    "central, auto, mem:SCHEME or disk:SCHEME, where SCHEME is single, mirror, xor or rs:2 to rs:7";

// kUsage: `text` is no store. auto is none: a checkpoint chooses the store.
Status parse_store(std::string_view text, StoreSpec* spec);

// The losses that a set outlives.
struct Survival {
  bool power_failure = true;
  int hosts = 0;  // how many may be lost for good; kAllHosts: the set is on none of them
};
inline constexpr int kAllHosts = 1 << 20;
Survival survival_of(const StoreSpec& spec);

// True if a set of `newer` outlives whatever one of `older` does, so that it may take its place.
bool replaces(const StoreSpec& newer, const StoreSpec& older);

// Where near images go if nobody says: /dev/shm or /var/tmp.
const char* default_near_place(Tier tier);

}  // namespace shadowib
