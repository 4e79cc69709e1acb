#include "libraries/masterworker/tests/wires.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#undef ibv_query_port
#undef ibv_reg_mr

namespace shadowib::masterworker {
namespace {

ibv_device g_device{};
ibv_device* g_list[] = {&g_device, nullptr};
ibv_context g_context{};
ibv_pd g_domain{};
ibv_comp_channel g_channel{};
ibv_cq g_queue{};
ibv_srq g_shared{};
ibv_ah g_route{};
ibv_mr g_region{};
constexpr std::size_t kRouteHeader = 40;

int poll_cq(ibv_cq*, int most, ibv_wc* completions) {
  std::deque<ibv_wc>& waiting = Wires::get().completions_;
  int got = 0;
  for (; got < most && !waiting.empty(); ++got) {
    completions[got] = waiting.front();
    waiting.pop_front();
  }
  return got;
}

int post_receive(std::deque<Wires::Receive>& queue, ibv_recv_wr* request) {
  for (; request != nullptr; request = request->next) queue.push_back({request->wr_id, *request->sg_list});
  return 0;
}

int post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr**) {
  Wires& wires = Wires::get();
  Posted posted;
  posted.id = request->wr_id;
  posted.opcode = request->opcode;
  posted.flags = request->send_flags;
  if (request->num_sge != 0) posted.piece = *request->sg_list;
  for (int i = 0; request->opcode != IBV_WR_RDMA_READ && i < request->num_sge; ++i)
    posted.bytes.append(reinterpret_cast<const char*>(request->sg_list[i].addr), request->sg_list[i].length);
  if (qp->qp_type == IBV_QPT_UD) {
    if (wires.on_hello) {
      Hello hello;
      std::memcpy(&hello, posted.bytes.data(), sizeof(hello));
      wires.on_hello(hello);
      return 0;
    }
    Welcome welcome;
    std::memcpy(&welcome, posted.bytes.data(), sizeof(welcome));
    wires.answers.push_back(welcome);
    return 0;
  }
  posted.address = request->wr.rdma.remote_addr;
  Wires::Queue& queue = wires.queues_[qp->qp_num];
  if (queue.posted.size() + queue.untold == queue.depth) return ENOMEM;
  if (queue.asks_always) posted.flags |= IBV_SEND_SIGNALED;
  queue.posted.push_back(std::move(posted));
  if (wires.dead == qp->qp_num) wires.complete(qp->qp_num, IBV_WC_RETRY_EXC_ERR);
  if (wires.on_send) wires.on_send(qp->qp_num);
  return 0;
}

}  // namespace

Wires& Wires::get() {
  static Wires all;
  return all;
}

void Wires::hello(const Hello& hello) { ASSERT_TRUE(datagram(&hello, sizeof(hello))); }

bool Wires::welcome(const Welcome& welcome) { return datagram(&welcome, sizeof(welcome)); }

bool Wires::datagram(const void* message, std::uint32_t bytes) {
  if (datagrams_.empty()) return false;
  const Receive receive = datagrams_.front();
  datagrams_.pop_front();
  std::memcpy(reinterpret_cast<char*>(receive.piece.addr) + kRouteHeader, message, bytes);
  ibv_wc wc{};
  wc.wr_id = receive.id;
  wc.byte_len = kRouteHeader + bytes;
  completions_.push_back(wc);
  return true;
}

void Wires::message(std::uint32_t queue_pair, const Header& header, const std::string& body) {
  ASSERT_FALSE(shared_.empty());
  const Receive receive = shared_.front();
  shared_.pop_front();
  char* at = reinterpret_cast<char*>(receive.piece.addr);
  std::memcpy(at, &header, sizeof(header));
  std::memcpy(at + sizeof(header), body.data(), body.size());
  ibv_wc wc{};
  wc.wr_id = receive.id;
  wc.qp_num = queue_pair;
  wc.byte_len = static_cast<std::uint32_t>(sizeof(header) + body.size());
  completions_.push_back(wc);
}

std::size_t Wires::under_way() const {
  std::size_t all = datagrams_.size() + shared_.size() + completions_.size();
  for (const auto& [number, queue] : queues_) all += queue.posted.size();
  return all;
}

std::size_t Wires::room() const { return static_cast<std::size_t>(g_queue.cqe); }

Posted Wires::complete(std::uint32_t queue_pair, ibv_wc_status status) {
  Queue& queue = queues_[queue_pair];
  if (queue.posted.empty()) {
    ADD_FAILURE() << "nothing is under way";
    return {};
  }
  Posted first = std::move(queue.posted.front());
  queue.posted.pop_front();
  if (first.opcode == IBV_WR_RDMA_READ && status == IBV_WC_SUCCESS)
    std::memcpy(reinterpret_cast<void*>(first.piece.addr), reinterpret_cast<const void*>(first.address),
                first.piece.length);
  if (status == IBV_WC_SUCCESS && (first.flags & IBV_SEND_SIGNALED) == 0) {
    ++queue.untold;
    return first;
  }
  queue.untold = 0;
  ibv_wc wc{};
  wc.wr_id = first.id;
  wc.status = status;
  wc.qp_num = queue_pair;
  completions_.push_back(wc);
  return first;
}

}  // namespace shadowib::masterworker

using shadowib::masterworker::Wires;
using namespace shadowib::masterworker;  // NOLINT: the device's functions are C's

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  if (count != nullptr) *count = 1;
  return g_list;
}
void ibv_free_device_list(ibv_device**) {}
ibv_context* ibv_open_device(ibv_device*) {
  g_context.ops.poll_cq = poll_cq;
  g_context.ops.req_notify_cq = [](ibv_cq*, int) { return 0; };
  g_context.ops.post_send = post_send;
  g_context.ops.post_recv = [](ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr**) {
    Wires& wires = Wires::get();
    return post_receive(qp->qp_type == IBV_QPT_UD ? wires.datagrams_ : wires.shared_, request);
  };
  g_context.ops.post_srq_recv = [](ibv_srq*, ibv_recv_wr* request, ibv_recv_wr**) {
    return post_receive(Wires::get().shared_, request);
  };
  g_domain.context = g_queue.context = g_shared.context = &g_context;
  g_channel.fd = -1;
  return &g_context;
}
ibv_pd* ibv_alloc_pd(ibv_context*) { return &g_domain; }
ibv_comp_channel* ibv_create_comp_channel(ibv_context*) { return &g_channel; }
ibv_cq* ibv_create_cq(ibv_context*, int entries, void*, ibv_comp_channel*, int) {
  g_queue.cqe = entries;
  return &g_queue;
}
int ibv_resize_cq(ibv_cq* queue, int entries) {
  if (entries > Wires::get().most_completions) return EINVAL;
  queue->cqe = entries;
  return 0;
}
int ibv_get_cq_event(ibv_comp_channel*, ibv_cq**, void**) { return -1; }
void ibv_ack_cq_events(ibv_cq*, unsigned) {}
int ibv_query_port(ibv_context*, std::uint8_t, struct _compat_ibv_port_attr* attributes) {
  auto* port = reinterpret_cast<ibv_port_attr*>(attributes);
  port->lid = 1;
  port->active_mtu = IBV_MTU_4096;
  port->link_layer = IBV_LINK_LAYER_INFINIBAND;
  return 0;
}
int ibv_query_gid(ibv_context*, std::uint8_t, int, ibv_gid*) { return -1; }
ibv_mr* ibv_reg_mr(ibv_pd*, void*, std::size_t, int) { return &g_region; }
ibv_mr* ibv_reg_mr_iova2(ibv_pd*, void*, std::size_t, std::uint64_t, unsigned) { return &g_region; }
int ibv_dereg_mr(ibv_mr*) { return 0; }
ibv_srq* ibv_create_srq(ibv_pd*, ibv_srq_init_attr*) { return &g_shared; }
int ibv_destroy_srq(ibv_srq*) { return 0; }
ibv_qp* ibv_create_qp(ibv_pd*, ibv_qp_init_attr* init) {
  if (!Wires::get().has_queue_pairs || init->cap.max_inline_data > Wires::get().most_inline) return nullptr;
  auto* qp = new ibv_qp{};
  qp->context = &g_context;
  qp->qp_type = init->qp_type;
  qp->qp_num = ++Wires::get().next_queue_pair_;
  Wires::Queue& queue = Wires::get().queues_[qp->qp_num];
  queue.depth = init->cap.max_send_wr;
  queue.asks_always = init->sq_sig_all != 0;
  return qp;
}
int ibv_destroy_qp(ibv_qp* qp) {
  Wires::get().queues_.erase(qp->qp_num);
  delete qp;
  return 0;
}
int ibv_modify_qp(ibv_qp*, ibv_qp_attr*, int) { return 0; }
ibv_ah* ibv_create_ah(ibv_pd*, ibv_ah_attr*) { return &g_route; }
int ibv_destroy_ah(ibv_ah*) { return 0; }

}  // extern "C"
