// Shadow devices and contexts.
#pragma once

#include <infiniband/verbs.h>

#include <boost/intrusive/list.hpp>
#include <deque>
#include <memory>
#include <vector>

#include "shadowib/abi/slots.h"
#include "shadowib/base/lock.h"
#include "shadowib/objects/displaced_regions.h"
#include "shadowib/objects/events.h"
#include "shadowib/objects/ids.h"
#include "shadowib/objects/keys.h"
#include "shadowib/objects/memory_window.h"
#include "shadowib/objects/qp_numbers.h"

namespace shadowib {

// The program's struct is the first member of every shadow struct, so that one pointer is the other; hence member
// hooks.
using ListHook = boost::intrusive::list_member_hook<>;

// An entry of a port's GID table; all zeros: there is none at that index.
struct RecordedGid {
  ibv_gid gid;
  int type;
  bool empty() const { return gid.global.subnet_prefix == 0 && gid.global.interface_id == 0; }
};

// The facts of a port that the program was told; reported unchanged after a restart.
struct ShadowPort {
  ibv_port_attr attr;
  std::vector<RecordedGid> gids;
  std::vector<std::uint16_t> pkeys;
  VirtualLid lid;  // 0: none (RoCE)
  // The port it is on now (cr/ports.h).
  RealLid real_lid;
  bool real_is_ethernet = false;
  ibv_mtu real_mtu = IBV_MTU_4096;
  std::vector<RecordedGid> real_table;
  std::vector<int> real_indices;       // by the program's index, into real_table; -1: nothing stands for it
  std::vector<ibv_gid> real_gids;      // the same, or zeros
  std::vector<int> real_pkey_indices;  // by the program's of a P_Key, -1: not in that partition; empty: the same
  // Index that the program has named last as where it sends from: of several GIDs that are one now the likely one.
  int named_gid = 0;
};

// The facts of a device that a program was told when it opened it.
struct DeviceIdentity {
  ibv_device_attr attr;
  std::vector<ShadowPort> ports;
  bool of_a_fellow = false;  // another process was told so: it may have these addresses itself
};

// The program's ibv_device. Direct-verbs libraries look behind it for their own `ops` and must find foreign ones
// there: hence the readable space.
struct ShadowDevice {
  ibv_device device;
  const void* foreign_ops;
  char padding[512];
  std::uint64_t guid;  // network order, as at generation 0
  int index;
  int ordinal;                               // position in the backend's list
  std::unique_ptr<DeviceIdentity> identity;  // null: never opened
  bool adapter_changed = false;              // since: to one of another name or link layer (cr/identity.h)
};
static_assert(offsetof(ShadowDevice, device) == 0);

struct ShadowContext {
  NewestVerbsContext newest;  // the program sees &newest.context.context
  ListHook hook;
  ibv_context* real = nullptr;
  ShadowDevice* device = nullptr;
  ibv_device_attr attr;           // as recorded at open
  ibv_device_attr real_attr;      // of the adapter it is on now
  std::vector<ShadowPort> ports;  // [0..phys_port_cnt)
  KeyTable keys;                  // local keys (lkey and rkey differ: see rkeys)
  KeyTable rkeys;
  WindowTable windows;
  QpNumbers numbered;                  // queue pairs by the number that completions name
  std::atomic<bool> translate{false};  // false: virtual ids equal real ones, posts go down as they are
  DisplacedRegions displaced;
  enum class Fences : std::uint8_t { kUnknown, kWork, kNone } fences = Fences::kUnknown;  // cr/fences.h
  // Its place in the backend's list, by which members tell each other's adapters apart.
  std::uint32_t adapter() const { return static_cast<std::uint32_t>(device->ordinal); }
  bool foreign = false;     // inherited over a fork: every call on it and its objects answers EPERM
  EventQueue async_events;  // its descriptor is the program's async_fd
  std::deque<ibv_async_event> pending_async
      SHADOWIB_GUARDED_BY(async_events.lock);  // taken out of the backend by a checkpoint

  verbs_context& verbs() { return newest.context; }
  ibv_context& program() { return newest.context.context; }

  static bool is_foreign(ibv_context* context) { return of(context)->foreign; }

  static constexpr std::size_t kProgramOffset =
      offsetof(NewestVerbsContext, context) + offsetof(verbs_context, context);
  static ShadowContext* of(ibv_context* context) {
    return reinterpret_cast<ShadowContext*>(reinterpret_cast<char*>(context) - kProgramOffset);
  }
};

}  // namespace shadowib
