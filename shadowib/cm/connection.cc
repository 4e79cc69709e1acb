#include "shadowib/cm/connection.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "shadowib/base/guard.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"
#include "shadowib/cm/attributes.h"
#include "shadowib/cm/courier.h"
#include "shadowib/cm/listeners.h"
#include "shadowib/cm/lost_guest.h"
#include "shadowib/objects/registry.h"

namespace shadowib::cm {
namespace {

constexpr std::int64_t kAnswerNs = 1'000'000'000;  // until a message is sent again
constexpr int kTries = 30;
// The processes of a job start side by side, and what was destroyed is often made again (perftest listens twice): a
// listener that is a moment late is waited for, before the answer is that nobody listens: for five seconds, since the
// directory that tells of it may be a network's, whose names come late.
constexpr std::int64_t kSeekNs = 50'000'000;
constexpr int kSeeks = 100;
constexpr std::uint32_t kMaxBacklog = 1024;

// How many bytes of private data each message of the protocol has room for. An event brings all of them, the rest
// being zero, as an InfiniBand adapter's do.
constexpr std::uint8_t kRequestData = 56, kReplyData = 196, kRejectData = 148, kServiceRequestData = 180,
                       kServiceReplyData = 136;

constexpr std::uint8_t kMostRetries = 7;  // the kernel's manager takes more for this; libfabric says 15

bool is_datagram(const ConnectionId& id) { return id.qp_type == IBV_QPT_UD; }

Message blank_message(Kind kind, std::uint32_t from_id, std::uint32_t to_id) {
  Message m{};
  m.magic = Message::kMagic;
  m.version = Message::kVersion;
  m.kind = kind;
  m.from_id = from_id;
  m.to_id = to_id;
  m.from = courier_address();
  return m;
}

Message message_of(const ConnectionId& id, Kind kind) {
  Message m = blank_message(kind, id.local_id, id.remote.from_id);
  m.gid = courier_port().gid;
  m.lid = courier_port().attr.lid;
  m.qp_num = id.qp_num;
  m.psn = id.psn;
  m.port_space = id.port_space;
  m.qp_type = id.qp_type;
  m.source = id.source;
  m.destination = id.destination;
  return m;
}

void set_data(Message* m, const std::uint8_t* data, std::uint8_t bytes) {
  std::memcpy(m->private_data, data, bytes);
  m->private_data_bytes = bytes;
}

// A request or a reply by what the program says of its end; the id remembers what its queue pair is set by.
Message proposal_of(ConnectionId& id, Kind kind, const rdma_ucm_conn_param& p) {
  id.qp_num = p.qp_num;
  id.responder_resources = p.responder_resources;
  id.initiator_depth = p.initiator_depth;
  Message m = message_of(id, kind);
  m.responder_resources = p.responder_resources;
  m.initiator_depth = p.initiator_depth;
  m.flow_control = p.flow_control;
  m.retry_count = std::min(p.retry_count, kMostRetries);
  m.rnr_retry_count = std::min(p.rnr_retry_count, kMostRetries);
  m.srq = p.srq;
  set_data(&m, p.private_data, p.private_data_len);
  return m;
}

// Sends it, and again until the answer comes.
void send_until_answered(ConnectionId& id, const Message& m, const Address& to) {
  id.unanswered = m;
  id.remote.from = to;
  id.seeking = false;
  id.tries = 1;
  id.send_again_ns = monotonic_ns() + kAnswerNs;
  send_message(m, to);
  wake_courier();
}

void answered(ConnectionId& id) {
  id.unanswered = {};
  id.seeking = false;
}

// An answer to a message of which we know nothing, or no more.
void answer_stranger(const Message& to, Kind kind, std::uint8_t reason) {
  Message m = blank_message(kind, to.to_id, to.from_id);
  m.reason = reason;
  send_message(m, to.from);
}

Event connection_event(ConnectionId& id, EventType type, int status, const Message& m, std::uint8_t room) {
  Event event = event_of(id, type, status);
  rdma_ucm_conn_param& conn = event.report.param.conn;
  conn.qp_num = m.qp_num;
  std::memcpy(conn.private_data, m.private_data, sizeof(conn.private_data));
  conn.private_data_len = room;
  conn.srq = m.srq;
  conn.responder_resources = m.initiator_depth;  // the peer's outgoing requests are our incoming ones
  conn.initiator_depth = m.responder_resources;
  conn.flow_control = m.flow_control;
  conn.retry_count = m.retry_count;
  conn.rnr_retry_count = m.rnr_retry_count;
  return event;
}

Event datagram_event(ConnectionId& id, EventType type, int status, const Message& m, std::uint8_t room) {
  Event event = event_of(id, type, status);
  rdma_ucm_ud_param& ud = event.report.param.ud;
  ud.qp_num = m.qp_num;
  ud.qkey = m.qkey;
  ud.ah_attr = handle_attributes(m.lid, m.gid);
  std::memcpy(ud.private_data, m.private_data, sizeof(ud.private_data));
  ud.private_data_len = room;
  return event;
}

void end(ConnectionId& id) {
  answered(id);
  id.state = State::kEnded;
}

void refuse(ConnectionId& id) {
  end(id);
  if (is_datagram(id)) {
    id.state = State::kRouteResolved;  // it may ask again
    report(id, datagram_event(id, EventType::kUnreachable, kServiceUnsupported, {}, kServiceReplyData));
  } else {
    report(id, connection_event(id, EventType::kRejected, kRejectInvalidServiceId, {}, kRejectData));
  }
}

// Nobody listens there just now. False: it has been looked for often enough.
bool seek_later(ConnectionId& id) {
  if (id.seeks_left-- <= 0) return false;
  id.seeking = true;
  id.send_again_ns = monotonic_ns() + kSeekNs;
  return true;
}

// Sends the request to its listener, or looks again later.
void seek(ConnectionId& id) {
  Address to;
  if (find_listener(id.port_space, id.destination, &to)) return send_until_answered(id, Message(id.unanswered), to);
  if (!seek_later(id)) refuse(id);
}

void report_disconnected(ConnectionId& id) {
  end(id);
  report(id, event_of(id, EventType::kDisconnected, 0));
}

// The request has its answer: another may come in its place.
void leave_listener(ConnectionId& id) {
  if (id.listener != nullptr) --id.listener->pending;
  id.listener = nullptr;
}

ConnectionId* listener_for(const Message& m) {
  ConnectionId* any = nullptr;
  for (auto& [number, id] : manager().ids) {
    if (id->state != State::kListening || id->port_space != m.port_space) continue;
    if (port_of(id->source) != port_of(m.destination)) continue;
    if (same_ip(id->source, m.destination)) return id.get();
    const bool family = id->source.sin6_family == m.destination.sin6_family ||
                        (id->source.sin6_family == AF_INET6 && !id->family_only);
    if (is_wildcard(id->source) && family) any = id.get();
  }
  return any;
}

// The connection that a message is about: by our number, or, of a repeated first message, by its sender's.
ConnectionId* connection_of(const Message& m) {
  for (auto& [number, id] : manager().ids) {
    if (id->local_id == 0 || (m.to_id != 0 && id->local_id != m.to_id)) continue;
    if (!(id->remote.from == m.from)) continue;
    if (m.to_id != 0 || id->remote.from_id == m.from_id) return id.get();
  }
  return nullptr;
}

// What the peer asks of us is what we answer for, and the other way round.
void take_depths(ConnectionId& id, const Message& m) {
  id.responder_resources = m.initiator_depth;
  id.initiator_depth = m.responder_resources;
}

void receive_request(const Message& m) {
  if (ConnectionId* known = connection_of(m); known != nullptr) {
    if (known->unanswered.kind == Kind::kReply || known->unanswered.kind == Kind::kServiceReply)
      send_message(known->unanswered, m.from);
    return;
  }
  ConnectionId* listener = listener_for(m);
  const bool datagram = m.kind == Kind::kServiceRequest;
  if (listener == nullptr || listener->pending >= listener->backlog || is_datagram(*listener) != datagram) {
    if (datagram)
      answer_stranger(m, Kind::kServiceReply, kServiceUnsupported);
    else
      answer_stranger(m, Kind::kReject, kRejectInvalidServiceId);
    return;
  }
  ConnectionId& id = make_id(*listener->channel, 0, listener->port_space, listener->qp_type);
  id.state = State::kAsked;
  id.source = m.destination;
  id.destination = m.source;
  id.has_device = id.has_path = true;
  id.remote = m;
  take_depths(id, m);
  id.local_id = next_local_id();
  id.psn = random_bits() & 0xffffff;
  id.listener = listener;
  id.ack_timeout = listener->ack_timeout;
  ++listener->pending;
  Event event = datagram ? datagram_event(*listener, EventType::kConnectRequest, 0, m, kServiceRequestData)
                         : connection_event(*listener, EventType::kConnectRequest, 0, m, kRequestData);
  event.child = &id;
  event.report.id = id.number;
  report(*listener, event);
}

void receive_reply(ConnectionId& id, const Message& m) {
  if (id.state == State::kConnected) return send_message(message_of(id, Kind::kReadyToUse), m.from);
  if (id.state != State::kRequested) return;
  answered(id);
  id.remote = m;
  take_depths(id, m);
  id.state = State::kAnswered;
  report(id, connection_event(id, EventType::kConnectResponse, 0, m, kReplyData));
}

void receive_service_reply(ConnectionId& id, const Message& m) {
  if (id.state != State::kRequested) return;
  if (m.reason == kServiceUnsupported && seek_later(id)) return;
  answered(id);
  id.remote = m;
  if (m.reason != 0) {
    id.state = State::kRouteResolved;
    return report(id, datagram_event(id, EventType::kUnreachable, m.reason, m, kServiceReplyData));
  }
  id.state = State::kConnected;
  report(id, datagram_event(id, EventType::kEstablished, 0, m, kServiceReplyData));
}

void receive_reject(ConnectionId& id, const Message& m) {
  if (id.state != State::kRequested && id.state != State::kAccepted && id.state != State::kAnswered) return;
  if (id.state == State::kRequested && m.reason == kRejectInvalidServiceId && seek_later(id)) return;
  end(id);
  report(id, connection_event(id, EventType::kRejected, m.reason, m, kRejectData));
}

void receive_disconnect(ConnectionId& id) {
  switch (id.state) {
    case State::kAccepted:
    case State::kAnswered:
    case State::kConnected:
    case State::kDisconnecting:
      return report_disconnected(id);
    case State::kAsked:  // given up before it was answered
      leave_listener(id);
      return end(id);
    default:
      return;
  }
}

// A message that nobody answers, however often it is sent.
void give_up(ConnectionId& id) {
  const Kind kind = id.unanswered.kind;
  log_line(LogLevel::kWarn, "rdma_cm: id %u: no answer from LID %u in %d tries", id.number, id.remote.from.lid,
           kTries);
  const State before = id.state;
  end(id);
  if (kind == Kind::kDisconnectRequest)
    report(id, event_of(id, EventType::kDisconnected, 0));
  else if (before == State::kRequested)
    report(id, event_of(id, EventType::kUnreachable, -ETIMEDOUT));
  else
    report(id, event_of(id, EventType::kConnectError, -ETIMEDOUT));
}

}  // namespace

int listen(ConnectionId& id, std::uint32_t backlog) {
  if (Status s = publish_listener(id.port_space, id.source, courier_address()); !s.ok()) {
    log_line(LogLevel::kError, "rdma_cm: a listener cannot be announced: %s", s.text());
    return s.error() != 0 ? s.error() : EIO;
  }
  id.backlog = backlog == 0 || backlog > kMaxBacklog ? kMaxBacklog : backlog;
  id.state = State::kListening;
  return 0;
}

int connect(ConnectionId& id, const rdma_ucm_conn_param& p) {
  if (id.state != State::kRouteResolved) return EINVAL;
  const bool datagram = is_datagram(id);
  if (p.private_data_len > (datagram ? kServiceRequestData : kRequestData)) return EINVAL;
  id.local_id = next_local_id();
  id.psn = random_bits() & 0xffffff;
  id.retry_count = std::min(p.retry_count, kMostRetries);
  id.remote = {};
  id.unanswered = proposal_of(id, datagram ? Kind::kServiceRequest : Kind::kRequest, p);
  id.state = State::kRequested;
  id.seeks_left = kSeeks;
  seek(id);
  wake_courier();
  return 0;
}

int accept(ConnectionId& id, const rdma_ucm_conn_param& p, std::uint64_t uid) {
  if (id.state == State::kAnswered) {
    id.state = State::kConnected;
    send_message(message_of(id, Kind::kReadyToUse), id.remote.from);
    return 0;
  }
  if (id.state != State::kAsked || !p.valid) return EINVAL;
  const bool datagram = is_datagram(id);
  if (p.private_data_len > (datagram ? kServiceReplyData : kReplyData)) return EINVAL;
  id.uid = uid;
  leave_listener(id);
  Message m = proposal_of(id, datagram ? Kind::kServiceReply : Kind::kReply, p);
  m.qkey = p.qkey != 0 ? p.qkey : kDatagramQkey;
  if (datagram) {  // said again when asked again
    id.state = State::kConnected;
    id.unanswered = m;
    id.send_again_ns = 0;
    send_message(m, id.remote.from);
  } else {
    id.state = State::kAccepted;
    send_until_answered(id, m, id.remote.from);
  }
  return 0;
}

int reject(ConnectionId& id, std::uint8_t reason, const std::uint8_t* data, std::uint8_t bytes) {
  if (id.state != State::kAsked && id.state != State::kAnswered) return EINVAL;
  const bool datagram = is_datagram(id);
  if (bytes > (datagram ? kServiceReplyData : kRejectData)) return EINVAL;
  Message m = message_of(id, datagram ? Kind::kServiceReply : Kind::kReject);
  m.reason = datagram ? kServiceRejected : (reason != 0 ? reason : kRejectConsumerDefined);
  set_data(&m, data, bytes);
  leave_listener(id);
  end(id);
  send_message(m, id.remote.from);
  return 0;
}

int disconnect(ConnectionId& id) {
  if (is_datagram(id)) return EINVAL;
  if (id.state == State::kEnded || id.state == State::kDisconnecting) return 0;  // the peer was first
  if (id.state != State::kConnected && id.state != State::kAccepted) return EINVAL;
  id.state = State::kDisconnecting;
  send_until_answered(id, message_of(id, Kind::kDisconnectRequest), id.remote.from);
  return 0;
}

int establish(ConnectionId& id) {
  if (id.state != State::kAccepted) return 0;
  answered(id);
  id.state = State::kConnected;
  report(id, connection_event(id, EventType::kEstablished, 0, {}, 0));
  return 0;
}

void end_connection(ConnectionId& id) {
  leave_listener(id);
  switch (id.state) {
    case State::kListening:
      remove_listener(id.port_space, id.source);
      break;
    case State::kRequested:  // of which nobody knows as long as its listener is looked for
    case State::kConnected:
    case State::kAccepted:
    case State::kAnswered:
      if (!is_datagram(id) && !id.seeking) send_message(message_of(id, Kind::kDisconnectRequest), id.remote.from);
      break;
    case State::kAsked:
      if (is_datagram(id))
        answer_stranger(id.remote, Kind::kServiceReply, kServiceRejected);
      else
        answer_stranger(id.remote, Kind::kReject, kRejectConsumerDefined);
      break;
    default:
      break;
  }
  end(id);
}

void receive_message(const Message& m) {
  if (m.kind == Kind::kRequest || m.kind == Kind::kServiceRequest) return receive_request(m);
  ConnectionId* id = connection_of(m);
  if (m.kind == Kind::kDisconnectRequest) answer_stranger(m, Kind::kDisconnectReply, 0);
  if (id == nullptr) {
    if (m.kind == Kind::kReply) answer_stranger(m, Kind::kReject, kRejectStaleConnection);
    return;
  }
  switch (m.kind) {
    case Kind::kReply:
      return receive_reply(*id, m);
    case Kind::kServiceReply:
      return receive_service_reply(*id, m);
    case Kind::kReadyToUse:
      (void)establish(*id);
      return;
    case Kind::kReject:
      return receive_reject(*id, m);
    case Kind::kDisconnectRequest:
      return receive_disconnect(*id);
    case Kind::kDisconnectReply:
      if (id->state == State::kDisconnecting) report_disconnected(*id);
      return;
    default:
      log_line(LogLevel::kWarn, "rdma_cm: dropped a message of unknown kind %u", static_cast<unsigned>(m.kind));
  }
}

std::int64_t handle_timeouts(std::int64_t now_ns) {
  std::int64_t next = -1;
  for (auto& [number, id] : manager().ids) {
    if (id->unanswered.kind == Kind{} || id->send_again_ns == 0) continue;
    if (id->seeking && id->send_again_ns <= now_ns) {
      seek(*id);
      if (id->unanswered.kind == Kind{}) continue;
    } else if (id->send_again_ns <= now_ns && guarded(Guard::kAskAgain)) {
      if (id->tries++ >= kTries) {
        give_up(*id);
        continue;
      }
      // Counted, not timed: a checkpoint's pause is nobody's silence.
      id->send_again_ns = now_ns + kAnswerNs;
      send_message(id->unanswered, id->remote.from);
    }
    next = next < 0 ? id->send_again_ns : std::min(next, id->send_again_ns);
  }
  return next;
}

Status publish_again() {
  for (auto& [number, id] : manager().ids) {
    // The guest's kernel would have told of its death. All ids are of one adapter.
    if (has_lost_guest(registry().qps, courier_port().node_guid, id->qp_num)) receive_disconnect(*id);
    if (id->has_claim)
      if (int rc = claim_port_again(id->port_space, port_of(id->source)); rc != 0)
        return Status::of(Code::kIo, rc, "port %u of an rdma_cm id cannot be taken again: %s", port_of(id->source),
                          std::strerror(rc));
    if (id->state == State::kListening && guarded(Guard::kListenAgain))
      SHADOWIB_TRY(publish_listener(id->port_space, id->source, courier_address()));
  }
  return {};
}

}  // namespace shadowib::cm
