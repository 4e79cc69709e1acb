// BackendOps::identity, as it lies in an image.
#pragma once

#include <cstdint>

#include "ib2tcp/device.h"
#include "ib2tcp/slot_table.h"

namespace shadowib::ib2tcp {

struct Identity {
  std::uint32_t magic = 0x49324249;  // "IB2I"
  std::uint32_t version = 2;
  std::uint32_t devices = 0, ports = 0;  // ports of each device
  std::uint64_t guids[kMaxDevices] = {};
  std::uint16_t lids[kMaxDevices][kMaxPorts] = {};
  Numbering tables[4] = {};                              // queue pairs, regions, windows, XRC shared receive queues
  std::uint64_t logged_since[kMaxBackendClusters] = {};  // from version 2 on
};

// In device.cc, under the engine's lock. False: none has an address yet.
bool describe_devices(Identity* identity);
bool are_devices_made();

}  // namespace shadowib::ib2tcp
