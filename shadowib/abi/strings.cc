// Names of enumerators, word for word as libibverbs prints them: programs and their scripts compare them.
// Source: ibv_event_type_str(3), rdma-core libibverbs/enum_strs.c.
#include <infiniband/verbs.h>

#include <cstddef>

namespace {

template <std::size_t n>
const char* text_of(const char* const (&texts)[n], int first, int value) {
  if (value < first || value - first >= static_cast<int>(n)) return "unknown";
  return texts[value - first];
}

constexpr const char* kNodeTypes[] = {"InfiniBand channel adapter",
                                      "InfiniBand switch",
                                      "InfiniBand router",
                                      "iWARP NIC",
                                      "usNIC",
                                      "usNIC UDP",
                                      "unspecified"};
static_assert(IBV_NODE_CA == 1 && IBV_NODE_UNSPECIFIED == 7);

constexpr const char* kPortStates[] = {"no state change (NOP)", "down", "init", "armed", "active", "active defer"};
static_assert(IBV_PORT_NOP == 0 && IBV_PORT_ACTIVE_DEFER == 5);

constexpr const char* kEventTypes[] = {"CQ error",
                                       "local work queue catastrophic error",
                                       "invalid request local work queue error",
                                       "local access violation work queue error",
                                       "communication established",
                                       "send queue drained",
                                       "path migrated",
                                       "path migration request error",
                                       "local catastrophic error",
                                       "port active",
                                       "port error",
                                       "LID change",
                                       "P_Key change",
                                       "SM change",
                                       "SRQ catastrophic error",
                                       "SRQ limit reached",
                                       "last WQE reached",
                                       "client reregistration",
                                       "GID table change",
                                       "WQ fatal"};
static_assert(IBV_EVENT_CQ_ERR == 0 && IBV_EVENT_WQ_FATAL == 19);

constexpr const char* kStatuses[] = {"success",
                                     "local length error",
                                     "local QP operation error",
                                     "local EE context operation error",
                                     "local protection error",
                                     "Work Request Flushed Error",
                                     "memory management operation error",
                                     "bad response error",
                                     "local access error",
                                     "remote invalid request error",
                                     "remote access error",
                                     "remote operation error",
                                     "transport retry counter exceeded",
                                     "RNR retry counter exceeded",
                                     "local RDD violation error",
                                     "remote invalid RD request",
                                     "aborted error",
                                     "invalid EE context number",
                                     "invalid EE context state",
                                     "fatal error",
                                     "response timeout error",
                                     "general error",
                                     "TM error",
                                     "TM software rendezvous"};
static_assert(IBV_WC_SUCCESS == 0 && IBV_WC_TM_RNDV_INCOMPLETE == 23);

}  // namespace

extern "C" {

const char* shadowib_ibv_node_type_str(int type) { return text_of(kNodeTypes, IBV_NODE_CA, type); }
const char* shadowib_ibv_port_state_str(int state) { return text_of(kPortStates, IBV_PORT_NOP, state); }
const char* shadowib_ibv_event_type_str(int event) { return text_of(kEventTypes, IBV_EVENT_CQ_ERR, event); }
const char* shadowib_ibv_wc_status_str(int status) { return text_of(kStatuses, IBV_WC_SUCCESS, status); }
}
