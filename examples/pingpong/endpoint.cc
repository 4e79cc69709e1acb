// One end of the ping-pong: a plain verbs program that knows nothing of checkpoints, except that it prints where one
// met it.
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "examples/pingpong/options.h"

namespace pingpong {
namespace {

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }
void need(bool ok, const char* what) {
  if (!ok) fail(std::string(what) + ": " + std::strerror(errno));
}

struct Address {
  std::uint32_t lid, qp_num, psn;
  ibv_gid gid;
};

// Message content: every 8-byte word depends on direction, sequence number and position.
void fill(char* buffer, std::uint32_t size, std::uint64_t sequence, std::uint64_t salt) {
  std::uint64_t x = sequence * 0x9e3779b97f4a7c15ull + salt;
  std::memcpy(buffer, &sequence, 8);
  for (std::uint32_t i = 8; i < size; i += 8) {
    std::uint64_t word = x ^ (i * 0xbf58476d1ce4e5b9ull);
    std::memcpy(buffer + i, &word, size - i < 8 ? size - i : 8);
  }
}
bool matches(const char* buffer, std::uint32_t size, std::uint64_t sequence, std::uint64_t salt) {
  std::uint64_t x = sequence * 0x9e3779b97f4a7c15ull + salt;
  if (std::memcmp(buffer, &sequence, 8) != 0) return false;
  for (std::uint32_t i = 8; i < size; i += 8) {
    std::uint64_t word = x ^ (i * 0xbf58476d1ce4e5b9ull);
    if (std::memcmp(buffer + i, &word, size - i < 8 ? size - i : 8) != 0) return false;
  }
  return true;
}

std::atomic<std::uint64_t> g_done{0};
std::atomic<int> g_restarts{0};

// Where shadowib is present, says how far this end was when a checkpoint began and when a restart ended.
void on_checkpoint(int event, void*) {
  char line[96];
  if (event == 2) g_restarts.fetch_add(1);
  const char* name = event == 0 ? "checkpoint" : event == 1 ? "resume" : "restart";
  int n = std::snprintf(line, sizeof(line), "@%s %" PRIu64 "\n", name, g_done.load());
  [[maybe_unused]] auto written = ::write(STDOUT_FILENO, line, static_cast<std::size_t>(n));
}

class Endpoint {
 public:
  explicit Endpoint(const Options& options) : o_(options), client_(!options.host.empty()) {}

  int run() {
    open();
    exchange();
    connect();
    if (o_.progress)
      if (auto add =
              reinterpret_cast<int (*)(void (*)(int, void*), void*)>(::dlsym(RTLD_DEFAULT, "shadowib_add_hook")))
        add(on_checkpoint, nullptr);
    std::uint64_t bad = stream();
    if (o_.progress) say(("@done " + std::to_string(total_) + "\n").c_str());
    std::printf("%s: %" PRIu64 " messages of %u bytes each way, %" PRIu64 " wrong\n", client_ ? "client" : "server",
                total_, o_.size, bad);
    close();
    return bad == 0 ? 0 : 1;
  }

 private:
  std::uint64_t wanted() const { return o_.iterations != 0 ? o_.iterations : 1000; }

  void open() {
    int n = 0;
    ibv_device** list = ibv_get_device_list(&n);
    need(list != nullptr, "no RDMA device list");
    ibv_device* device = nullptr;
    for (int i = 0; i < n && device == nullptr; ++i)
      if (o_.device.empty() || o_.device == ibv_get_device_name(list[i])) device = list[i];
    if (device == nullptr) fail("no RDMA device " + o_.device);
    context_ = ibv_open_device(device);
    need(context_ != nullptr, "cannot open the device");
    ibv_free_device_list(list);
    pd_ = ibv_alloc_pd(context_);
    need(pd_ != nullptr, "no protection domain");
    stride_ = (o_.size + 63) & ~63u;
    memory_.resize(static_cast<std::size_t>(stride_) * (o_.rx_depth + o_.window));
    mr_ = ibv_reg_mr(pd_, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE);
    need(mr_ != nullptr, "no memory region");
    if (o_.events) {
      channel_ = ibv_create_comp_channel(context_);
      need(channel_ != nullptr, "no completion channel");
    }
    cq_ = ibv_create_cq(context_, static_cast<int>(o_.rx_depth + o_.window + 1), nullptr, channel_, 0);
    need(cq_ != nullptr, "no completion queue");
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.cap = {o_.window, o_.rx_depth, 1, 1, 0};
    init.qp_type = IBV_QPT_RC;
    qp_ = ibv_create_qp(pd_, &init);
    need(qp_ != nullptr, "no queue pair");
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = static_cast<std::uint8_t>(o_.ib_port);
    need(ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
         "INIT");
    for (std::uint32_t i = 0; i < o_.rx_depth; ++i) post_receive(i);
    ibv_port_attr port{};
    need(ibv_query_port(context_, static_cast<std::uint8_t>(o_.ib_port), &port) == 0, "cannot query the port");
    mine_ = {port.lid, qp_->qp_num, std::random_device{}() & 0xffffff, {}};
    if (o_.gid_index >= 0)
      need(ibv_query_gid(context_, static_cast<std::uint8_t>(o_.ib_port), o_.gid_index, &mine_.gid) == 0,
           "no such GID");
  }

  // Addresses go over a TCP connection that is closed before any data moves.
  void exchange() {
    int fd = client_ ? dial() : answer();
    need(::send(fd, &mine_, sizeof(mine_), 0) == sizeof(mine_), "cannot send the address");
    need(::recv(fd, &peer_, sizeof(peer_), MSG_WAITALL) == sizeof(peer_), "cannot receive the address");
    ready_socket_ = fd;
  }

  int dial() {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (::getaddrinfo(o_.host.c_str(), std::to_string(o_.port).c_str(), &hints, &found) != 0)
      fail("cannot resolve " + o_.host);
    int fd = -1;
    for (addrinfo* a = found; a != nullptr && fd < 0; a = a->ai_next) {
      fd = ::socket(a->ai_family, a->ai_socktype, 0);
      if (fd >= 0 && ::connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
        ::close(fd);
        fd = -1;
      }
    }
    ::freeaddrinfo(found);
    need(fd >= 0, "cannot connect");
    return fd;
  }

  int answer() {
    addrinfo hints{}, *found = nullptr;
    hints.ai_flags = AI_PASSIVE;
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    need(::getaddrinfo(nullptr, std::to_string(o_.port).c_str(), &hints, &found) == 0, "cannot resolve the port");
    int listener = ::socket(found->ai_family, SOCK_STREAM, 0);
    int one = 1;
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    need(::bind(listener, found->ai_addr, found->ai_addrlen) == 0 && ::listen(listener, 1) == 0, "cannot listen");
    ::freeaddrinfo(found);
    if (o_.progress) say("@listening 0\n");
    int fd = ::accept(listener, nullptr, nullptr);
    need(fd >= 0, "cannot accept");
    ::close(listener);
    return fd;
  }

  void connect() {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = o_.mtu == 256    ? IBV_MTU_256
                    : o_.mtu == 512  ? IBV_MTU_512
                    : o_.mtu == 1024 ? IBV_MTU_1024
                    : o_.mtu == 2048 ? IBV_MTU_2048
                                     : IBV_MTU_4096;
    attr.dest_qp_num = peer_.qp_num;
    attr.rq_psn = peer_.psn;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.ah_attr.dlid = static_cast<std::uint16_t>(peer_.lid);
    attr.ah_attr.port_num = static_cast<std::uint8_t>(o_.ib_port);
    if (o_.gid_index >= 0) {
      attr.ah_attr.is_global = 1;
      attr.ah_attr.grh.hop_limit = 1;
      attr.ah_attr.grh.dgid = peer_.gid;
      attr.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(o_.gid_index);
    }
    need(ibv_modify_qp(qp_, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
         "RTR");
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.sq_psn = mine_.psn;
    attr.max_rd_atomic = 1;
    need(ibv_modify_qp(qp_, &attr,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC) == 0,
         "RTS");
    char ready = 1;  // both ends are in RTS before the first message
    need(::send(ready_socket_, &ready, 1, 0) == 1 && ::recv(ready_socket_, &ready, 1, MSG_WAITALL) == 1,
         "peer not ready");
    ::close(ready_socket_);
    if (o_.events) need(ibv_req_notify_cq(cq_, 0) == 0, "cannot arm the completion queue");
  }

  char* receive_buffer(std::uint64_t i) { return memory_.data() + (i % o_.rx_depth) * stride_; }
  char* send_buffer(std::uint64_t i) { return memory_.data() + (o_.rx_depth + i % o_.window) * stride_; }

  void post_receive(std::uint64_t i) {
    ibv_sge sge{reinterpret_cast<std::uint64_t>(receive_buffer(i)), o_.size, mr_->lkey};
    ibv_recv_wr wr{i, nullptr, &sge, 1}, *bad;
    need(ibv_post_recv(qp_, &wr, &bad) == 0, "cannot post a receive");
  }
  void post_send(std::uint64_t i) {
    if (client_) decide_whether_last(i);
    fill(send_buffer(i), o_.size, i + 1 == total_ ? i | kLast : i, client_ ? 1 : 2);
    ibv_sge sge{reinterpret_cast<std::uint64_t>(send_buffer(i)), o_.size, mr_->lkey};
    ibv_send_wr wr{}, *bad;
    wr.wr_id = i | kSend;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    need(ibv_post_send(qp_, &wr, &bad) == 0, "cannot post a send");
  }

  // The client decides which message is the last, and marks it; until then both ends know of no total.
  void decide_whether_last(std::uint64_t i) {
    int restarts = g_restarts.load(std::memory_order_relaxed);
    if (restarts != seen_restarts_) {  // `iterations` more from the last restart on
      seen_restarts_ = restarts;
      from_ = i;
    }
    if (restarts >= o_.restarts && i + 1 >= from_ + wanted()) total_ = i + 1;
  }

  // Checks the message received as number i. Its mark tells the server where the end is.
  bool check(std::uint64_t i) {
    const char* buffer = receive_buffer(i);
    std::uint64_t stamp;
    std::memcpy(&stamp, buffer, sizeof(stamp));
    if (!client_ && (stamp & kLast) != 0) total_ = i + 1;
    return matches(buffer, o_.size, i + 1 == total_ ? i | kLast : i, client_ ? 2 : 1);
  }

  // The client keeps `window` messages on their way; the server answers each. Returns how many were wrong.
  std::uint64_t stream() {
    std::uint64_t posted = 0, sent = 0, received = 0, bad = 0, next_line = 0;
    while (received < total_ || sent < total_) {
      std::uint64_t may_post = client_ ? received + o_.window : received;
      while (posted < may_post && posted < total_ && posted - sent < o_.window) post_send(posted++);
      ibv_wc wc[32];
      int n = next_completions(wc, 32);
      for (int i = 0; i < n; ++i) {
        if (wc[i].status != IBV_WC_SUCCESS)
          fail(std::string("completion ") + std::to_string(wc[i].wr_id & ~kSend) +
               " failed: " + ibv_wc_status_str(wc[i].status));
        bool is_send = wc[i].wr_id & kSend;
        std::uint64_t expected = is_send ? sent : received;
        if ((wc[i].wr_id & ~kSend) != expected || (!is_send && wc[i].byte_len != o_.size)) ++bad;
        if (is_send) {
          ++sent;
          continue;
        }
        bad += !check(received);
        post_receive(received + o_.rx_depth);
        g_done.store(++received, std::memory_order_relaxed);
      }
      if (o_.progress && client_ && received >= next_line) {
        say(("@progress " + std::to_string(received) + "\n").c_str());
        next_line = received + wanted() / 100 + 1;
      }
    }
    return bad;
  }

  int next_completions(ibv_wc* wc, int capacity) {
    for (;;) {
      int n = ibv_poll_cq(cq_, capacity, wc);
      need(n >= 0, "cannot poll");
      if (n > 0) return n;
      if (!o_.events) continue;
      ibv_cq* cq;
      void* context;
      need(ibv_get_cq_event(channel_, &cq, &context) == 0, "no completion event");
      ibv_ack_cq_events(cq, 1);
      need(ibv_req_notify_cq(cq_, 0) == 0, "cannot arm the completion queue");
    }
  }

  void say(const char* line) { [[maybe_unused]] auto n = ::write(STDOUT_FILENO, line, std::strlen(line)); }

  void close() {
    need(ibv_destroy_qp(qp_) == 0 && ibv_destroy_cq(cq_) == 0, "cannot destroy the queues");
    if (channel_ != nullptr) need(ibv_destroy_comp_channel(channel_) == 0, "cannot destroy the channel");
    need(ibv_dereg_mr(mr_) == 0 && ibv_dealloc_pd(pd_) == 0 && ibv_close_device(context_) == 0, "cannot close");
  }

  static constexpr std::uint64_t kSend = 1ull << 63;  // in wr_id
  static constexpr std::uint64_t kLast = 1ull << 63;  // in a message's stamp
  std::uint64_t total_ = ~0ull;                       // known once the last message is decided on or seen
  std::uint64_t from_ = 0;
  int seen_restarts_ = 0;
  const Options& o_;
  const bool client_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_qp* qp_ = nullptr;
  std::uint32_t stride_ = 0;
  std::vector<char> memory_;
  Address mine_{}, peer_{};
  int ready_socket_ = -1;
};

}  // namespace

int run_endpoint(const Options& options) {
  try {
    return Endpoint(options).run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "shadowib-pingpong: %s\n", e.what());
    return 1;
  }
}

}  // namespace pingpong
