// Connections to guests, which are dead after a restart.
#pragma once

#include <algorithm>
#include <cstdint>

#include "shadowib/objects/registry.h"

namespace shadowib::cm {

// Whether the adapter's queue pair of that number led to a guest. Each adapter of a process numbers by itself.
inline bool has_lost_guest(const ObjectList<ShadowQp>& qps, std::uint64_t adapter_guid, std::uint32_t qp_num) {
  return std::any_of(qps.begin(), qps.end(), [=](const ShadowQp& qp) {
    return qp.qp_num.value == qp_num && qp.context->device->guid == adapter_guid && qp.doomed && qp.remote.is_guest;
  });
}

}  // namespace shadowib::cm
