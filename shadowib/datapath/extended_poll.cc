#include "shadowib/datapath/extended_poll.h"

#include <errno.h>

#include "shadowib/abi/slots.h"
#include "shadowib/datapath/datapath.h"

namespace shadowib {
namespace {

ShadowCq& shadow(ibv_cq_ex* program) { return *ShadowCq::of(ibv_cq_ex_to_cq(program)); }

// One completion is taken at a time: nothing is left behind by a program that ends before it has read all there is,
// and nothing is held that a checkpoint would have to know of, but for the fields of the one it stands at.
int step(ShadowCq& cq) {
  const int n = poll_cq(&cq.cq, 1, &cq.current);
  if (n <= 0) return n == 0 ? ENOENT : EIO;
  cq.extended.status = cq.current.status;
  cq.extended.wr_id = cq.current.wr_id;
  return 0;
}

// The program holds the lock from here to end_poll.
int start_poll(ibv_cq_ex* program, ibv_poll_cq_attr* attr) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  ShadowCq& cq = shadow(program);
  if (attr->comp_mask != 0) return EINVAL;
  if (!cq.single_threaded) cq.polling.lock();
  const int rc = step(cq);
  if (rc != 0 && !cq.single_threaded) cq.polling.unlock();
  return rc;
}

int next_poll(ibv_cq_ex* program) { return step(shadow(program)); }

void end_poll(ibv_cq_ex* program) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  ShadowCq& cq = shadow(program);
  if (!cq.single_threaded) cq.polling.unlock();
}

}  // namespace

void offer_extended_poll(ShadowCq& cq, bool single_threaded) {
  cq.single_threaded = single_threaded;
  ibv_cq_ex& ex = cq.extended;
  fill_refusing_slots(&ex);
  ex.start_poll = start_poll;
  ex.next_poll = next_poll;
  ex.end_poll = end_poll;
  ex.read_opcode = [](ibv_cq_ex* c) { return shadow(c).current.opcode; };
  ex.read_vendor_err = [](ibv_cq_ex* c) { return shadow(c).current.vendor_err; };
  ex.read_byte_len = [](ibv_cq_ex* c) { return shadow(c).current.byte_len; };
  ex.read_imm_data = [](ibv_cq_ex* c) { return shadow(c).current.imm_data; };
  ex.read_qp_num = [](ibv_cq_ex* c) { return shadow(c).current.qp_num; };
  ex.read_src_qp = [](ibv_cq_ex* c) { return shadow(c).current.src_qp; };
  ex.read_wc_flags = [](ibv_cq_ex* c) { return shadow(c).current.wc_flags; };
  ex.read_slid = [](ibv_cq_ex* c) { return std::uint32_t{shadow(c).current.slid}; };
  ex.read_sl = [](ibv_cq_ex* c) { return shadow(c).current.sl; };
  ex.read_dlid_path_bits = [](ibv_cq_ex* c) { return shadow(c).current.dlid_path_bits; };
}

}  // namespace shadowib
