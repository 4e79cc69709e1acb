// The courier: a datagram queue pair of our own, made through the shim like any program's, and the thread that serves
// it. Messages under way at a checkpoint, and the thread itself, survive a restart as a program's would.
//
// It runs while there are event channels. All functions expect manager().lock to be held.
#pragma once

#include "shadowib/base/status.h"
#include "shadowib/cm/connection_id.h"

namespace shadowib::cm {

// The adapter's port behind which ids are, as the program sees it.
struct Port {
  std::uint64_t node_guid;
  int device_index;
  std::uint8_t number;
  ibv_port_attr attr;
  ibv_gid gid;
  std::uint8_t gid_index;
};

// Both give the lock up meanwhile. Starting is for one at a time: manager().opening is held, too. The thread ends
// after what is to be sent has left.
Status start_courier(ManagerGuard& guard);
void stop_courier(ManagerGuard& guard);
bool courier_runs();

const Port& courier_port();
// The port's GID that stands for an IP address of this host, else one for another of its family.
struct PortGid {
  int index;  // -1: there is none
  bool is_roce_v2;
};
PortGid gid_for(const sockaddr_in6& address);
const Address& courier_address();

// Sends a message, of which a copy is taken; lost if there is nobody.
void send_message(const Message& message, const Address& to);
// The thread looks at the time-outs again.
void wake_courier();

// Defined in connection.cc: what the thread calls, with the lock held.
void receive_message(const Message& message);
// Sends again what is due; returns when the next is, or -1.
std::int64_t handle_timeouts(std::int64_t now_ns);

// In a forked child: there is none.
void forget_courier();

}  // namespace shadowib::cm
