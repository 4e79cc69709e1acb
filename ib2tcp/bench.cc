// ib2tcp_bench: what the backend itself costs, without the shim. Two processes on this host; figures as fi_pingpong
// counts them: latency is half a round trip, bandwidth in MB/s (10^6 bytes).
#include <infiniband/verbs.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ib2tcp/testing/process.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"

namespace shadowib::ib2tcp::testing {
namespace {

// Shared by both processes: an exchange small enough for two, and the addresses a program would swap by itself.
struct Shared {
  std::atomic<int> arrived[8];
  struct {
    std::uint16_t lid;
    std::uint32_t qpn, rkey;
    std::uint64_t address;
  } side[2];
  struct {
    std::atomic<int> ready;
    char key[64];
    char value[1024];
    std::size_t bytes;
  } published[2];
};

struct Options {
  std::string transport = "auto";
  std::size_t size = 64;
  int iterations = 100000;
  int window = 1;  // 1: ping-pong; more: one-way with that many outstanding
  bool write = false, pin = true, helper = true, events = false;
};

void barrier(Shared& shared, int index) {
  ++shared.arrived[index];
  while (shared.arrived[index] < 2) ::sched_yield();
}

class Side {
 public:
  Side(Shared& shared, const Options& options, int rank)
      : shared_(shared), o_(options), rank_(rank), memory_(2 * std::max<std::size_t>(options.size, 64) * 32) {
    auto exchange = std::make_shared<FakeExchange>();
    ProcessOptions process_options;
    process_options.transport = options.transport;
    process_options.helper = options.helper;
    process_ = std::make_unique<Process>(exchange, process_options);
    connect(*exchange);
  }

  void connect(FakeExchange& exchange) {
    const BackendOps& ops = process_->ops();
    ibv_device** list = ops.get_device_list(nullptr);
    ibv_context* context = ops.open_device(list[0]);
    ibv_port_attr port;
    ops.query_port(context, 1, &port, sizeof(port));
    ibv_pd* pd = ops.alloc_pd(context);
    mr_ = ops.reg_mr(pd, memory_.data(), memory_.size(), reinterpret_cast<std::uint64_t>(memory_.data()), 7);
    channel_ = ops.create_comp_channel(context);
    cq_ = ops.create_cq(context, 256, nullptr, channel_, 0);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.cap = {64, 64, 1, 1, 64};
    init.qp_type = IBV_QPT_RC;
    qp_ = ops.create_qp(pd, &init);
    for (const auto& [key, value] : exchange.values)
      if (key.rfind("ib2tcp/ep/", 0) == 0) {
        std::snprintf(shared_.published[rank_].key, 64, "%s", key.c_str());
        SHADOWIB_CHECK(value.size() <= sizeof(shared_.published[rank_].value), "a record of %zu bytes", value.size());
        std::memcpy(shared_.published[rank_].value, value.data(), value.size());
        shared_.published[rank_].bytes = value.size();
      }
    shared_.side[rank_] = {port.lid, qp_->qp_num, mr_->rkey, reinterpret_cast<std::uint64_t>(memory_.data())};
    barrier(shared_, 0);
    auto& other = shared_.published[1 - rank_];
    exchange.values[other.key] = std::string(other.value, other.bytes);
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = 7;
    check(ops.modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_4096;
    attr.dest_qp_num = shared_.side[1 - rank_].qpn;
    attr.ah_attr.dlid = shared_.side[1 - rank_].lid;
    attr.max_dest_rd_atomic = 1;
    check(ops.modify_qp(qp_, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
          "RTR");
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    check(ops.modify_qp(qp_, &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC),
          "RTS");
    for (int i = 0; i < 64; ++i) post_recv();
    barrier(shared_, 1);
  }

  // Nanoseconds for all iterations.
  std::int64_t run() {
    std::int64_t start = 0;
    int warm = std::max(o_.iterations / 10, 1);
    for (int i = 0; i < o_.iterations + warm; ++i) {
      if (i == warm) start = monotonic_ns();
      if (o_.window == 1) {
        if (rank_ == 0) {
          post_send(true);
          wait_recv();
        } else {
          wait_recv();
          post_send(true);
        }
      } else if (rank_ == 0) {
        while (outstanding_ >= o_.window) poll();
        post_send(true);
      } else {
        wait_recv();
      }
    }
    while (outstanding_ > 0) poll();
    std::int64_t took = monotonic_ns() - start;
    for (int i = 0; i < 10; ++i) process_->ops().progress(0);
    arrive_and_poll(2);
    return took;
  }
  void arrive_and_poll(int index) {
    ++shared_.arrived[index];
    while (shared_.arrived[index] < 2) process_->ops().progress(0);
  }

 private:
  static void check(int rc, const char* what) {
    if (rc == 0) return;
    std::fprintf(stderr, "modify to %s failed: %s\n", what, std::strerror(rc));
    std::exit(1);
  }
  void post_recv() {
    ibv_sge sge{reinterpret_cast<std::uint64_t>(memory_.data()), static_cast<std::uint32_t>(o_.size), mr_->lkey};
    ibv_recv_wr wr{0, nullptr, &sge, 1};
    ibv_recv_wr* bad;
    if (process_->ops().post_recv(qp_, &wr, &bad) != 0) std::abort();
  }
  void post_send(bool signaled) {
    ibv_sge sge{reinterpret_cast<std::uint64_t>(memory_.data()) + o_.size, static_cast<std::uint32_t>(o_.size),
                mr_->lkey};
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    if (signaled) wr.send_flags |= IBV_SEND_SIGNALED;
    if (o_.size <= 64) wr.send_flags |= IBV_SEND_INLINE;
    ibv_send_wr* bad;
    if (process_->ops().post_send(qp_, &wr, &bad) != 0) std::abort();
    ++outstanding_;
  }
  void poll() {
    ibv_wc wc[16];
    int n = process_->ops().poll_cq(cq_, 16, wc);
    for (int i = 0; i < n; ++i) {
      if (wc[i].status != IBV_WC_SUCCESS) {
        std::fprintf(stderr, "completion with %s\n", ibv_wc_status_str(wc[i].status));
        std::exit(1);
      }
      if (wc[i].opcode == IBV_WC_RECV) {
        ++received_;
        post_recv();
      } else {
        --outstanding_;
      }
    }
  }
  void wait_recv() {
    while (received_ == 0) poll();
    --received_;
  }

  Shared& shared_;
  const Options& o_;
  int rank_;
  std::vector<char> memory_;
  std::unique_ptr<Process> process_;
  ibv_mr* mr_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_qp* qp_ = nullptr;
  int outstanding_ = 0, received_ = 0;
};

void pin(int rank) {
  cpu_set_t allowed, one;
  ::sched_getaffinity(0, sizeof(allowed), &allowed);
  int wanted = rank;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed) && wanted-- == 0) {
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      ::sched_setaffinity(0, sizeof(one), &one);
      return;
    }
}

int usage() {
  std::puts(
      "usage: ib2tcp_bench [--transport tcp|shm] [--size BYTES] [--iterations N] [--window N] [--no-pin] "
      "[--no-helper]\n"
      "Ping-pong (window 1) or one-way stream between two processes on this host, without the shim.");
  return 2;
}

int bench(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    std::string arg = argv[i];
    auto value = [&]() -> const char* { return i + 1 < argc ? argv[++i] : ""; };
    if (arg == "--transport")
      o.transport = value();
    else if (arg == "--size")
      o.size = std::strtoul(value(), nullptr, 10);
    else if (arg == "--iterations")
      o.iterations = std::atoi(value());
    else if (arg == "--window")
      o.window = std::atoi(value());
    else if (arg == "--no-pin")
      o.pin = false;
    else if (arg == "--no-helper")
      o.helper = false;
    else
      return usage();
  }
  if (o.window < 1 || o.window > 32 || o.iterations < 1 || o.size == 0) return usage();
  auto* shared = static_cast<Shared*>(
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  pid_t child = ::fork();
  int rank = child == 0 ? 1 : 0;
  if (o.pin) pin(rank);
  Side side(*shared, o, rank);
  std::int64_t ns = side.run();
  if (rank == 1) ::_exit(0);
  int status = 0;
  ::waitpid(child, &status, 0);
  double seconds = static_cast<double>(ns) / 1e9;
  double transfers = static_cast<double>(o.iterations) * (o.window == 1 ? 2 : 1);
  std::printf("%-5s %8zu bytes window %2d  %9.3f us/xfer %10.2f MB/s\n", o.transport.c_str(), o.size, o.window,
              seconds * 1e6 / transfers, transfers * static_cast<double>(o.size) / seconds / 1e6);
  return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing

int main(int argc, char** argv) { return shadowib::ib2tcp::testing::bench(argc, argv); }
