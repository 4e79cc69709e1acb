// Extended queue pairs: requests built by wr_start, wr_*, wr_set_* and posted as one by wr_complete.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

#include "shadowib/base/lock.h"

namespace shadowib {

struct ShadowQp;

// The batch under way, in the program's memory: a checkpoint between start and complete finds it again. Its vectors
// keep what they have grown to, so that building allocates nothing once a program has found its pace.
class SendBuilder {
 public:
  // The operations that ibv_create_qp_ex may ask for, for this type of queue pair.
  static std::uint64_t operations(ibv_qp_type type) {
    switch (type) {
      case IBV_QPT_UD:
        return kSends;
      case IBV_QPT_UC:
        return kSends | kWrites | kWindows;
      default:
        return kOperations;
    }
  }
  static constexpr std::uint64_t kSends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
  static constexpr std::uint64_t kWrites = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
  static constexpr std::uint64_t kWindows = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
  static constexpr std::uint64_t kOperations = kSends | kWrites | kWindows | IBV_QP_EX_WITH_SEND_WITH_INV |
                                               IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                               IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

  explicit SendBuilder(const ibv_qp_cap& cap) : cap_(cap) {}

  // The program holds the lock from here to complete or abort.
  void start() SHADOWIB_NO_THREAD_SAFETY_ANALYSIS;
  // Begins the next request; the setters below complete it. Its elements are none until set.
  ibv_send_wr& add(ibv_wr_opcode opcode, std::uint64_t wr_id, unsigned flags);
  ibv_send_wr& last() { return requests_.back().wr; }
  void set_list(std::size_t count, const ibv_sge* list);
  // Copied here and now: the program may reuse its buffers at once.
  void set_inline(std::size_t count, const ibv_data_buf* buffers);
  // Posts all or nothing, and ends. 0 or an errno: the first thing that was wrong.
  int complete(ShadowQp& qp) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS;
  void abort() SHADOWIB_NO_THREAD_SAFETY_ANALYSIS;

 private:
  struct Request {
    ibv_send_wr wr;
    std::size_t first_element, first_byte;  // of what set_list and set_inline have put down
    std::uint32_t inline_bytes;
    bool is_inline;
  };
  int post(ShadowQp& qp);

  SpinLock lock_;  // from start to complete or abort: the program holds it, taken outside of any Inside
  ibv_qp_cap cap_;
  int error_ = 0;
  std::vector<Request> requests_;
  std::vector<ibv_sge> elements_;
  std::vector<char> bytes_;
};

// Sets the functions of a queue pair the program is about to see: those of `operations`; others go on refusing.
void offer_builders(ShadowQp& qp, std::uint64_t operations);

}  // namespace shadowib
