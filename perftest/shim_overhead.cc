// What one post_recv + post_send + polling both completions costs, natively and through the shim, on the null
// backend.
//
//   shim_overhead native NULL_BACKEND.so [options]    the backend called directly, as a provider would be
//   shim_overhead verbs [options]                     libibverbs as found: run it under the shim
// Options: --qps N --mrs N --iterations N --repeats N. Prints one JSON line: ns (median of the repeats), mallocs and,
// if the kernel counts them, instructions per iteration. The loop is function measured_loop, for callgrind's
// --toggle-collect.
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "shadowib/abi/backend.h"

// --- mallocs of the whole process, by interposition

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}
namespace {
std::atomic<unsigned long> g_mallocs{0};
}
extern "C" {
__attribute__((visibility("default"))) void* malloc(size_t n) {
  ++g_mallocs;
  return __libc_malloc(n);
}
__attribute__((visibility("default"))) void* calloc(size_t n, size_t m) {
  ++g_mallocs;
  return __libc_calloc(n, m);
}
__attribute__((visibility("default"))) void* realloc(void* p, size_t n) {
  ++g_mallocs;
  return __libc_realloc(p, n);
}
__attribute__((visibility("default"))) void* aligned_alloc(size_t a, size_t n) {
  ++g_mallocs;
  return __libc_memalign(a, n);
}
}

namespace {

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "shim_overhead: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

struct Options {
  const char* backend = nullptr;  // native if set
  int qps = 1, mrs = 1, repeats = 5;
  long iterations = 200000;
};

struct Objects {
  ibv_cq* cq;
  std::vector<ibv_qp*> qps;
  std::vector<ibv_mr*> mrs;
};

ibv_qp_init_attr qp_attributes(ibv_cq* cq) {
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = cq;
  attr.qp_type = IBV_QPT_RC;
  attr.cap = {16, 16, 1, 1, 0};
  return attr;
}

void to_state(ibv_qp* qp, ibv_qp_state state, int mask, int (*modify)(ibv_qp*, ibv_qp_attr*, int)) {
  ibv_qp_attr attr{};
  attr.qp_state = state;
  attr.port_num = 1;
  attr.path_mtu = IBV_MTU_1024;
  attr.ah_attr.dlid = 1;
  attr.ah_attr.port_num = 1;
  attr.dest_qp_num = qp->qp_num;
  attr.max_rd_atomic = attr.max_dest_rd_atomic = 1;
  attr.timeout = 14;
  attr.retry_cnt = attr.rnr_retry = 7;
  if (int error = modify(qp, &attr, mask); error != 0) errno = error, die("modify_qp");
}

void connect(ibv_qp* qp, int (*modify)(ibv_qp*, ibv_qp_attr*, int)) {
  to_state(qp, IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, modify);
  to_state(qp, IBV_QPS_RTR,
           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
               IBV_QP_MIN_RNR_TIMER,
           modify);
  to_state(
      qp, IBV_QPS_RTS,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
      modify);
}

char* buffer_of(int mrs) {
  void* memory = ::mmap(nullptr, 4096ul * mrs, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) die("mmap");
  return static_cast<char*>(memory);
}

// --- native: the backend's own objects, reached through the inlines of verbs.h as a provider's would be

shadowib::HostServices native_host() {
  shadowib::HostServices host{};
  host.abi_version = shadowib::kBackendAbiVersion;
  host.set_errno = [](int value) { errno = value; };
  host.map = [](size_t n) -> void* {
    void* p = ::mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
  };
  host.unmap = [](void* p, size_t n) { ::munmap(p, n); };
  host.own_descriptor = [](int fd) { return fd; };
  host.close_descriptor = [](int fd) { ::close(fd); };
  return host;
}

Objects make_native(const Options& options) {
  static shadowib::HostServices host = native_host();
  static shadowib::BackendOps ops;
  void* library = ::dlopen(options.backend, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) errno = ENOENT, die(::dlerror());
  auto entry = reinterpret_cast<shadowib::BackendEntry>(::dlsym(library, "shadowib_backend_entry"));
  if (entry == nullptr || entry(&host, &ops) != 0) die("shadowib_backend_entry");
  int count = 0;
  ibv_context* context = ops.open_device(ops.get_device_list(&count)[0]);
  context->ops.post_send = ops.post_send;
  context->ops.post_recv = ops.post_recv;
  context->ops.poll_cq = ops.poll_cq;
  ibv_pd* pd = ops.alloc_pd(context);
  Objects o{};
  o.cq = ops.create_cq(context, 64, nullptr, nullptr, 0);
  char* memory = buffer_of(options.mrs);
  for (int i = 0; i < options.mrs; ++i) o.mrs.push_back(ops.reg_mr(pd, memory + 4096 * i, 4096, 0, 1));
  for (int i = 0; i < options.qps; ++i) {
    ibv_qp_init_attr attr = qp_attributes(o.cq);
    o.qps.push_back(ops.create_qp(pd, &attr));
    connect(o.qps.back(), ops.modify_qp);
  }
  return o;
}

Objects make_by_verbs(const Options& options) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list == nullptr || count == 0) die("no RDMA device");
  ibv_context* context = ibv_open_device(list[0]);
  if (context == nullptr) die("ibv_open_device");
  ibv_free_device_list(list);
  ibv_pd* pd = ibv_alloc_pd(context);
  Objects o{};
  o.cq = ibv_create_cq(context, 64, nullptr, nullptr, 0);
  if (pd == nullptr || o.cq == nullptr) die("objects");
  char* memory = buffer_of(options.mrs);
  for (int i = 0; i < options.mrs; ++i) {
    o.mrs.push_back(ibv_reg_mr(pd, memory + 4096 * i, 4096, IBV_ACCESS_LOCAL_WRITE));
    if (o.mrs.back() == nullptr) die("ibv_reg_mr");
  }
  for (int i = 0; i < options.qps; ++i) {
    ibv_qp_init_attr attr = qp_attributes(o.cq);
    o.qps.push_back(ibv_create_qp(pd, &attr));
    if (o.qps.back() == nullptr) die("ibv_create_qp");
    connect(o.qps.back(), ibv_modify_qp);
  }
  return o;
}

}  // namespace

// One iteration: post_recv, post_send, poll until both completed. Queue pairs and regions take turns.
extern "C" __attribute__((noinline)) void measured_loop(Objects* o, long iterations) {
  std::size_t qp_at = 0, mr_at = 0;
  for (long i = 0; i < iterations; ++i) {
    ibv_qp* qp = o->qps[qp_at];
    ibv_mr* mr = o->mrs[mr_at];
    if (++qp_at == o->qps.size()) qp_at = 0;
    if (++mr_at == o->mrs.size()) mr_at = 0;
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(mr->addr), 64, mr->lkey};
    ibv_recv_wr recv{1, nullptr, &sge, 1};
    ibv_recv_wr* bad_recv;
    if (ibv_post_recv(qp, &recv, &bad_recv) != 0) die("ibv_post_recv");
    ibv_send_wr send{};
    send.wr_id = 2;
    send.sg_list = &sge;
    send.num_sge = 1;
    send.opcode = IBV_WR_SEND;
    send.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad_send;
    if (ibv_post_send(qp, &send, &bad_send) != 0) die("ibv_post_send");
    ibv_wc wc[2];
    for (int got = 0; got < 2;) {
      int n = ibv_poll_cq(o->cq, 2, wc);
      if (n < 0) die("ibv_poll_cq");
      for (int k = 0; k < n; ++k)
        if (wc[k].status != IBV_WC_SUCCESS || wc[k].wr_id > 2) errno = EIO, die("a completion");
      got += n;
    }
  }
}

namespace {

// Of this thread's processor time: the loop never sleeps, and what other programs take is not its cost.
double now_ns() {
  timespec t;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

int open_instruction_counter() {
  perf_event_attr attr{};
  attr.size = sizeof(attr);
  attr.type = PERF_TYPE_HARDWARE;
  attr.config = PERF_COUNT_HW_INSTRUCTIONS;
  attr.exclude_kernel = attr.exclude_hv = 1;
  return static_cast<int>(::syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
}

Options parse(int argc, char** argv) {
  Options options;
  int at = 2;
  if (argc < 2) die("usage: shim_overhead native BACKEND | verbs [--qps N --mrs N --iterations N --repeats N]");
  if (std::strcmp(argv[1], "native") == 0 && argc > 2) options.backend = argv[at++];
  for (; at + 1 < argc; at += 2) {
    long value = std::atol(argv[at + 1]);
    if (!std::strcmp(argv[at], "--qps"))
      options.qps = static_cast<int>(value);
    else if (!std::strcmp(argv[at], "--mrs"))
      options.mrs = static_cast<int>(value);
    else if (!std::strcmp(argv[at], "--iterations"))
      options.iterations = value;
    else if (!std::strcmp(argv[at], "--repeats"))
      options.repeats = static_cast<int>(value);
    else
      errno = EINVAL, die(argv[at]);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  Options options = parse(argc, argv);
  Objects objects = options.backend ? make_native(options) : make_by_verbs(options);
  if (options.repeats > 1) measured_loop(&objects, options.iterations / 10);
  std::vector<double> ns;
  int counter = open_instruction_counter();
  unsigned long long before = 0, after = 0;
  unsigned long mallocs = g_mallocs;
  if (counter >= 0 && ::read(counter, &before, sizeof(before)) < 0) counter = -1;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    double start = now_ns();
    measured_loop(&objects, options.iterations);
    ns.push_back((now_ns() - start) / options.iterations);
    if (repeat == 0) mallocs = g_mallocs - mallocs;
  }
  if (counter >= 0 && ::read(counter, &after, sizeof(after)) < 0) counter = -1;
  std::sort(ns.begin(), ns.end());
  std::printf("{\"ns\": %.2f, \"ns_min\": %.2f, \"mallocs\": %.4f", ns[ns.size() / 2], ns[0],
              static_cast<double>(mallocs) / options.iterations);
  if (counter >= 0)
    std::printf(", \"instructions\": %.1f", double(after - before) / options.iterations / options.repeats);
  std::printf("}\n");
  std::fflush(stdout);
  ::_exit(0);
}
