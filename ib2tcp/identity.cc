// Who this adapter is to its peers: addresses, and the numbers of objects. A cluster that goes back takes them over,
// since peers go on with the numbers they know.
#include "ib2tcp/identity.h"

#include <errno.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "ib2tcp/border.h"
#include "ib2tcp/engine.h"
#include "ib2tcp/host.h"
#include "ib2tcp/memory_window.h"

namespace shadowib::ib2tcp {

std::size_t identity(void* buffer, std::size_t capacity) {
  EngineGuard guard;
  Identity mine;
  if (g_engine->rendezvous == nullptr || !describe_devices(&mine)) return 0;
  mine.tables[0] = g_engine->qps.numbering();
  mine.tables[1] = g_engine->mrs.numbering();
  mine.tables[2] = g_engine->mws.numbering();
  mine.tables[3] = g_engine->xrc_srqs.numbering();
  for (unsigned i = 0; i < kMaxBackendClusters && g_engine->border != nullptr; ++i)
    mine.logged_since[i] = g_engine->border->logged_since(i);
  if (capacity != 0) std::memcpy(buffer, &mine, std::min(capacity, sizeof(mine)));
  return sizeof(mine);
}

int restore_identity(const void* buffer, std::size_t bytes) {
  EngineGuard guard;
  auto former = std::make_unique<Identity>();
  constexpr std::size_t kFirstBytes = offsetof(Identity, logged_since);  // of version 1
  if ((bytes != sizeof(Identity) && bytes != kFirstBytes) || g_engine->border == nullptr) return EINVAL;
  std::memcpy(former.get(), buffer, bytes);
  const Identity expected;
  if (former->magic != expected.magic || former->version != (bytes == kFirstBytes ? 1 : expected.version) ||
      former->devices > kMaxDevices || former->ports > kMaxPorts)
    return EINVAL;
  if (are_devices_made()) return EBUSY;
  g_engine->qps.take_over(former->tables[0]);
  g_engine->mrs.take_over(former->tables[1]);
  g_engine->mws.take_over(former->tables[2]);
  g_engine->xrc_srqs.take_over(former->tables[3]);
  g_engine->border->note_came_back(bytes == kFirstBytes ? nullptr : former->logged_since);
  g_engine->former = std::move(former);
  return 0;
}

int want_number(BackendNumber kind, std::uint32_t number) {
  EngineGuard guard;
  if (g_engine->former == nullptr) return EINVAL;
  switch (kind) {
    case kNumberOfQueuePair:
      return g_engine->qps.want(number);
    case kNumberOfMemoryRegion:
      return g_engine->mrs.want(number);
    case kNumberOfMemoryWindow:
      return (number & kWindowKey) != 0 ? g_engine->mws.want((number & ~kWindowKey) >> 8) : EINVAL;
    case kNumberOfXrcQueue:
      return g_engine->xrc_srqs.want(number);
  }
  return EINVAL;
}

}  // namespace shadowib::ib2tcp
