// Virtual ids (what the program and its peers hold) and real ids (what the backend made) are different types, so that
// mixing them does not compile. At generation 0 their values are equal; a restart changes the real side only.
#pragma once

#include <compare>
#include <cstdint>

namespace shadowib {

template <typename Tag>
struct Id {
  std::uint32_t value = 0;
  auto operator<=>(const Id&) const = default;
};

using VirtualKey = Id<struct VirtualKeyTag>;  // lkey or rkey
using RealKey = Id<struct RealKeyTag>;
using VirtualQpNum = Id<struct VirtualQpNumTag>;
using RealQpNum = Id<struct RealQpNumTag>;
using VirtualSrqNum = Id<struct VirtualSrqNumTag>;  // of XRC
using RealSrqNum = Id<struct RealSrqNumTag>;
using DestinationIndex = Id<struct DestinationIndexTag>;  // in ShadowAh::destinations
using VirtualLid = Id<struct VirtualLidTag>;
using RealLid = Id<struct RealLidTag>;

}  // namespace shadowib
