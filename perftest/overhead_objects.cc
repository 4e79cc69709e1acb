#include "perftest/overhead_objects.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "perftest/plain_host.h"
#include "shadowib/abi/backend.h"

namespace shadowib::perftest {
namespace {

// Connected to itself: `lid` is its own port's.
void to_state(const BackendOps& ops, ibv_qp* qp, std::uint16_t lid, ibv_qp_state state, int mask) {
  ibv_qp_attr attr{};
  attr.qp_state = state;
  attr.port_num = 1;
  attr.path_mtu = IBV_MTU_1024;
  attr.ah_attr.dlid = lid;
  attr.ah_attr.port_num = 1;
  attr.dest_qp_num = qp->qp_num;
  attr.max_rd_atomic = attr.max_dest_rd_atomic = 1;
  attr.timeout = 14;
  attr.retry_cnt = attr.rnr_retry = 7;
  if (int error = ops.modify_qp(qp, &attr, mask); error != 0) errno = error, die("modify_qp");
}

void connect(const BackendOps& ops, ibv_qp* qp, std::uint16_t lid) {
  const bool connected = qp->qp_type != IBV_QPT_UD;
  constexpr int kReceive = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                           IBV_QP_MIN_RNR_TIMER;
  constexpr int kSend = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  const int access = connected ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY;
  to_state(ops, qp, lid, IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | access);
  to_state(ops, qp, lid, IBV_QPS_RTR, IBV_QP_STATE | (connected ? kReceive : 0));
  to_state(ops, qp, lid, IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN | (connected ? kSend : 0));
}

ibv_qp* make_qp(const BackendOps& ops, ibv_pd* pd, const Objects& o, const Options& options, std::uint16_t lid) {
  const Mode mode = options.mode;
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = o.cq;
  attr.srq = o.srq;
  attr.qp_type = mode == Mode::kUd ? IBV_QPT_UD : IBV_QPT_RC;
  attr.cap = {16, 16, 1, 1, 0};
  if (options.signal_every > 1) attr.cap.max_send_wr = 2 * static_cast<std::uint32_t>(options.signal_every);
  if (mode == Mode::kUcx) attr.cap = {4 * kUcxBatch, 16, 2, 1, 64};
  ibv_qp* qp = ops.create_qp(pd, &attr);
  if (qp == nullptr) die("create_qp");
  connect(ops, qp, lid);
  return qp;
}

ibv_ah* make_ah(const BackendOps& ops, ibv_pd* pd) {
  ibv_ah_attr attr{};
  attr.dlid = 1;
  attr.port_num = 1;
  ibv_ah* ah = ops.create_ah(pd, &attr);
  if (ah == nullptr) die("create_ah");
  return ah;
}

ibv_srq* make_srq(const BackendOps& ops, ibv_pd* pd) {
  ibv_srq_init_attr init{nullptr, {4 * kUcxBatch, 1, 0}};
  ibv_srq* srq = ops.create_srq(pd, &init);
  if (srq == nullptr) die("create_srq");
  return srq;
}

Objects make(const BackendOps& ops, ibv_context* context, const Options& options, std::uint16_t lid) {
  if (context == nullptr) die("open_device");
  ibv_pd* pd = ops.alloc_pd(context);
  Objects o{};
  o.cq = ops.create_cq(context, 64, nullptr, nullptr, 0);
  if (pd == nullptr || o.cq == nullptr) die("objects");
  if (options.mode == Mode::kSrq || options.mode == Mode::kUcx) o.srq = make_srq(ops, pd);
  void* memory = ::mmap(nullptr, 4096ul * options.mrs, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) die("mmap");
  for (int i = 0; i < options.mrs; ++i) {
    o.mrs.push_back(ops.reg_mr(pd, static_cast<char*>(memory) + 4096 * i, 4096, 0, IBV_ACCESS_LOCAL_WRITE));
    if (o.mrs.back() == nullptr) die("reg_mr");
  }
  for (int i = 0; i < options.qps; ++i) {
    o.qps.push_back(make_qp(ops, pd, o, options, lid));
    if (options.mode == Mode::kUd) o.ahs.push_back(make_ah(ops, pd));
  }
  return o;
}

// libibverbs' functions by the names that backends have for them.
BackendOps by_verbs(Mode mode) {
  BackendOps ops{};
  ops.alloc_pd = ibv_alloc_pd;
  ops.reg_mr = [](ibv_pd* pd, void* address, size_t bytes, uint64_t, int access) {
    return ibv_reg_mr(pd, address, bytes, static_cast<unsigned>(access));
  };
  ops.create_cq = ibv_create_cq;
  ops.create_srq = ibv_create_srq;
  ops.create_ah = ibv_create_ah;
  ops.create_qp = ibv_create_qp;
  ops.modify_qp = ibv_modify_qp;
  if (mode != Mode::kExtended) return ops;
  ops.create_cq = [](ibv_context* context, int cqe, void*, ibv_comp_channel*, int) {
    ibv_cq_init_attr_ex attr{};
    attr.cqe = static_cast<uint32_t>(cqe);
    attr.wc_flags = IBV_WC_STANDARD_FLAGS;
    ibv_cq_ex* cq = ibv_create_cq_ex(context, &attr);
    return cq != nullptr ? ibv_cq_ex_to_cq(cq) : nullptr;
  };
  ops.create_qp = [](ibv_pd* pd, ibv_qp_init_attr* plain) {
    ibv_qp_init_attr_ex attr{};
    attr.send_cq = plain->send_cq;
    attr.recv_cq = plain->recv_cq;
    attr.cap = plain->cap;
    attr.qp_type = plain->qp_type;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.pd = pd;
    attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
    return ibv_create_qp_ex(pd->context, &attr);
  };
  return ops;
}

}  // namespace

void die(const char* what) {
  std::fprintf(stderr, "shim_overhead: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

Objects make_native(const Options& options) {
  static HostServices host = plain_host();
  static BackendOps ops;
  void* library = ::dlopen(options.backend, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) errno = ENOENT, die(::dlerror());
  auto entry = reinterpret_cast<BackendEntry>(::dlsym(library, "shadowib_backend_entry"));
  if (entry == nullptr || entry(&host, &ops) != 0) die("shadowib_backend_entry");
  ibv_context* context = ops.open_device(ops.get_device_list(nullptr)[0]);
  if (context == nullptr) die("open_device");
  context->ops.post_send = ops.post_send;
  context->ops.post_recv = ops.post_recv;
  context->ops.post_srq_recv = ops.post_srq_recv;
  context->ops.poll_cq = ops.poll_cq;
  return make(ops, context, options, 1);
}

Objects make_by_verbs(const Options& options) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list == nullptr || count == 0) die("no RDMA device");
  ibv_context* context = ibv_open_device(list[0]);
  ibv_free_device_list(list);
  ibv_port_attr port{};
  if (context == nullptr || ibv_query_port(context, 1, &port) != 0) die("ibv_query_port");
  Objects o = make(by_verbs(options.mode), context, options, port.lid);
  if (options.mode != Mode::kExtended) return o;
  o.extended_cq = reinterpret_cast<ibv_cq_ex*>(o.cq);
  for (ibv_qp* qp : o.qps) o.extended_qps.push_back(ibv_qp_to_qp_ex(qp));
  return o;
}

}  // namespace shadowib::perftest
