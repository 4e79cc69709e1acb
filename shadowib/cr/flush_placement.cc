// A completion is not placement (H16): that a request has completed at its sender means that the receiver's adapter
// has it, not that its memory has. Who polls a completion of that adapter finds everything in memory that came before
// it; an image is read without one. So before it, with everybody settled, each adapter reads a byte of this process
// and writes it back, behind whatever it still has to place.
#include <errno.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "hooks/threads/stop.h"
#include "shadowib/base/guard.h"
#include "shadowib/base/log.h"
#include "shadowib/cr/loopback.h"
#include "shadowib/cr/participant.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

// 0 or an errno.
int read_own_byte(Loopback& loopback, ibv_pd* pd, char* bytes) {
  ibv_mr* mr = g_backend.reg_mr(pd, bytes, 2, reinterpret_cast<std::uint64_t>(bytes),
                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  if (mr == nullptr) return errno;
  ibv_sge to{reinterpret_cast<std::uint64_t>(bytes), 1, mr->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &to;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_READ;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma = {to.addr + 1, mr->rkey};
  const int rc = loopback.run(&wr);
  loopback.close();
  g_backend.dereg_mr(mr);
  return rc;
}

int flush(const ShadowContext& context) {
  static char bytes[2];
  ibv_pd* pd = g_backend.alloc_pd(context.real);
  if (pd == nullptr) return errno;
  int rc;
  {
    Loopback loopback;
    rc = loopback.open(context, pd);
    if (rc == 0) rc = read_own_byte(loopback, pd, bytes);
  }
  g_backend.dealloc_pd(pd);
  return rc;
}

}  // namespace

Status flush_placement() {
  if (!g_backend.needs_signals || !guarded(Guard::kFlushPlacement)) return {};  // ib2tcp places before it says so
  std::vector<const ShadowDevice*> flushed;
  for (const ShadowQp& qp : registry().qps) {
    const ShadowContext& context = *qp.context;
    if (std::find(flushed.begin(), flushed.end(), context.device) != flushed.end()) continue;
    flushed.push_back(context.device);
    const int rc = flush(context);
    if (!stop_lasts()) return Status(Code::kTimeout, 0, kStopEndedText);  // and the registry may have changed
    if (rc == 0) continue;
    // Adapters of InfiniBand and RoCE have their data in memory long before an image is read, as far as anybody
    // knows.
    if (context.device->device.transport_type == IBV_TRANSPORT_IWARP)
      return Status::of(Code::kRefused, rc, "adapter %s cannot be asked whether its data lies in memory: %s",
                        context.device->device.name, ::strerror(rc));
    log_line(LogLevel::kWarn, "adapter %s cannot be asked whether its data lies in memory: %s",
             context.device->device.name, ::strerror(rc));
  }
  return {};
}

}  // namespace shadowib
