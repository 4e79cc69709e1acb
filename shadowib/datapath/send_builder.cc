#include "shadowib/datapath/send_builder.h"

#include <errno.h>

#include <algorithm>

#include "hooks/threads/stop.h"
#include "shadowib/abi/slots.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/objects/backend.h"

namespace shadowib {
namespace {

// Memory is taken inside the shim: a thread that is stopped must hold no lock of the heap.
template <typename T>
__attribute__((noinline, cold)) void grow(std::vector<T>& vector, std::size_t size) {
  Inside inside;
  vector.reserve(std::max({size, 2 * vector.capacity(), std::size_t{8}}));
}
template <typename T>
void make_room(std::vector<T>& vector, std::size_t size) {
  if (__builtin_expect(size > vector.capacity(), 0)) grow(vector, size);
}

ShadowQp& shadow(ibv_qp_ex* program) { return *ShadowQp::of(&program->qp_base); }
SendBuilder& builder(ibv_qp_ex* program) { return *shadow(program).builder; }
ibv_send_wr& add(ibv_qp_ex* program, ibv_wr_opcode opcode) {
  return builder(program).add(opcode, program->wr_id, program->wr_flags);
}

void add_rdma(ibv_qp_ex* program, ibv_wr_opcode opcode, std::uint32_t rkey, std::uint64_t address) {
  ibv_send_wr& wr = add(program, opcode);
  wr.wr.rdma.remote_addr = address;
  wr.wr.rdma.rkey = rkey;
}

void add_atomic(ibv_qp_ex* program, ibv_wr_opcode opcode, std::uint32_t rkey, std::uint64_t address,
                std::uint64_t compare_add, std::uint64_t swap) {
  ibv_send_wr& wr = add(program, opcode);
  wr.wr.atomic.remote_addr = address;
  wr.wr.atomic.compare_add = compare_add;
  wr.wr.atomic.swap = swap;
  wr.wr.atomic.rkey = rkey;
}

}  // namespace

void SendBuilder::start() {
  lock_.lock();
  error_ = 0;
  requests_.clear();
  elements_.clear();
  bytes_.clear();
}

ibv_send_wr& SendBuilder::add(ibv_wr_opcode opcode, std::uint64_t wr_id, unsigned flags) {
  make_room(requests_, requests_.size() + 1);
  Request& request = requests_.emplace_back();  // all zeros
  request.wr.wr_id = wr_id;
  request.wr.opcode = opcode;
  request.wr.send_flags = flags & ~static_cast<unsigned>(IBV_SEND_INLINE);  // said by the setter
  request.first_element = elements_.size();
  request.first_byte = bytes_.size();
  return request.wr;
}

void SendBuilder::set_list(std::size_t count, const ibv_sge* list) {
  Request& request = requests_.back();
  if (count > cap_.max_send_sge) {
    error_ = error_ != 0 ? error_ : EINVAL;
    return;
  }
  make_room(elements_, request.first_element + count);
  elements_.resize(request.first_element);
  for (std::size_t i = 0; i < count; ++i) elements_.push_back(list[i]);
  request.wr.num_sge = static_cast<int>(count);
}

void SendBuilder::set_inline(std::size_t count, const ibv_data_buf* buffers) {
  Request& request = requests_.back();
  request.is_inline = true;
  bytes_.resize(request.first_byte);
  for (std::size_t i = 0; i < count; ++i) {
    const char* from = static_cast<const char*>(buffers[i].addr);
    if (buffers[i].length > cap_.max_inline_data ||
        bytes_.size() - request.first_byte + buffers[i].length > cap_.max_inline_data) {
      error_ = error_ != 0 ? error_ : EINVAL;
      return;
    }
    make_room(bytes_, bytes_.size() + buffers[i].length);
    bytes_.insert(bytes_.end(), from, from + buffers[i].length);
  }
  request.inline_bytes = static_cast<std::uint32_t>(bytes_.size() - request.first_byte);
}

int SendBuilder::post(ShadowQp& qp) {
  // One element for the bytes of each request that is inline; only now do the vectors stay where they are.
  for (Request& request : requests_)
    if (request.is_inline) {
      request.first_element = elements_.size();
      elements_.push_back(
          {reinterpret_cast<std::uint64_t>(bytes_.data()) + request.first_byte, request.inline_bytes, 0});
      request.wr.num_sge = request.inline_bytes == 0 ? 0 : 1;
      request.wr.send_flags |= IBV_SEND_INLINE;
    }
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    requests_[i].wr.sg_list = elements_.data() + requests_[i].first_element;
    requests_[i].wr.next = i + 1 < requests_.size() ? &requests_[i + 1].wr : nullptr;
  }
  return post_send_whole(qp, &requests_[0].wr, requests_.size());
}

int SendBuilder::complete(ShadowQp& qp) {
  Inside inside;
  int rc = error_;
  if (rc == 0 && !requests_.empty()) rc = post(qp);
  lock_.unlock();
  return rc;
}

void SendBuilder::abort() { lock_.unlock(); }

void offer_builders(ShadowQp& qp, std::uint64_t operations) {
  ibv_qp_ex& ex = qp.qp;
  fill_refusing_slots(&ex);
  ex.wr_start = [](ibv_qp_ex* q) { builder(q).start(); };
  ex.wr_complete = [](ibv_qp_ex* q) { return builder(q).complete(shadow(q)); };
  ex.wr_abort = [](ibv_qp_ex* q) { builder(q).abort(); };
  ex.wr_set_sge = [](ibv_qp_ex* q, std::uint32_t lkey, std::uint64_t address, std::uint32_t length) {
    const ibv_sge sge{address, length, lkey};
    builder(q).set_list(length == 0 ? 0 : 1, &sge);
  };
  ex.wr_set_sge_list = [](ibv_qp_ex* q, std::size_t n, const ibv_sge* list) { builder(q).set_list(n, list); };
  ex.wr_set_inline_data = [](ibv_qp_ex* q, void* address, std::size_t length) {
    const ibv_data_buf buffer{address, length};
    builder(q).set_inline(1, &buffer);
  };
  ex.wr_set_inline_data_list = [](ibv_qp_ex* q, std::size_t n, const ibv_data_buf* list) {
    builder(q).set_inline(n, list);
  };
  if (qp.is_datagram())
    ex.wr_set_ud_addr = [](ibv_qp_ex* q, ibv_ah* ah, std::uint32_t remote_qpn, std::uint32_t remote_qkey) {
      builder(q).last().wr.ud = {ah, remote_qpn, remote_qkey};
    };
  if (qp.is_initiator())
    ex.wr_set_xrc_srqn = [](ibv_qp_ex* q, std::uint32_t number) {
      builder(q).last().qp_type.xrc.remote_srqn = number;
    };
  if (operations & IBV_QP_EX_WITH_SEND) ex.wr_send = [](ibv_qp_ex* q) { add(q, IBV_WR_SEND); };
  if (operations & IBV_QP_EX_WITH_SEND_WITH_IMM)
    ex.wr_send_imm = [](ibv_qp_ex* q, __be32 imm) { add(q, IBV_WR_SEND_WITH_IMM).imm_data = imm; };
  if (operations & IBV_QP_EX_WITH_SEND_WITH_INV)
    ex.wr_send_inv = [](ibv_qp_ex* q, std::uint32_t rkey) { add(q, IBV_WR_SEND_WITH_INV).invalidate_rkey = rkey; };
  if (operations & IBV_QP_EX_WITH_LOCAL_INV)
    ex.wr_local_inv = [](ibv_qp_ex* q, std::uint32_t rkey) { add(q, IBV_WR_LOCAL_INV).invalidate_rkey = rkey; };
  if (operations & IBV_QP_EX_WITH_BIND_MW)
    ex.wr_bind_mw = [](ibv_qp_ex* q, ibv_mw* mw, std::uint32_t rkey, const ibv_mw_bind_info* info) {
      add(q, IBV_WR_BIND_MW).bind_mw = {mw, rkey, *info};
    };
  if (operations & IBV_QP_EX_WITH_RDMA_WRITE)
    ex.wr_rdma_write = [](ibv_qp_ex* q, std::uint32_t rkey, std::uint64_t address) {
      add_rdma(q, IBV_WR_RDMA_WRITE, rkey, address);
    };
  if (operations & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
    ex.wr_rdma_write_imm = [](ibv_qp_ex* q, std::uint32_t rkey, std::uint64_t address, __be32 imm) {
      add_rdma(q, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, address);
      builder(q).last().imm_data = imm;
    };
  if (operations & IBV_QP_EX_WITH_RDMA_READ)
    ex.wr_rdma_read = [](ibv_qp_ex* q, std::uint32_t rkey, std::uint64_t address) {
      add_rdma(q, IBV_WR_RDMA_READ, rkey, address);
    };
  if (operations & IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP)
    ex.wr_atomic_cmp_swp = [](ibv_qp_ex* q, std::uint32_t rkey, std::uint64_t address, std::uint64_t compare,
                              std::uint64_t swap) {
      add_atomic(q, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, address, compare, swap);
    };
  if (operations & IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
    ex.wr_atomic_fetch_add = [](ibv_qp_ex* q, std::uint32_t rkey, std::uint64_t address, std::uint64_t value) {
      add_atomic(q, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, address, value, 0);
    };
}

}  // namespace shadowib
