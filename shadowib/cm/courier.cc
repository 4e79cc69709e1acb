#include "shadowib/cm/courier.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>

#include "hooks/threads/stop.h"
#include "shadowib/abi/handlers.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"
#include "shadowib/cm/connection_id.h"
#include "shadowib/objects/route_header.h"

namespace shadowib::cm {
namespace {

constexpr std::uint32_t kReceives = 256, kSends = 64;
constexpr std::size_t kHeaderBytes = 40;  // the route header in front of a datagram
constexpr std::size_t kSlotBytes = 512;
static_assert(kHeaderBytes + sizeof(Message) <= kSlotBytes);
constexpr std::int64_t kDrainNs = 2'000'000'000;

struct Letter {
  Message message;
  Address to;
};

struct Courier {
  Port port{};
  Address address{};
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
  std::unique_ptr<char[]> memory;           // receive slots, then send slots
  std::map<std::uint32_t, ibv_ah*> by_lid;  // destinations
  std::vector<std::pair<ibv_gid, ibv_ah*>> by_gid;
  std::vector<std::uint32_t> free_sends;
  std::deque<Letter> waiting;
  int wake_fd = -1;
  bool stopping = false;
  pthread_t thread{};
};
Courier* g_courier = nullptr;

// IPv4 addresses are mapped ones.
ibv_gid as_gid(const sockaddr_in6& address) {
  ibv_gid gid{};
  if (address.sin6_family == AF_INET6) {
    std::memcpy(gid.raw, &address.sin6_addr, sizeof(gid.raw));
    return gid;
  }
  gid.raw[10] = gid.raw[11] = 0xff;
  std::memcpy(gid.raw + 12, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
  return gid;
}

char* slot(Courier& c, std::uint32_t n) { return c.memory.get() + n * kSlotBytes; }

bool post_receive(Courier& c, std::uint32_t n) {
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(slot(c, n)), kSlotBytes, c.mr->lkey};
  ibv_recv_wr wr{};
  wr.wr_id = n;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(c.qp, &wr, &bad) == 0;
}

ibv_ah* handle_to(Courier& c, const Address& to) {
  ibv_ah_attr attr{};
  attr.port_num = c.port.number;
  attr.dlid = static_cast<std::uint16_t>(to.lid);
  if (to.lid != 0) {
    ibv_ah*& ah = c.by_lid[to.lid];
    if (ah == nullptr) ah = shadowib_ibv_create_ah(c.pd, &attr);
    return ah;
  }
  for (auto& [gid, ah] : c.by_gid)
    if (std::memcmp(&gid, &to.gid, sizeof(gid)) == 0) return ah;
  attr.is_global = 1;
  attr.grh.dgid = to.gid;
  attr.grh.sgid_index = c.port.gid_index;
  attr.grh.hop_limit = 64;
  ibv_ah* ah = shadowib_ibv_create_ah(c.pd, &attr);
  if (ah != nullptr) c.by_gid.emplace_back(to.gid, ah);
  return ah;
}

void post_letter(Courier& c, const Letter& letter) {
  ibv_ah* ah = handle_to(c, letter.to);
  if (ah == nullptr) {
    log_line(LogLevel::kWarn, "rdma_cm: no address handle to LID %u: %s", letter.to.lid, std::strerror(errno));
    return;
  }
  const std::uint32_t n = c.free_sends.back();
  std::memcpy(slot(c, n), &letter.message, sizeof(Message));
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(slot(c, n)), sizeof(Message), c.mr->lkey};
  ibv_send_wr wr{}, *bad = nullptr;
  wr.wr_id = n;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.ud.ah = ah;
  wr.wr.ud.remote_qpn = letter.to.qp_num;
  wr.wr.ud.remote_qkey = letter.to.qkey;
  if (int rc = ibv_post_send(c.qp, &wr, &bad); rc != 0)
    log_line(LogLevel::kError, "rdma_cm: a message cannot be sent: %s", std::strerror(rc));
  else
    c.free_sends.pop_back();
}

void handle_completion(Courier& c, const ibv_wc& wc) {
  const auto n = static_cast<std::uint32_t>(wc.wr_id);
  if (n >= kReceives) {
    c.free_sends.push_back(n);
    for (; !c.waiting.empty() && !c.free_sends.empty(); c.waiting.pop_front()) post_letter(c, c.waiting.front());
    return;
  }
  if (wc.status != IBV_WC_SUCCESS) return;
  Message message;
  const bool whole = wc.byte_len == kHeaderBytes + sizeof(message);
  if (whole) std::memcpy(&message, slot(c, n) + kHeaderBytes, sizeof(message));
  post_receive(c, n);
  if (c.stopping) return;
  if (!whole || message.magic != Message::kMagic || message.version != Message::kVersion)
    log_line(LogLevel::kWarn, "rdma_cm: dropped a datagram of %u bytes that is no message of this version",
             wc.byte_len);
  else
    receive_message(message);
}

void drain_completions(Courier& c) {
  ibv_cq* cq = nullptr;
  void* unused = nullptr;
  if (shadowib_ibv_get_cq_event(c.channel, &cq, &unused) == 0) shadowib_ibv_ack_cq_events(cq, 1);
  ibv_req_notify_cq(c.cq, 0);
  ibv_wc wc[16];
  for (int got; (got = ibv_poll_cq(c.cq, 16, wc)) > 0;)
    for (int i = 0; i < got; ++i) handle_completion(c, wc[i]);
}

void* serve(void* argument) {
  auto& c = *static_cast<Courier*>(argument);
  ::prctl(PR_SET_NAME, "shadowib-cm");
  int timeout_ms = 0;
  for (std::int64_t drain_until = 0;;) {
    pollfd fds[] = {{c.channel->fd, POLLIN, 0}, {c.wake_fd, POLLIN, 0}};
    ::poll(fds, 2, timeout_ms);
    ManagerGuard guard;
    std::uint64_t count;
    if (fds[1].revents != 0) [[maybe_unused]]
      auto n = ::read(c.wake_fd, &count, sizeof(count));
    drain_completions(c);
    const std::int64_t now = monotonic_ns();
    std::int64_t next = c.stopping ? -1 : handle_timeouts(now);
    if (c.stopping) {
      if (drain_until == 0) drain_until = now + kDrainNs;
      if ((c.waiting.empty() && c.free_sends.size() == kSends) || now > drain_until) return nullptr;
      next = next < 0 ? drain_until : std::min(next, drain_until);
    }
    timeout_ms = next < 0 ? -1 : static_cast<int>(std::max<std::int64_t>(0, (next - now + 999999) / 1000000));
  }
}

void destroy_objects(Courier& c) {
  if (c.qp != nullptr) shadowib_ibv_destroy_qp(c.qp);
  for (auto& [lid, ah] : c.by_lid)
    if (ah != nullptr) shadowib_ibv_destroy_ah(ah);
  for (auto& [gid, ah] : c.by_gid) shadowib_ibv_destroy_ah(ah);
  if (c.cq != nullptr) shadowib_ibv_destroy_cq(c.cq);
  if (c.channel != nullptr) shadowib_ibv_destroy_comp_channel(c.channel);
  if (c.mr != nullptr) shadowib_ibv_dereg_mr(c.mr);
  if (c.pd != nullptr) shadowib_ibv_dealloc_pd(c.pd);
  if (c.context != nullptr) shadowib_ibv_close_device(c.context);
  if (c.wake_fd >= 0) ::close(c.wake_fd);
}

Status failed(const char* what) {
  return Status::of(Code::kIo, errno, "the connection manager of rdma_cm has no %s: %s", what, std::strerror(errno));
}

// The first active port of the first adapter that has one. Not of iWARP: it has no datagrams, and what its queue
// pairs are connected by is a TCP connection of the kernel's.
Status open_port(Courier& c) {
  int count = 0;
  const char* iwarp = nullptr;
  ibv_device** devices = shadowib_ibv_get_device_list(&count);
  for (int d = 0; d < count && c.context == nullptr; ++d) {
    if (devices[d]->transport_type == IBV_TRANSPORT_IWARP) {
      iwarp = devices[d]->name;
      continue;
    }
    ibv_context* context = shadowib_ibv_open_device(devices[d]);
    ibv_device_attr attr{};
    if (context == nullptr) continue;
    if (shadowib_ibv_query_device(context, &attr) != 0) attr.phys_port_cnt = 0;
    for (std::uint8_t p = 1; p <= attr.phys_port_cnt && c.context == nullptr; ++p) {
      if (ibv_query_port(context, p, &c.port.attr) != 0 || c.port.attr.state != IBV_PORT_ACTIVE) continue;
      if (shadowib_ibv_query_gid(context, p, 0, &c.port.gid) != 0) continue;
      c.context = context;
      c.port.number = p;
      c.port.node_guid = shadowib_ibv_get_device_guid(devices[d]);
      c.port.device_index = shadowib_ibv_get_device_index(devices[d]);
    }
    if (c.context == nullptr) shadowib_ibv_close_device(context);
  }
  Status status;
  if (c.context == nullptr)
    status = iwarp != nullptr ? Status::of(Code::kRefused, ENODEV,
                                           "%.60s is an adapter for iWARP, whose queue pairs only the kernel's "
                                           "connection manager connects; use --backend ib2tcp",
                                           iwarp)
                              : Status::of(Code::kNotFound, ENODEV, "no RDMA device has an active port");
  if (devices != nullptr) shadowib_ibv_free_device_list(devices);
  return status;
}

Status make_objects(Courier& c) {
  SHADOWIB_TRY(open_port(c));
  c.memory.reset(new char[(kReceives + kSends) * kSlotBytes]());
  c.wake_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (c.wake_fd < 0) return failed("descriptor");
  if ((c.pd = shadowib_ibv_alloc_pd(c.context)) == nullptr) return failed("protection domain");
  c.mr = shadowib_ibv_reg_mr(c.pd, c.memory.get(), (kReceives + kSends) * kSlotBytes, IBV_ACCESS_LOCAL_WRITE);
  if (c.mr == nullptr) return failed("memory region");
  if ((c.channel = shadowib_ibv_create_comp_channel(c.context)) == nullptr) return failed("completion channel");
  if (::fcntl(c.channel->fd, F_SETFL, O_NONBLOCK) != 0) return failed("completion channel");
  c.cq = shadowib_ibv_create_cq(c.context, kReceives + kSends, nullptr, c.channel, 0);
  if (c.cq == nullptr) return failed("completion queue");
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = c.cq;
  init.cap = {kSends, kReceives, 1, 1, 0};
  init.qp_type = IBV_QPT_UD;
  if ((c.qp = shadowib_ibv_create_qp(c.pd, &init)) == nullptr) return failed("queue pair");
  c.address = {c.port.gid, c.port.attr.lid, c.qp->qp_num, random_bits() & 0x7fffffff, 0};
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = c.port.number;
  attr.qkey = c.address.qkey;
  if (shadowib_ibv_modify_qp(c.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) != 0)
    return failed("queue pair in INIT");
  for (std::uint32_t n = 0; n < kReceives; ++n)
    if (!post_receive(c, n)) return failed("receive");
  for (std::uint32_t n = 0; n < kSends; ++n) c.free_sends.push_back(kReceives + n);
  attr.qp_state = IBV_QPS_RTR;
  if (shadowib_ibv_modify_qp(c.qp, &attr, IBV_QP_STATE) != 0) return failed("queue pair in RTR");
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = 0;
  if (shadowib_ibv_modify_qp(c.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) != 0) return failed("queue pair in RTS");
  ibv_req_notify_cq(c.cq, 0);
  return {};
}

// A thread like the program's for a checkpoint, and deaf to its signals.
Status start_thread(Courier& c) {
  sigset_t all_but_ours, old;
  ::sigfillset(&all_but_ours);
  ::sigdelset(&all_but_ours, stop_signal());
  ::pthread_sigmask(SIG_SETMASK, &all_but_ours, &old);
  int rc = ::pthread_create(&c.thread, nullptr, serve, &c);
  ::pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (rc == 0) return {};
  return Status::of(Code::kIo, rc, "cannot start the thread of rdma_cm: %s; raise the limit on processes (ulimit -u)",
                    std::strerror(rc));
}

}  // namespace

Status start_courier(ManagerGuard& guard) {
  auto made = std::make_unique<Courier>();
  if (Status status = make_objects(*made); !status.ok()) {
    destroy_objects(*made);
    return status;
  }
  guard.unlock();  // a new thread takes memory of the program's
  Status status = start_thread(*made);
  guard.lock();
  if (status.ok())
    g_courier = made.release();
  else
    destroy_objects(*made);
  return status;
}

void stop_courier(ManagerGuard& guard) {
  Courier* c = g_courier;
  c->stopping = true;
  wake_courier();
  g_courier = nullptr;  // who comes meanwhile starts another
  guard.unlock();
  ::pthread_join(c->thread, nullptr);
  guard.lock();
  destroy_objects(*c);
  delete c;
}

bool courier_runs() { return g_courier != nullptr; }
const Port& courier_port() { return g_courier->port; }
const Address& courier_address() { return g_courier->address; }

PortGid gid_for(const sockaddr_in6& address) {
  const Courier& c = *g_courier;
  const ibv_gid exact = as_gid(address);
  PortGid best{-1, false};
  for (int i = 0; i < c.port.attr.gid_tbl_len; ++i) {
    ibv_gid gid;
    int type = 0;
    if (shadowib_ibv_query_gid(c.context, c.port.number, i, &gid) != 0 || gid.global.interface_id == 0 ||
        is_ipv4(gid) != is_ipv4(exact) ||
        shadowib_ibv_query_gid_type(c.context, c.port.number, static_cast<unsigned>(i), &type) != 0)
      continue;
    const bool is_exact = std::memcmp(&gid, &exact, sizeof(gid)) == 0;
    if (best.index < 0 || is_exact) best = {i, type != 0};
    if (is_exact && best.is_roce_v2) break;
  }
  return best;
}

void send_message(const Message& message, const Address& to) {
  if (g_courier->free_sends.empty())
    g_courier->waiting.push_back({message, to});
  else
    post_letter(*g_courier, {message, to});
}

void wake_courier() {
  std::uint64_t one = 1;
  [[maybe_unused]] auto n = ::write(g_courier->wake_fd, &one, sizeof(one));
}

void forget_courier() { g_courier = nullptr; }

}  // namespace shadowib::cm
