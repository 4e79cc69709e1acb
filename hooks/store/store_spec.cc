#include "hooks/store/store_spec.h"

#include <cerrno>

#include "hooks/store/parity_layout.h"

namespace shadowib {
namespace {

// The number in rs:M; 0: there is none, or one that no group can have.
int parities_in(std::string_view scheme) {
  if (scheme == "xor") return 1;
  const bool is_rs =
      scheme.size() == 4 && scheme.starts_with("rs:") && scheme[3] >= '1' && scheme[3] < '0' + kMostGroupHosts;
  return is_rs ? scheme[3] - '0' : 0;
}

std::string name_of(const StoreSpec& spec) {
  if (spec.scheme == Scheme::kMirror) return "mirror";
  if (spec.scheme == Scheme::kSingle) return "single";
  return spec.parities == 1 ? "xor" : "rs:" + std::to_string(spec.parities);
}

}  // namespace

std::string StoreSpec::text() const {
  if (tier == Tier::kCentral) return "central";
  return std::string(tier == Tier::kMem ? "mem:" : "disk:") + name_of(*this);
}

Status parse_store(std::string_view text, StoreSpec* spec) {
  const auto wrong = [text](const char* why) {
    return Status::of(Code::kUsage, EINVAL, "store '%.60s' %s; use %s", std::string(text).c_str(), why, kStoreSpecs);
  };
  *spec = {};
  if (text == "central") return {};
  const std::size_t colon = text.find(':');
  const std::string_view tier = text.substr(0, colon);
  if (tier != "mem" && tier != "disk") return wrong("is none");
  if (colon == std::string_view::npos) return wrong("names no scheme");
  const std::string_view scheme = text.substr(colon + 1);
  const int parities = parities_in(scheme);
  if (scheme.starts_with("rs") && parities == 0) return wrong("has no number of parities from 1 to 7, as rs:2 has");
  if (scheme != "single" && scheme != "mirror" && parities == 0) return wrong("has an unknown scheme");
  spec->tier = tier == "mem" ? Tier::kMem : Tier::kDisk;
  spec->scheme = parities > 0 ? Scheme::kParity : scheme == "mirror" ? Scheme::kMirror : Scheme::kSingle;
  spec->parities = parities;
  return {};
}

Survival survival_of(const StoreSpec& spec) {
  return {.power_failure = spec.tier != Tier::kMem,
          .hosts = spec.tier == Tier::kCentral ? kAllHosts
                   : spec.has_copies()         ? 1
                                               : spec.parities};
}

bool replaces(const StoreSpec& newer, const StoreSpec& older) {
  const Survival a = survival_of(newer), b = survival_of(older);
  return a.hosts >= b.hosts && (a.power_failure || !b.power_failure);
}

const char* default_near_place(Tier tier) { return tier == Tier::kMem ? "/dev/shm" : "/var/tmp"; }

}  // namespace shadowib
