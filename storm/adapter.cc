#include "storm/adapter.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace storm {
namespace {

ibv_context* open_device(const std::string& name) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ibv_context* context = nullptr;
  for (int i = 0; list != nullptr && i < count && context == nullptr; ++i)
    if (name.empty() || name == ibv_get_device_name(list[i])) context = ibv_open_device(list[i]);
  if (list != nullptr) ibv_free_device_list(list);
  if (context == nullptr) throw std::runtime_error(name.empty() ? "no RDMA device" : "no RDMA device " + name);
  return context;
}

}  // namespace

Adapter::Adapter(const std::string& device_name) : context_(open_device(device_name)) {
  for (int i = 0; i < kDomains; ++i) {
    domains_[i].reset(made(ibv_alloc_pd(context()), "ibv_alloc_pd"));
    const int access =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    counter_regions_[i].reset(made(ibv_reg_mr(domain(i), counters(), sizeof(counters_), access), "ibv_reg_mr"));
  }
  if (ledger().failed()) throw std::runtime_error("the device does not work");
  find_address();
  events_.start([this] { hear_events(); });
}

Adapter::~Adapter() {
  stopping_ = true;
  events_.interrupt_and_join();
}

// On RoCE the last GID: of an IP address.
void Adapter::find_address() {
  ibv_port_attr port{};
  STORM_ZERO(ibv_query_port(context(), 1, &port));
  lid_ = port.lid;
  global_ = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  static constexpr union ibv_gid kNone {};
  for (int i = 0; i < port.gid_tbl_len; ++i) {
    union ibv_gid at {};
    if (ibv_query_gid(context(), 1, i, &at) != 0 || std::memcmp(&at, &kNone, sizeof(at)) == 0) continue;
    gid_index_ = i;
    gid_ = at;
    if (!global_) break;
  }
}

std::uint32_t Adapter::max_completions() const {
  ibv_device_attr attr{};
  STORM_ZERO(ibv_query_device(context(), &attr));
  return static_cast<std::uint32_t>(attr.max_cqe);
}

void Adapter::check_identity() const {
  ibv_port_attr port{};
  union ibv_gid gid {};
  STORM_ZERO(ibv_query_port(context(), 1, &port));
  STORM_ZERO(ibv_query_gid(context(), 1, gid_index_, &gid));
  if (port.lid != lid_ || std::memcmp(&gid, &gid_, sizeof(gid)) != 0)
    ledger().fault(Fault::kIdentity, "the port's LID or GID is another than at the start");
}

void Adapter::describe(Address* address) const {
  address->lid = lid_;
  address->gid = gid_;
}

ibv_ah_attr Adapter::route_to(const Address& there, bool by_gid) const {
  ibv_ah_attr attr{};
  attr.dlid = there.lid;
  attr.port_num = 1;
  if (!global_ && !by_gid) return attr;
  attr.is_global = 1;
  attr.grh.dgid = there.gid;
  attr.grh.sgid_index = static_cast<std::uint8_t>(gid_index_);
  attr.grh.hop_limit = 64;
  return attr;
}

void Adapter::hear_events() {
  ibv_async_event event;
  while (!stopping_) {
    if (ibv_get_async_event(context(), &event) != 0) {
      if (errno != EINTR) succeeded(false, "ibv_get_async_event", 0);
      continue;
    }
    switch (event.event_type) {
      case IBV_EVENT_SRQ_LIMIT_REACHED:
        ledger().count(Count::kLimitEvents);
        static_cast<LimitListener*>(event.element.srq->srq_context)->limit_reached();
        break;
      case IBV_EVENT_COMM_EST:
      case IBV_EVENT_SQ_DRAINED:
      case IBV_EVENT_QP_LAST_WQE_REACHED:  // of queue pairs that are brought to the error state
      case IBV_EVENT_PORT_ACTIVE:
      case IBV_EVENT_GID_CHANGE:
      case IBV_EVENT_LID_CHANGE:
        break;
      default:
        ledger().fault(Fault::kEvent, "asynchronous event %s", ibv_event_type_str(event.event_type));
    }
    ibv_ack_async_event(&event);
  }
}

void BlockingThread::start(std::function<void()> run) {
  thread_ = std::thread([this, run = std::move(run)] {
    run();
    ended_ = true;
  });
}

void BlockingThread::interrupt_and_join() {
  if (!thread_.joinable()) return;
  struct sigaction nothing {};
  nothing.sa_handler = [](int) {};
  ::sigaction(SIGUSR2, &nothing, nullptr);  // without SA_RESTART
  while (!ended_) {
    ::pthread_kill(thread_.native_handle(), SIGUSR2);
    ::usleep(1000);
  }
  thread_.join();
}

}  // namespace storm
