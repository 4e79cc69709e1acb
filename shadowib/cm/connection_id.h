// The objects that the kernel's connection manager would hold for librdmacm: event channels, ids, their events.
//
// All of it is guarded by manager().lock, held by a ManagerGuard.
#pragma once

#include <rdma/rdma_user_cm.h>

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "hooks/threads/stop.h"
#include "shadowib/cm/message.h"

namespace shadowib::cm {

struct ConnectionId;
struct Membership;

// enum rdma_cm_event_type of rdma/rdma_cma.h, which cannot be included beside the kernel's header.
enum class EventType : std::uint32_t {
  kAddressResolved = 0,
  kAddressError = 1,
  kRouteResolved = 2,
  kRouteError = 3,
  kConnectRequest = 4,
  kConnectResponse = 5,
  kConnectError = 6,
  kUnreachable = 7,
  kRejected = 8,
  kEstablished = 9,
  kDisconnected = 10,
  kMulticastJoin = 12,
};

struct Event {
  rdma_ucm_event_resp report;
  ConnectionId* id;        // whose count of reported events it adds to
  ConnectionId* child;     // CONNECT_REQUEST: what it is about
  Membership* membership;  // MULTICAST_JOIN
};

// An open "device file". `fd` is an eventfd, readable while there are events; it is the program's, and comes back
// after a restart like any other.
struct Channel {
  int fd;
  std::uint64_t serial;  // of all that there ever were
  bool foreign = false;  // inherited over a fork
  std::deque<Event> events;
};

// A multicast group that an id has joined.
struct Membership {
  std::uint32_t number;
  std::uint64_t uid;
  std::uint32_t events_reported = 0;
};

enum class State {
  kIdle,
  kBound,
  kAddressResolved,
  kRouteResolved,
  kListening,
  kRequested,      // active: a request is on its way
  kAnswered,       // active: the reply is here, the program has to act
  kAsked,          // passive: a request is here, the program has to accept or reject
  kAccepted,       // passive: the reply is on its way
  kConnected,      //
  kDisconnecting,  // our DREQ is on its way
  kEnded,          // disconnected, rejected or given up
};

struct ConnectionId {
  std::uint32_t number;
  std::uint64_t uid;  // 0: the program does not know it yet, and hears nothing of it
  Channel* channel;
  std::uint16_t port_space;
  std::uint8_t qp_type;
  State state = State::kIdle;
  std::uint32_t events_reported = 0;

  sockaddr_in6 source{}, destination{};  // family 0: not set
  bool has_device = false;               // bound to an address of the adapter
  bool has_path = false;
  bool reuse_address = false, family_only = false;
  std::uint8_t ack_timeout = 0;  // 0: the default
  bool has_claim = false;        // its port is taken in its name

  // Listening.
  std::uint32_t backlog = 0, pending = 0;  // requests that the program has not answered
  ConnectionId* listener = nullptr;        // of an id that a request made, until it is answered

  // Connecting.
  std::uint32_t local_id = 0;  // from_id of its messages
  std::uint32_t psn = 0, qp_num = 0;
  std::uint8_t responder_resources = 0, initiator_depth = 0, retry_count = 0;
  Message remote{};      // the peer's request or reply
  Message unanswered{};  // what is sent again until something comes back; kind 0: nothing
  int tries = 0;
  int seeks_left = 0;  // active: how often its listener is still looked for
  bool seeking = false;
  std::int64_t send_again_ns = 0;

  std::list<Membership> memberships;
};

struct Manager {
  std::mutex lock;
  std::mutex opening;  // of channels; taken before the other, outside of any Inside: the holder may be stopped
  std::vector<std::unique_ptr<Channel>> channels;
  std::map<std::uint32_t, std::unique_ptr<ConnectionId>> ids;  // by number
  std::uint64_t last_serial = 0;
  std::uint32_t next_membership = 1;
  std::uint32_t last_local_id = 0;
};
Manager& manager();

// Holds the lock. Its holder is not stopped. The memory here comes from the arena, whose lock other parts of the shim
// wait for, and which a restart's agent takes while all threads are stopped. So nobody may sleep with it.
class [[nodiscard]] ManagerGuard {
 public:
  ManagerGuard() { lock(); }
  ~ManagerGuard() {
    if (inside_) unlock();
  }
  ManagerGuard(const ManagerGuard&) = delete;
  ManagerGuard& operator=(const ManagerGuard&) = delete;
  void lock() {
    inside_.emplace();
    manager().lock.lock();
  }
  void unlock() {
    manager().lock.unlock();
    inside_.reset();
  }

 private:
  std::optional<Inside> inside_;
};

std::uint32_t random_bits();
std::uint32_t next_local_id();  // not 0

// Puts an event into the id's channel. An id the program does not know yet hears of nothing.
void report(ConnectionId& id, const Event& event);
Event event_of(ConnectionId& id, EventType type, int status);
// Takes the first event out; false: there is none.
bool take_event(Channel& channel, Event* event);
// Forgets events that name the id; what they brought with them is destroyed.
void withdraw_events(ConnectionId& id);
void withdraw_membership(ConnectionId& id, const Membership& membership);
// rdma_migrate_id.
void move_events(ConnectionId& id, Channel& to);

Channel* find_channel(int fd);
ConnectionId* find_id(std::uint32_t number);
ConnectionId& make_id(Channel& channel, std::uint64_t uid, std::uint16_t port_space, std::uint8_t qp_type);
// Ends the connection at once, without an event, and frees the id.
void destroy_id(ConnectionId& id);

}  // namespace shadowib::cm
