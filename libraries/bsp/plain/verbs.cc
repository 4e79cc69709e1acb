// The verbs that this library calls, over sockets: for programs without the shim, and on processors without a driver.
//
// One device, "plain". A queue pair is a connection to a peer, on this host or, by SHADOWIB_BSP_ADDRESS, on another;
// the device's GID is the address at which this process listens. A WRITE is complete when the connection
// has taken its bytes; a READ is answered when the peer is in a call of the library. No thread: requests and answers
// move while completions are polled. Frames are the same between all architectures.
// Any process that reaches the address may connect; one that does not know the run's epoch is not heard. Nothing is
// encrypted.
#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "libraries/bsp/complain.h"
#include "libraries/bsp/little.h"

namespace shadowib::bsp {
namespace {

enum class Frame : std::uint32_t { kWrite = 1, kWriteImmediate, kRead, kAnswer };

struct Head {
  Little<Frame> kind;
  Little<std::uint32_t> immediate, key, bytes;
  Little<std::uint64_t> address;  // of the receiver; of an answer: the requester's number of the READ
};

struct Hello {
  Little<std::uint64_t> epoch;
  Little<std::uint32_t> from, to;  // queue pairs
};

struct Reading {
  void* memory;
  std::uint64_t wr_id;
};

struct Connection {
  int fd = -1;
  std::uint32_t number = 0, there = 0;  // of queue pairs
  std::vector<char> out, in;
  std::size_t sent = 0;
  std::deque<ibv_wc> written;  // complete once `out` is gone
  std::map<std::uint64_t, Reading> reads;
  bool is_broken = false, waits_for_room = false;
};

struct Region {
  char* begin;
  std::size_t bytes;
};

// Where a process listens: its GID and LID.
struct Place {
  ibv_gid address{};  // IPv4 as ::ffff:a.b.c.d
  std::uint16_t port = 0;
};

bool operator<(const Place& a, const Place& b) {
  const int order = std::memcmp(a.address.raw, b.address.raw, sizeof(a.address.raw));
  return order != 0 ? order < 0 : a.port < b.port;
}

ibv_device device;
verbs_context whole;  // <infiniband/verbs.h> looks in front of a context
ibv_context& context = whole.context;
ibv_cq the_cq;
ibv_srq the_srq;
int listener = -1, poller = -1;
Place own;
std::uint64_t epoch = 0, next_read = 1;
std::uint32_t next_key = 1;
std::map<std::uint32_t, Region> regions;
std::map<std::uint32_t, Connection*> connections;  // by the number of the queue pair
std::deque<ibv_wc> done;

void no_block(int fd) {
  const int one = 1;
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

void watch(int fd, bool also_room, bool is_new) {
  epoll_event event{};
  event.events = EPOLLIN | (also_room ? EPOLLOUT : 0u);
  event.data.fd = fd;
  ::epoll_ctl(poller, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event);
}

constexpr std::uint8_t kIpv4[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// False: the text is no address.
bool parse(const char* text, ibv_gid* address) {
  *address = {};
  if (::inet_pton(AF_INET6, text, address->raw) == 1) return true;
  std::memcpy(address->raw, kIpv4, sizeof(kIpv4));
  return ::inet_pton(AF_INET, text, address->raw + sizeof(kIpv4)) == 1;
}

// Of a socket. IPv4 has sockets of its own, as a host may have no IPv6.
struct Address {
  explicit Address(const Place& place) {
    if (std::memcmp(place.address.raw, kIpv4, sizeof(kIpv4)) == 0) {
      v4.sin_family = AF_INET;
      std::memcpy(&v4.sin_addr, place.address.raw + sizeof(kIpv4), sizeof(v4.sin_addr));
      v4.sin_port = htons(place.port);
      length = sizeof(v4);
    } else {
      v6.sin6_family = AF_INET6;
      std::memcpy(&v6.sin6_addr, place.address.raw, sizeof(v6.sin6_addr));
      v6.sin6_port = htons(place.port);
      length = sizeof(v6);
    }
  }
  sockaddr* get() { return &any; }
  std::uint16_t port() const { return ntohs(any.sa_family == AF_INET ? v4.sin_port : v6.sin6_port); }

  union {
    sockaddr any;
    sockaddr_in v4;
    sockaddr_in6 v6{};
  };
  socklen_t length = 0;
};

void complete(std::uint32_t number, ibv_wc_opcode opcode, std::uint64_t wr_id, std::uint32_t immediate = 0) {
  ibv_wc wc{};
  wc.opcode = opcode;
  wc.wr_id = wr_id;
  wc.imm_data = immediate;
  wc.qp_num = number;
  done.push_back(wc);
}

// The peer is gone.
void give_up(Connection& c) {
  if (c.is_broken) return;
  c.is_broken = true;
  if (c.fd >= 0) ::epoll_ctl(poller, EPOLL_CTL_DEL, c.fd, nullptr);
  ibv_wc wc{};
  wc.status = IBV_WC_RETRY_EXC_ERR;
  wc.qp_num = c.number;
  done.push_back(wc);
}

void flush(Connection& c) {
  while (c.fd >= 0 && !c.is_broken && c.sent < c.out.size()) {
    const ssize_t n = ::send(c.fd, c.out.data() + c.sent, c.out.size() - c.sent, MSG_NOSIGNAL);
    if (n > 0) {
      c.sent += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      return give_up(c);
    }
  }
  const bool waits = c.sent < c.out.size();
  if (!waits && c.fd >= 0) {
    c.out.clear();
    c.sent = 0;
    for (const ibv_wc& wc : c.written) done.push_back(wc);
    c.written.clear();
  }
  if (c.fd >= 0 && !c.is_broken && waits != c.waits_for_room) watch(c.fd, c.waits_for_room = waits, false);
}

void put(Connection& c, const void* bytes, std::size_t count) {
  const char* at = static_cast<const char*>(bytes);
  if (count > 0) c.out.insert(c.out.end(), at, at + count);
}

char* local(std::uint64_t address) { return reinterpret_cast<char*>(static_cast<std::uintptr_t>(address)); }

// Registered memory of this process that a peer names.
char* checked(const Head& head) {
  if (head.bytes == 0) return nullptr;
  const auto found = regions.find(head.key);
  char* const at = local(head.address);
  if (found == regions.end() || at < found->second.begin ||
      static_cast<std::size_t>(at - found->second.begin) > found->second.bytes ||
      head.bytes > found->second.bytes - static_cast<std::size_t>(at - found->second.begin))
    fail("a process reaches for memory that is not registered here; was it freed or removed?");
  return at;
}

void obey(Connection& c, const Head& head, const char* data) {
  switch (head.kind) {
    case Frame::kWrite:
    case Frame::kWriteImmediate:
      if (char* at = checked(head)) std::memcpy(at, data, head.bytes);
      if (head.kind == Frame::kWriteImmediate) complete(c.number, IBV_WC_RECV_RDMA_WITH_IMM, 0, head.immediate);
      return;
    case Frame::kRead: {
      Head answer{Frame::kAnswer, 0, 0, head.bytes, 0};
      std::memcpy(&answer.address, data, sizeof(answer.address));
      put(c, &answer, sizeof(answer));
      put(c, checked(head), head.bytes);
      return flush(c);
    }
    case Frame::kAnswer: {
      const auto read = c.reads.find(head.address);
      if (read == c.reads.end()) fail("a process answers what nobody has asked");
      if (head.bytes > 0) std::memcpy(read->second.memory, data, head.bytes);
      complete(c.number, IBV_WC_RDMA_READ, read->second.wr_id);
      c.reads.erase(read);
      return;
    }
  }
  fail("a process speaks another protocol");
}

// Bytes of a frame behind its head: a READ carries its number, and no data.
std::size_t tail_of(const Head& head) {
  return head.kind == Frame::kRead ? sizeof(head.address) : std::size_t{head.bytes};
}

void receive(Connection& c) {
  constexpr std::size_t kBlock = 256 << 10;
  bool ended = false;
  for (;;) {
    const std::size_t before = c.in.size();
    c.in.resize(before + kBlock);
    const ssize_t n = ::recv(c.fd, c.in.data() + before, kBlock, 0);
    c.in.resize(before + (n > 0 ? static_cast<std::size_t>(n) : 0));
    if (n < 0 && errno == EINTR) continue;
    ended = n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
    if (n < static_cast<ssize_t>(kBlock)) break;
  }
  std::size_t at = 0;
  for (Head head; c.in.size() - at >= sizeof(head);) {
    std::memcpy(&head, c.in.data() + at, sizeof(head));
    if (c.in.size() - at - sizeof(head) < tail_of(head)) break;
    obey(c, head, c.in.data() + at + sizeof(head));
    at += sizeof(head) + tail_of(head);
  }
  c.in.erase(c.in.begin(), c.in.begin() + static_cast<std::ptrdiff_t>(at));
  if (ended) give_up(c);
}

void attach(Connection& c, int fd) {
  no_block(fd);
  c.fd = fd;
  watch(fd, false, true);
  flush(c);
}

bool receive_all(int fd, void* memory, std::size_t bytes) {
  return ::recv(fd, memory, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
}

void accept_one() {
  const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) return;
  const timeval patience{1, 0};  // a stranger may say nothing
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  Hello hello;
  if (receive_all(fd, &hello, sizeof(hello)) && hello.epoch == epoch) {
    const auto found = connections.find(hello.to);
    if (found != connections.end() && found->second->fd < 0 && found->second->there == hello.from)
      return attach(*found->second, fd);
  }
  ::close(fd);
}

void progress() {
  epoll_event events[16];
  const int n = ::epoll_wait(poller, events, 16, 0);
  for (int i = 0; i < n; ++i) {
    if (events[i].data.fd == listener) {
      accept_one();
      continue;
    }
    for (const auto& [number, c] : connections) {
      if (c->fd != events[i].data.fd || c->is_broken) continue;
      if ((events[i].events & EPOLLOUT) != 0) flush(*c);
      if (!c->is_broken && (events[i].events & ~static_cast<unsigned>(EPOLLOUT)) != 0) receive(*c);
    }
  }
}

// Of two processes the one with the smaller place connects.
void connect_to(Connection& c, const Place& there) {
  if (there < own) return;
  Address address(there);
  const int fd = ::socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const Hello hello{epoch, c.number, c.there};
  if (fd < 0 || ::connect(fd, address.get(), address.length) != 0 ||
      ::send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
    if (fd >= 0) ::close(fd);
    return give_up(c);
  }
  attach(c, fd);
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  Connection& c = *connections.at(qp->qp_num);
  *bad = wr;
  if (c.is_broken) return ENOTCONN;
  for (; wr != nullptr; wr = wr->next) {
    const std::uint32_t bytes = wr->num_sge > 0 ? wr->sg_list->length : 0;
    Head head{Frame::kWrite, wr->imm_data, wr->wr.rdma.rkey, bytes, wr->wr.rdma.remote_addr};
    ibv_wc wc{};
    wc.opcode = IBV_WC_RDMA_WRITE;
    wc.wr_id = wr->wr_id;
    wc.qp_num = c.number;
    if (wr->opcode == IBV_WR_RDMA_READ) {
      head.kind = Frame::kRead;
      const Little<std::uint64_t> number = next_read++;
      c.reads[number] = {local(wr->sg_list->addr), wr->wr_id};
      put(c, &head, sizeof(head));
      put(c, &number, sizeof(number));
      continue;
    }
    if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) head.kind = Frame::kWriteImmediate;
    put(c, &head, sizeof(head));
    if (bytes > 0) put(c, local(wr->sg_list->addr), bytes);
    if ((wr->send_flags & IBV_SEND_SIGNALED) != 0) c.written.push_back(wc);
  }
  flush(c);
  return 0;
}

int poll_cq(ibv_cq*, int most, ibv_wc* wc) {
  if (done.empty()) progress();
  int n = 0;
  for (; n < most && !done.empty(); ++n) {
    wc[n] = done.front();
    done.pop_front();
  }
  return n;
}

int post_srq_recv(ibv_srq*, ibv_recv_wr*, ibv_recv_wr**) { return 0; }
int req_notify_cq(ibv_cq*, int) { return 0; }

bool begin() {
  const char* run = std::getenv("SHADOWIB_BSP_EPOCH");
  epoch = run != nullptr ? std::strtoull(run, nullptr, 16) : 0;
  const char* named = std::getenv("SHADOWIB_BSP_ADDRESS");
  if (!parse(named != nullptr ? named : "127.0.0.1", &own.address))
    fail("SHADOWIB_BSP_ADDRESS=%s is no address", named);
  Address address(own);
  listener = ::socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  poller = ::epoll_create1(EPOLL_CLOEXEC);
  if (listener < 0 || poller < 0 || ::bind(listener, address.get(), address.length) != 0 ||
      ::listen(listener, 1024) != 0 || ::getsockname(listener, address.get(), &address.length) != 0)
    return false;
  own.port = address.port();
  watch(listener, false, true);
  return true;
}

}  // namespace
}  // namespace shadowib::bsp

using namespace shadowib::bsp;  // NOLINT: nothing but the verbs follows

extern "C" {
ibv_device** ibv_get_device_list(int* count) {
  static ibv_device* list[2] = {&device, nullptr};
  *count = 1;
  return list;
}
void ibv_free_device_list(ibv_device**) {}
const char* ibv_get_device_name(ibv_device*) { return "plain"; }
ibv_context* ibv_open_device(ibv_device*) {
  if (!begin()) return nullptr;
  context.ops.post_send = post_send;
  context.ops.poll_cq = poll_cq;
  context.ops.post_srq_recv = post_srq_recv;
  context.ops.req_notify_cq = req_notify_cq;
  return &context;
}
#undef ibv_query_port
int ibv_query_port(ibv_context*, std::uint8_t, _compat_ibv_port_attr* to) {
  auto* attr = reinterpret_cast<ibv_port_attr*>(to);
  attr->active_mtu = IBV_MTU_4096;
  attr->link_layer = IBV_LINK_LAYER_ETHERNET;
  attr->gid_tbl_len = 1;
  attr->lid = own.port;
  return 0;
}
int ibv_query_device(ibv_context*, ibv_device_attr* attr) {
  attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = 16;
  return 0;
}
int ibv_query_gid(ibv_context*, std::uint8_t, int, ibv_gid* gid) {
  *gid = own.address;
  return 0;
}
ibv_pd* ibv_alloc_pd(ibv_context*) {
  static ibv_pd only;
  return &only;
}
ibv_comp_channel* ibv_create_comp_channel(ibv_context*) {
  static ibv_comp_channel only;
  only.fd = poller;
  return &only;
}
ibv_cq* ibv_create_cq(ibv_context*, int, void*, ibv_comp_channel*, int) {
  the_cq.context = &context;
  return &the_cq;
}
ibv_srq* ibv_create_srq(ibv_pd*, ibv_srq_init_attr*) {
  the_srq.context = &context;
  return &the_srq;
}
ibv_qp* ibv_create_qp(ibv_pd*, ibv_qp_init_attr*) {
  auto* qp = new ibv_qp{};
  auto* connection = new Connection;
  qp->context = &context;
  qp->qp_num = connection->number = static_cast<std::uint32_t>(connections.size()) + 1;
  connections[qp->qp_num] = connection;
  return qp;
}
int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  if ((mask & IBV_QP_DEST_QPN) == 0) return 0;
  Connection& c = *connections.at(qp->qp_num);
  c.there = attr->dest_qp_num;
  connect_to(c, {attr->ah_attr.grh.dgid, attr->ah_attr.dlid});
  return 0;
}
#undef ibv_reg_mr
ibv_mr* ibv_reg_mr(ibv_pd*, void* memory, std::size_t bytes, int) {
  auto* mr = new ibv_mr{};
  mr->lkey = mr->rkey = next_key++;
  regions[mr->rkey] = {static_cast<char*>(memory), bytes};
  return mr;
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* memory, std::size_t bytes, std::uint64_t, unsigned access) {
  return ibv_reg_mr(pd, memory, bytes, static_cast<int>(access));
}
int ibv_dereg_mr(ibv_mr* mr) {
  regions.erase(mr->rkey);
  delete mr;
  return 0;
}
int ibv_get_cq_event(ibv_comp_channel*, ibv_cq**, void**) { return -1; }
void ibv_ack_cq_events(ibv_cq*, unsigned) {}
const char* ibv_wc_status_str(ibv_wc_status) { return "its connection is gone"; }
}
