// The parts of DescriptorPlan::prepare(), one family each. Runs in the restart command: one thread, any heap.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/match/match.h"
#include "hooks/imager/descriptors/open_object.h"
#include "hooks/imager/descriptors/socket_options.h"
#include "hooks/imager/descriptors/table.h"
#include "shadowib/base/status.h"

namespace shadowib::descriptors {

// A TCP connection of which this part of the restart makes one end.
struct ApartEnd {
  const Object* peer;  // the other end, in Plan::elsewhere
  bool passive;        // waits for the other part to connect
  std::string name;    // what both parts call it
};

struct Plan {
  Tables tables;     // of the members that this part of the restart makes
  Tables elsewhere;  // of all others
  Meeting* meeting = nullptr;
  MemoryFiles memory;
  std::map<const Object*, ApartEnd> apart;
  Links links;
  int standard[3] = {-1, -1, -1};        // copies of the command's own 0, 1, 2; -1: closed there
  std::map<PtyKey, int> terminals;       // a slave of each pty of the job
  std::map<const Object*, int> sources;  // the command's descriptor for each object it could make
  std::vector<int> owned;                // all of the command's descriptors to be closed by release()

  // Takes a descriptor over. Returns it.
  int own(int fd) {
    owned.push_back(fd);
    return fd;
  }
  // A socket is one object in every member that holds it.
  void set_socket(std::uint64_t inode, int fd);
  bool is_outside(const Object& object) const { return links.outside.contains(&object); }
};

// Leaves in the plan what is of the members `here`, and fills Plan::apart. kRefused names what they share with a
// member that is elsewhere, TCP connections excepted.
Status keep_members(const std::set<std::uint32_t>& here, Plan* plan);

// Stand-ins for standard streams that led outside, terminals included.
Status restore_standard_streams(Plan* plan);
// A stand-in for a pipe or socket that the job was started with: the command's own descriptor of that number, if it
// has inherited one, else one that nobody is at the other end of.
Status restore_inherited(const Table& table, std::uint32_t object, int* fd);
Status restore_files(Plan* plan);
// The command's standard stream that leads, for writing, to the file of this standard stream of the member. -1: none.
int own_stream(const Plan& plan, const Table& table, std::uint32_t object);
Status restore_pipes(Plan* plan);
Status restore_ptys(Plan* plan);
Status restore_eventfds(Plan* plan);
Status restore_unix(Plan* plan);
Status restore_tcp(Plan* plan);
Status restore_datagram_sockets(Plan* plan);  // UDP and netlink

// Binds a TCP or UDP socket as recorded (and listens), and closes it again; ok for all others.
Status try_port(const Object& object);

// Opens what only the member itself can: /proc/<pid> paths, timerfd, signalfd, epoll (empty).
Status open_in_member(const Object& object, int* fd);
// The entries of the member's epoll sets, once every descriptor is at its number.
Status fill_epoll_sets(const Table& table);

// Room for a whole queue while it is filled: TCP keeps it with the receiver, Unix sockets charge it to the sender.
class MoreRoom {
 public:
  MoreRoom(int from, int to, Kind kind);
  ~MoreRoom();
  MoreRoom(const MoreRoom&) = delete;
  MoreRoom& operator=(const MoreRoom&) = delete;

 private:
  int from_, to_;
  Kind kind_;
  ReceiveBuffer buffer_;
  int size_ = 0;
};

// Sends the receiver's queue from one end of a stream to the other, reading nothing. Bounded.
Status fill_stream(int from, int to, const Object& receiver);
// Likewise where the two ends are in different processes. `fd` is this process's end of a TCP connection. Its own
// queue is that of `own`; the other process sends the peer's.
Status fill_apart(int fd, const Object& own, const Object& peer);

}  // namespace shadowib::descriptors
