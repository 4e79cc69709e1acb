// A queue pair of our own that is connected to itself, for work that is nobody's: binding windows whose binder may be
// gone, and making sure that data has arrived.
#pragma once

#include "shadowib/objects/context.h"

namespace shadowib {

// Posts one request to a real queue pair without other requests under way, and takes its completion out of `cq`.
// Returns 0, the errno of the post, ETIMEDOUT after 5 s, or EIO if it fails.
int run_alone(ibv_qp* qp, ibv_cq* cq, ibv_send_wr* wr);

// Its real objects last as long as it does. One thread.
class Loopback {
 public:
  Loopback() = default;
  ~Loopback() { close(); }
  Loopback(const Loopback&) = delete;
  Loopback& operator=(const Loopback&) = delete;

  // In that real protection domain, which outlives it; closes what was open. 0 or an errno.
  int open(const ShadowContext& context, ibv_pd* pd);
  void close();
  int run(ibv_send_wr* wr) { return run_alone(qp_, cq_, wr); }
  ibv_qp* qp() const { return qp_; }
  ibv_cq* cq() const { return cq_; }

 private:
  int connect(const ShadowPort& port);
  int modify(ibv_qp_attr* attr, int mask);

  ibv_cq* cq_ = nullptr;
  ibv_qp* qp_ = nullptr;
};

}  // namespace shadowib
