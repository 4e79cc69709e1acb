// What the data path stands on, for its tests: no threads to stop, no peers, and a backend that each test makes.
#include <atomic>

#include "hooks/threads/stop.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/objects/backend.h"

namespace shadowib {

constinit thread_local ThreadDepth t_depth;
std::atomic<std::uint32_t> g_stop_requested{0};
void park_if_requested() {}
BackendOps g_backend;
RealKey resolve_remote_key(ShadowQp&, VirtualKey key) { return {key.value}; }
RealDestination resolve_destination(ShadowAh& ah, VirtualQpNum number) { return {ah.real, {number.value + 1000}}; }
RealSrqNum resolve_remote_srq(ShadowQp&, VirtualSrqNum number) { return {number.value + 1000}; }
void turn_source(ShadowQp&, const ibv_sge*, int, ibv_wc* wc) { wc->src_qp += 1000; }

}  // namespace shadowib
