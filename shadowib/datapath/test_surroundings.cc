// What the data path stands on, for its tests: no threads to stop, no peers, and a backend that each test makes.
#include <atomic>
#include <cerrno>

#include "hooks/threads/stop.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/objects/backend.h"

namespace shadowib {

constinit thread_local ThreadDepth t_depth;
std::atomic<std::uint32_t> g_stop_requested{0};
void park_if_requested() {}
BackendOps g_backend;
int g_unanswered = 0;  // questions from now on that the exchange does not answer
int resolve_remote_key(ShadowQp& qp, VirtualKey key, RealKey* real) {
  if (g_unanswered > 0) return --g_unanswered, EIO;
  *real = {key.value};
  if (qp.remote_keys != nullptr) (void)qp.remote_keys->keys.find(key, real);
  return 0;
}
RealDestination resolve_destination(ShadowAh& ah, VirtualQpNum number) {
  if (g_unanswered > 0) return --g_unanswered, RealDestination{nullptr, {}};
  return {ah.real, {number.value + 1000}};
}
int resolve_remote_srq(ShadowQp&, VirtualSrqNum number, RealSrqNum* real) {
  if (g_unanswered > 0) return --g_unanswered, EIO;
  *real = {number.value + 1000};
  return 0;
}
void turn_source(ShadowQp&, const ibv_sge*, int, ibv_wc* wc) { wc->src_qp += 1000; }

}  // namespace shadowib
