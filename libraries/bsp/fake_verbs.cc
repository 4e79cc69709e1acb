#include "libraries/bsp/fake_verbs.h"

#include <shadowib/shadowib.h>

#include <cstdlib>
#include <cstring>

#include "libraries/bsp/greeting.h"
#include "libraries/bsp/word.h"

using shadowib::bsp::Greeting;
using shadowib::bsp::Slot;
using shadowib::bsp::Word;

int fake_processes;
std::vector<ibv_wc> fake_completions;
unsigned fake_reads;
std::vector<std::uint32_t> fake_told;

namespace {

ibv_device fake_device;
ibv_context fake_context;
std::size_t fake_taken;
std::uint32_t fake_keys;
std::vector<ibv_qp*> fake_queue_pairs;
Greeting fake_own;

int fake_peer(const ibv_qp* qp) { return static_cast<int>(qp->qp_num) - 100; }

// The peer has done as much: its word lies in our slot, and the completion tells of it.
void fake_answer(const ibv_qp* qp, const ibv_send_wr& wr) {
  const int peer = fake_peer(qp);
  if (wr.imm_data >= 1u << 30) return fake_told.push_back(wr.imm_data);
  if (wr.sg_list->length == sizeof(Word)) {
    Word word;
    std::memcpy(&word, reinterpret_cast<const void*>(wr.sg_list->addr), sizeof(word));
    word.bytes = 0;
    auto* slots = reinterpret_cast<Slot*>(fake_own.slots_address);
    slots[2 * peer + (word.superstep & 1)].word = word;
  }
  ibv_wc completion{};
  completion.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  completion.imm_data = static_cast<std::uint32_t>(peer);
  completion.qp_num = qp->qp_num;
  fake_completions.push_back(completion);
}

int fake_post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr**) {
  for (; wr != nullptr; wr = wr->next) {
    if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) fake_answer(qp, *wr);
    if (wr->opcode == IBV_WR_RDMA_READ) {  // peers' memory is ours
      ++fake_reads;
      std::memcpy(reinterpret_cast<void*>(wr->sg_list->addr), reinterpret_cast<const void*>(wr->wr.rdma.remote_addr),
                  wr->sg_list->length);
    }
    if ((wr->send_flags & IBV_SEND_SIGNALED) == 0) continue;
    ibv_wc completion{};
    completion.wr_id = wr->wr_id;
    completion.opcode = IBV_WC_RDMA_WRITE;
    completion.qp_num = qp->qp_num;
    fake_completions.push_back(completion);
  }
  return 0;
}

int fake_poll_cq(ibv_cq*, int most, ibv_wc* wc) {
  int n = 0;
  for (; n < most && fake_taken < fake_completions.size(); ++n) wc[n] = fake_completions[fake_taken++];
  if (fake_taken == fake_completions.size()) fake_completions.clear(), fake_taken = 0;
  return n;
}

int fake_post_srq_recv(ibv_srq*, ibv_recv_wr*, ibv_recv_wr**) { return 0; }

}  // namespace

extern "C" {
ibv_device** ibv_get_device_list(int* count) {
  static ibv_device* list[2] = {&fake_device, nullptr};
  *count = 1;
  return list;
}
void ibv_free_device_list(ibv_device**) {}
const char* ibv_get_device_name(ibv_device*) { return "fake"; }
ibv_context* ibv_open_device(ibv_device*) {
  fake_context.ops.post_send = fake_post_send;
  fake_context.ops.poll_cq = fake_poll_cq;
  fake_context.ops.post_srq_recv = fake_post_srq_recv;
  return &fake_context;
}
#undef ibv_query_port
int ibv_query_port(ibv_context*, std::uint8_t, _compat_ibv_port_attr* attr) {
  reinterpret_cast<ibv_port_attr*>(attr)->active_mtu = IBV_MTU_4096;
  return 0;
}
int ibv_query_device(ibv_context*, ibv_device_attr*) { return 0; }
int ibv_query_gid(ibv_context*, std::uint8_t, int, ibv_gid*) { return 0; }
ibv_pd* ibv_alloc_pd(ibv_context*) { return new ibv_pd{}; }
ibv_comp_channel* ibv_create_comp_channel(ibv_context*) { return new ibv_comp_channel{}; }
ibv_cq* ibv_create_cq(ibv_context* context, int, void*, ibv_comp_channel*, int) {
  auto* cq = new ibv_cq{};
  cq->context = context;
  return cq;
}
ibv_srq* ibv_create_srq(ibv_pd*, ibv_srq_init_attr*) {
  auto* srq = new ibv_srq{};
  srq->context = &fake_context;
  return srq;
}
ibv_qp* ibv_create_qp(ibv_pd*, ibv_qp_init_attr*) {
  auto* qp = new ibv_qp{};
  qp->context = &fake_context;
  fake_queue_pairs.push_back(qp);
  qp->qp_num = 100 + static_cast<std::uint32_t>(fake_queue_pairs.size());  // process 0's peers are 1, 2, ...
  return qp;
}
int ibv_modify_qp(ibv_qp*, ibv_qp_attr*, int) { return 0; }
#undef ibv_reg_mr
ibv_mr* ibv_reg_mr(ibv_pd*, void*, std::size_t, int) {
  auto* mr = new ibv_mr{};
  mr->lkey = mr->rkey = ++fake_keys;
  return mr;
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* memory, std::size_t bytes, std::uint64_t, unsigned access) {
  return ibv_reg_mr(pd, memory, bytes, static_cast<int>(access));
}
int ibv_dereg_mr(ibv_mr* mr) {
  delete mr;
  return 0;
}
int ibv_get_cq_event(ibv_comp_channel*, ibv_cq**, void**) { return -1; }
void ibv_ack_cq_events(ibv_cq*, unsigned) {}
const char* ibv_wc_status_str(ibv_wc_status) { return ""; }

int shadowib_publish(const char* name, const void* value, std::size_t bytes) {
  if (std::strstr(name, ".ready") == nullptr)
    shadowib::bsp::decode(static_cast<const std::byte*>(value), bytes, kFakeEpoch, 0, fake_processes, &fake_own);
  return 0;
}
int shadowib_lookup(const char* name, void* value, std::size_t, int) {
  if (std::strstr(name, ".ready") != nullptr) return 0;
  Greeting peer = fake_own;
  peer.process = static_cast<std::uint32_t>(std::atoi(std::strrchr(name, '.') + 1));
  const std::vector<std::byte> encoded = encode(peer);
  std::memcpy(value, encoded.data(), encoded.size());
  return static_cast<int>(encoded.size());
}
const char* shadowib_last_error(void) { return ""; }
}
