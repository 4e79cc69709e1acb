#include "libraries/masterworker/adapter.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace shadowib::masterworker {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kMostIdleBytes = 64 << 20;  // of buffers kept for the next large message

template <typename T>
T* made(T* object, const char* call) {
  if (object == nullptr) give_up("%s: %s", call, std::strerror(errno));
  return object;
}

void done(int result, const char* call) {
  if (result != 0) give_up("%s: %s", call, std::strerror(result > 0 ? result : errno));
}

std::int64_t read(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
}

}  // namespace

std::int64_t now_ns() { return read(CLOCK_MONOTONIC); }
std::int64_t tick_ns() { return read(CLOCK_MONOTONIC_COARSE); }

std::uint64_t random_number() {
  std::uint64_t number = 0;
  while (number == 0)
    if (::getrandom(&number, sizeof(number), 0) != sizeof(number)) number = 0;
  return number;
}

Adapter::Adapter(int completions) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list == nullptr || count == 0)
    give_up(
        "there is no RDMA device. Start the program with `shadowib run --job NAME -- PROGRAM`, or link it with topcc "
        "--seq");
  context = made(ibv_open_device(list[0]), "ibv_open_device");
  ibv_free_device_list(list);
  domain = made(ibv_alloc_pd(context), "ibv_alloc_pd");
  channel_ = made(ibv_create_comp_channel(context), "ibv_create_comp_channel");
  queue = made(ibv_create_cq(context, completions, nullptr, channel_, 0), "ibv_create_cq");
  ibv_port_attr port{};
  done(ibv_query_port(context, 1, &port), "ibv_query_port");
  lid_ = port.lid;
  mtu_ = port.active_mtu;
  global_ = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  static constexpr union ibv_gid kNone {};
  for (int i = 0; i < port.gid_tbl_len; ++i) {  // on RoCE the last: of an IP address
    union ibv_gid at {};
    if (ibv_query_gid(context, 1, i, &at) != 0 || std::memcmp(&at, &kNone, sizeof(at)) == 0) continue;
    gid_index_ = i;
    gid_ = at;
    if (!global_) break;
  }
}

Adapter::~Adapter() {
  for (auto& [id, buffer] : buffers_) {
    ibv_dereg_mr(buffer.region);
    ::munmap(buffer.data, buffer.bytes);
  }
  // A process that ends leaves the others to the adapter.
}

Buffer Adapter::map(std::size_t bytes, int access) {
  Buffer buffer;
  buffer.bytes = (bytes + kPage - 1) / kPage * kPage;
  void* memory = ::mmap(nullptr, buffer.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) give_up("no memory for a buffer of %zu bytes", bytes);
  buffer.data = static_cast<char*>(memory);
  buffer.region = made(ibv_reg_mr(domain, memory, buffer.bytes, access), "ibv_reg_mr");
  return buffer;
}

Buffer& Adapter::take(std::size_t bytes) {
  const auto fit = idle_.lower_bound(bytes);
  if (fit != idle_.end() && fit->first <= 2 * bytes + kPage) {
    Buffer& buffer = buffers_[fit->second];
    idle_bytes_ -= fit->first;
    idle_.erase(fit);
    buffer.users = 1;
    buffer.update = 0;
    return buffer;
  }
  Buffer buffer = map(bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  buffer.id = ++next_buffer_;
  buffer.users = 1;
  return buffers_[buffer.id] = buffer;
}

Buffer* Adapter::find(std::uint32_t id) {
  const auto at = buffers_.find(id);
  return at == buffers_.end() ? nullptr : &at->second;
}

void Adapter::put(std::uint32_t id) {
  Buffer* buffer = find(id);
  if (buffer == nullptr || buffer->users == 0 || --buffer->users != 0) return;
  if (idle_bytes_ + buffer->bytes <= kMostIdleBytes) {
    idle_bytes_ += buffer->bytes;
    idle_.emplace(buffer->bytes, id);
    return;
  }
  ibv_dereg_mr(buffer->region);
  ::munmap(buffer->data, buffer->bytes);
  buffers_.erase(id);
}

Place Adapter::place_of(std::uint32_t queue_pair) const {
  Place place;
  place.queue_pair = queue_pair;
  place.lid = lid_;
  place.global = global_;
  place.gid = gid_;
  return place;
}

ibv_ah_attr Adapter::route_to(const Place& place) const {
  ibv_ah_attr attr{};
  attr.dlid = place.lid;
  attr.port_num = 1;
  if (place.global == 0) return attr;
  attr.is_global = 1;
  attr.grh.dgid = place.gid;
  attr.grh.sgid_index = static_cast<std::uint8_t>(gid_index_);
  attr.grh.hop_limit = 64;
  return attr;
}

ibv_qp* Adapter::reliable(ibv_qp_init_attr& init, std::uint32_t least_inline) const {
  init.qp_type = IBV_QPT_RC;
  init.send_cq = init.recv_cq = queue;
  init.cap.max_send_sge = 2;
  const ibv_qp_cap asked = init.cap;
  for (const std::uint32_t bytes : {kInlineBytes, least_inline}) {
    init.cap = asked;
    init.cap.max_inline_data = bytes;
    if (ibv_qp* qp = ibv_create_qp(domain, &init); qp != nullptr) return qp;
  }
  return nullptr;
}

void Adapter::to_init(ibv_qp* qp, int access) const {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = static_cast<unsigned>(access);
  done(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
       "ibv_modify_qp to INIT");
}

void Adapter::connect(ibv_qp* qp, const Place& there, std::uint32_t their_first, std::uint32_t our_first) const {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = mtu_;
  attr.dest_qp_num = there.queue_pair;
  attr.rq_psn = their_first;
  attr.max_dest_rd_atomic = 4;
  attr.min_rnr_timer = 12;
  attr.ah_attr = route_to(there);
  done(ibv_modify_qp(qp, &attr,
                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
       "ibv_modify_qp to RTR");
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = our_first;
  attr.timeout = 14;
  attr.retry_cnt = 7;
  attr.rnr_retry = 7;  // for ever: a worker in a long task takes nothing
  attr.max_rd_atomic = 4;
  done(ibv_modify_qp(qp, &attr,
                     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                         IBV_QP_MAX_QP_RD_ATOMIC),
       "ibv_modify_qp to RTS");
}

ibv_qp* Adapter::datagrams(std::uint32_t key, int receives) const {
  ibv_qp_init_attr init{};
  init.qp_type = IBV_QPT_UD;
  init.send_cq = init.recv_cq = queue;
  init.cap = {16, static_cast<std::uint32_t>(receives), 1, 1, 0};
  init.sq_sig_all = 1;
  ibv_qp* qp = made(ibv_create_qp(domain, &init), "ibv_create_qp (UD)");
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qkey = key;
  done(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "ibv_modify_qp (UD)");
  attr.qp_state = IBV_QPS_RTR;
  done(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "ibv_modify_qp (UD)");
  attr.qp_state = IBV_QPS_RTS;
  done(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "ibv_modify_qp (UD)");
  return qp;
}

bool Adapter::make_room(int entries) {
  if (entries <= queue->cqe) return true;
  return ibv_resize_cq(queue, 2 * entries) == 0 || ibv_resize_cq(queue, entries) == 0;
}

int Adapter::poll(ibv_wc* completions, int most) {
  const int got = ibv_poll_cq(queue, most, completions);
  if (got < 0) give_up("ibv_poll_cq failed");
  return got;
}

void Adapter::arm() { done(ibv_req_notify_cq(queue, 0), "ibv_req_notify_cq"); }

bool Adapter::sleep(int timeout_ms, int other) {
  pollfd watched[2] = {{channel_->fd, POLLIN, 0}, {other, POLLIN, 0}};
  if (::poll(watched, 2, timeout_ms) <= 0) return false;
  if ((watched[0].revents & POLLIN) != 0) {
    ibv_cq* which = nullptr;
    void* context_of = nullptr;
    if (ibv_get_cq_event(channel_, &which, &context_of) == 0) ibv_ack_cq_events(which, 1);
  }
  return (watched[1].revents & (POLLIN | POLLHUP)) != 0;
}

}  // namespace shadowib::masterworker
