// Unreliable datagrams (UD). A queue pair has no peer: each request goes to the process of its address handle.
//
// Requests leave in order, whatever their destinations, so that one place in the send queue says how far it is; the
// queue pair stands on the list of the link that the next one needs. A request is executed when its receiver says so
// (kDatagramDone): it has been delivered or dropped there, as has everything before it on that link. Nothing is ever
// repeated. What cannot be delivered (nobody has that address, the connection ended) counts as dropped on its way.
#include <endian.h>

#include <algorithm>
#include <cstring>

#include "ib2tcp/address_handle.h"
#include "ib2tcp/as_adapter.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/memory.h"
#include "ib2tcp/queue_pair.h"
#include "ib2tcp/shared_receive_queue.h"

namespace shadowib::ib2tcp {
namespace {

constexpr std::uint32_t kGrhBytes = 40;        // in front of every payload, whether there is a header or not
constexpr std::uint32_t kOwnKey = 0x80000000;  // in a remote Q_Key: take the queue pair's
// How often and how long an address that nobody answers at is tried before what is for it is dropped.
constexpr std::uint32_t kTries = 5;
constexpr std::int64_t kTryNs = 100'000'000;
// After that it is not waited for again so soon: a queue of datagrams to the dead must run empty in time.
constexpr std::int64_t kSilenceNs = 2'000'000'000;
// A member of a group that has ended stays in its list, and is asked for ever more seldom.
constexpr std::int64_t kLongestSilenceNs = 64 * kSilenceNs;

Ah& ah_of(const Send& send) { return *reinterpret_cast<Ah*>(send.raddr); }

// Source: InfiniBand Architecture Specification 1.4, 8.3 (global route header); numbers in network byte order.
void make_grh(const FrameHeader& header, const DatagramPath& path, char grh[kGrhBytes]) {
  const std::uint32_t first = htobe32(6u << 28 | static_cast<std::uint32_t>(path.traffic_class) << 20 |
                                      static_cast<std::uint32_t>(path.flow_label));
  const std::uint16_t bytes = htobe16(static_cast<std::uint16_t>(header.length + 24));  // with transport headers, CRC
  const std::uint64_t prefix = htobe64(0xfe80ull << 48);
  std::memcpy(grh, &first, 4);
  std::memcpy(grh + 4, &bytes, 2);
  grh[6] = 0x1b;  // next header: InfiniBand transport
  grh[7] = static_cast<char>(header.ack);
  std::memcpy(grh + 8, &prefix, 8);
  std::memcpy(grh + 16, &header.operand1, 8);
  std::memcpy(grh + 24, &header.operand2, 8);
  std::memcpy(grh + 32, &header.dgid_end, 8);
}

// Puts the first bytes of a list into its place: `from`, or nothing if that is nullptr. False: memory is gone.
bool place_first(Sink* sink, const char* from, std::size_t bytes) {
  while (bytes > 0) {
    iovec& part = sink->parts[sink->at];
    const std::size_t n = std::min(bytes, part.iov_len);
    if (from != nullptr) {
      const AsAdapter unseen;
      if (!sink->careful)
        std::memcpy(part.iov_base, from, n);
      else if (!write_carefully(part.iov_base, from, n))
        return false;
      from += n;
    }
    part.iov_base = static_cast<char*>(part.iov_base) + n;
    part.iov_len -= n;
    bytes -= n;
    if (part.iov_len == 0) ++sink->at;
  }
  return true;
}

}  // namespace

void Qp::address_datagram(Send& send, const ibv_send_wr& wr) {
  Ah* ah = reinterpret_cast<Ah*>(wr.wr.ud.ah);
  ++ah->references;
  send.opcode = wr.opcode == IBV_WR_SEND ? Opcode::kDatagram : Opcode::kDatagramImm;
  send.raddr = reinterpret_cast<std::uint64_t>(ah);
  send.rkey = (wr.wr.ud.remote_qkey & kOwnKey) != 0 ? attr_.qkey : wr.wr.ud.remote_qkey;
  send.operand1 = wr.wr.ud.remote_qpn;
  send.operand2 = 0;  // copies on their way to members of a group
}

void Qp::release_datagram(Send& send) { ah_of(send).release(); }

// One that has begun to go to a group goes to all of it.
bool Qp::may_send_datagram() const {
  if (sq_.next == sq_.tail || halted_ || wait_ != Wait::kNone) return false;
  return state() == IBV_QPS_RTS || (state() == IBV_QPS_SQD && sq_.next < sq_.sent);
}

// Where the next request goes next. nullptr: to nobody (any more).
Destination* Qp::next_destination() {
  const Send& send = sq_.at(sq_.next);
  Ah& ah = ah_of(send);
  if (ah.group == nullptr) return &ah.to;
  if (send.operand1 != kMulticastQpn) return nullptr;
  if (looked_for_ != sq_.next) ah.group->look_for_members();
  looked_for_ = sq_.next;
  auto& members = ah.group->members;
  while (next_member_ < members.size() && members[next_member_]->lid == 0) ++next_member_;
  return next_member_ < members.size() ? members[next_member_].get() : nullptr;
}

void Qp::kick_datagrams() {
  bool dropped = false;
  while (may_send_datagram()) {
    Ah& ah = ah_of(sq_.at(sq_.next));
    Destination* to = next_destination();
    if (to == nullptr) {
      end_fan_out();
      dropped = true;
      continue;
    }
    Link* link = ah.link(*to);
    if (link != nullptr) link->want_connection();
    if (link != nullptr && link->up()) {
      to->silence_ns = 0;
      if (ready_hook.is_linked() && link_ == link) break;
      ready_hook.unlink();
      link_ = link;
      link->ready(*this);
      g_engine->want_turn();
      break;
    }
    ready_hook.unlink();
    if (to->silent_until_ns > monotonic_ns()) {
      drop_next();
      dropped = true;
      continue;
    }
    wait(link == nullptr ? Wait::kResolve : Wait::kLink, kTryNs);
  }
  if (dropped) advance_datagrams();
}

void Qp::drop_next() {
  if (ah_of(sq_.at(sq_.next)).group != nullptr) {
    ++next_member_;
    return;
  }
  sq_.at(sq_.next).done = true;
  sq_.sent = ++sq_.next;
}

// The next request has gone to everybody in its group.
void Qp::end_fan_out() {
  if (sq_.at(sq_.next).operand2 == 0) sq_.at(sq_.next).done = true;
  sq_.sent = ++sq_.next;
  next_member_ = 0;
}

bool Qp::next_datagram(Frame* frame) {
  if (!may_send_datagram()) return false;
  Send& send = sq_.at(sq_.next);
  Ah& ah = ah_of(send);
  Destination* to = next_destination();
  if (to == nullptr || ah.link(*to) != link_) {
    kick_datagrams();
    return false;
  }
  ibv_wc_status status = send.status;
  if (status == IBV_WC_SUCCESS) status = prepare_payload(send, frame);
  if (status != IBV_WC_SUCCESS) {
    send.status = status;
    halted_ = true;
    complete_ready();
    return false;
  }
  FrameHeader& header = *frame->header;
  frame->bytes = send.length;
  header = FrameHeader{};
  header.version = kWireVersion;
  header.opcode = send.opcode;
  header.flags = send.send_flags_solicited ? kFlagSolicited : 0;
  header.dest_qpn = static_cast<std::uint32_t>(send.operand1);
  header.src_qpn = verbs.qp_num;
  header.seq = static_cast<std::uint32_t>(sq_.next);
  header.imm = send.imm;
  header.length = send.length;
  header.rkey = send.rkey;
  address_frame(&header, ah);
  if (ah.group == nullptr) {
    sq_.sent = ++sq_.next;
    return true;
  }
  copies_.push_back({sq_.next, link_});
  ++send.operand2;
  ++next_member_;
  sq_.sent = std::max(sq_.sent, sq_.next + 1);
  return true;
}

void Qp::address_frame(FrameHeader* header, const Ah& ah) const {
  const Device& device = *context().device;
  DatagramPath path{};
  path.slid = device.lids[ah.attr.port_num - 1];  // LMC is 0: no path bits
  path.sl = ah.attr.sl & 15;
  if (ah.attr.is_global != 0) {
    const ibv_global_route& to = ah.attr.grh;
    path.global = 1;
    path.flow_label = to.flow_label & 0xfffff;
    path.traffic_class = to.traffic_class;
    header->operand1 = port_gid(device, ah.attr.port_num).global.interface_id;
    header->operand2 = to.dgid.global.subnet_prefix;
    header->dgid_end = to.dgid.global.interface_id;
    header->ack = to.hop_limit;
  } else if (ah.group != nullptr) {
    header->operand2 = ah.attr.dlid;
  }
  std::memcpy(&header->raddr, &path, sizeof(path));
}

// All that was sent on `link` before index `end` is done with.
void Qp::datagrams_done(const Link& link, std::uint64_t end) {
  for (std::uint64_t i = sq_.acked; i < end; ++i)
    if (Send& send = sq_.at(i); ah_of(send).group == nullptr && ah_of(send).to.found == &link) send.done = true;
  forget_copies(link, end);
  advance_datagrams();
}

void Qp::forget_copies(const Link& link, std::uint64_t end) {
  std::erase_if(copies_, [&](const Copy& copy) {
    if (copy.link != &link || copy.index >= end) return false;
    if (Send& send = sq_.at(copy.index); --send.operand2 == 0 && copy.index < sq_.next) send.done = true;
    return true;
  });
}

void Qp::advance_datagrams() {
  while (sq_.acked < sq_.sent && sq_.at(sq_.acked).done) ++sq_.acked;
  complete_ready();
}

void Qp::on_datagram_done(const Link& link, std::uint32_t seq) {
  const std::uint32_t ahead = seq - static_cast<std::uint32_t>(sq_.acked);
  if (ahead < sq_.sent - sq_.acked) datagrams_done(link, sq_.acked + ahead + 1);
}

void Qp::on_datagram_link_up() {
  if (wait_ == Wait::kLink) stop_waiting();
  tries_ = 0;
  kick();
}

void Qp::on_datagram_link_down(const Link& link) {
  if (link_ == &link) ready_hook.unlink();
  datagrams_done(link, sq_.sent);
}

// Nobody answers at the next one's address yet.
void Qp::on_datagram_timer() {
  if (++tries_ >= kTries && may_send_datagram()) {
    tries_ = 0;
    if (Destination* to = next_destination(); to != nullptr) {
      to->silence_ns = ah_of(sq_.at(sq_.next)).group == nullptr
                           ? kSilenceNs
                           : std::clamp(2 * to->silence_ns, kSilenceNs, kLongestSilenceNs);
      to->silent_until_ns = monotonic_ns() + to->silence_ns;
    }
  }
  kick();
}

// As it would be on a fabric: nothing tells the sender.
void Qp::take_datagram(const FrameHeader& header, const char* payload) {
  if (!connected() || header.rkey != attr_.qkey || !rq_->available()) return;
  Receive* receive = rq_->begin();
  if (srq_ != nullptr) srq_->check_limit();
  Sink sink;
  const std::uint64_t bytes = kGrhBytes + std::uint64_t{header.length};
  int n =
      translate_list(recv_pd(), receive->sge, receive->sges, bytes, IBV_ACCESS_LOCAL_WRITE, sink.parts, sink.regions);
  if (n == -1)
    n = translate_list_carefully(recv_pd(), receive->sge, receive->sges, bytes, IBV_ACCESS_LOCAL_WRITE, sink.parts,
                                 sink.regions, &sink.careful);
  if (n < 0) {
    rq_->finish(receive);
    fail_datagram(header, receive, n == -2 ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR);
    return;
  }
  sink.count = n;
  DatagramPath path;
  std::memcpy(&path, &header.raddr, sizeof(path));
  char grh[kGrhBytes];
  if (path.global) make_grh(header, path, grh);
  const bool placed =
      place_first(&sink, path.global ? grh : nullptr, kGrhBytes) && place_first(&sink, payload, header.length);
  rq_->finish(receive);
  if (!placed) {
    fail_datagram(header, receive, IBV_WC_LOC_PROT_ERR);
    return;
  }
  complete_datagram(header, receive, IBV_WC_SUCCESS);
  check_overrun();
}

void Qp::fail_datagram(const FrameHeader& header, Receive* receive, ibv_wc_status status) {
  complete_datagram(header, receive, status);
  raise(IBV_EVENT_QP_FATAL);
  enter_error(IBV_WC_SUCCESS, false);
}

void Qp::complete_datagram(const FrameHeader& header, Receive* receive, ibv_wc_status status) {
  g_engine->outstanding.add(-1);
  DatagramPath path;
  std::memcpy(&path, &header.raddr, sizeof(path));
  Cq& cq = recv_cq();
  ibv_wc* wc = begin_completion(cq, receive->wr_id);
  if (wc == nullptr) return;
  wc->status = status;
  wc->opcode = IBV_WC_RECV;
  wc->byte_len = kGrhBytes + header.length;
  wc->src_qp = header.src_qpn;
  wc->slid = path.slid;
  wc->sl = path.sl;
  if (path.global) wc->wc_flags |= IBV_WC_GRH;
  if (header.opcode == Opcode::kDatagramImm) {
    wc->wc_flags |= IBV_WC_WITH_IMM;
    wc->imm_data = header.imm;
  }
  cq.append((header.flags & kFlagSolicited) != 0);
}

}  // namespace shadowib::ib2tcp
