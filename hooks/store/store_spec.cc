#include "hooks/store/store_spec.h"

#include <algorithm>
#include <cerrno>

namespace shadowib {
namespace {

constexpr std::string_view kUnbuilt[] = {"xor", "rs"};

}  // namespace

std::string StoreSpec::text() const {
  if (tier == Tier::kCentral) return "central";
  return std::string(tier == Tier::kMem ? "mem" : "disk") + (has_copies() ? ":mirror" : ":single");
}

Status parse_store(std::string_view text, StoreSpec* spec) {
  const auto wrong = [text](const char* why) {
    return Status::of(Code::kUsage, EINVAL, "store '%.60s' %s; use %s", std::string(text).c_str(), why, kStoreSpecs);
  };
  *spec = {};
  if (text == "central") return {};
  const std::size_t colon = text.find(':');
  const std::string_view tier = text.substr(0, colon);
  if (tier != "mem" && tier != "disk") return wrong(tier == "auto" ? "is not there yet" : "is none");
  if (colon == std::string_view::npos) return wrong("names no scheme");
  const std::string_view scheme = text.substr(colon + 1);
  const std::string_view name = scheme.substr(0, scheme.find(':'));
  if (std::find(std::begin(kUnbuilt), std::end(kUnbuilt), name) != std::end(kUnbuilt))
    return wrong("is not there yet");
  if (scheme != "single" && scheme != "mirror") return wrong("has an unknown scheme");
  spec->tier = tier == "mem" ? Tier::kMem : Tier::kDisk;
  spec->scheme = scheme == "mirror" ? Scheme::kMirror : Scheme::kSingle;
  return {};
}

Survival survival_of(const StoreSpec& spec) {
  return {.power_failure = spec.tier != Tier::kMem,
          .hosts = spec.tier == Tier::kCentral ? kAllHosts
                   : spec.has_copies()         ? 1
                                               : 0};
}

bool replaces(const StoreSpec& newer, const StoreSpec& older) {
  const Survival a = survival_of(newer), b = survival_of(older);
  return a.hosts >= b.hosts && (a.power_failure || !b.power_failure);
}

const char* default_near_place(Tier tier) { return tier == Tier::kMem ? "/dev/shm" : "/var/tmp"; }

}  // namespace shadowib
