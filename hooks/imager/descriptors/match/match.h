// Which ends belong together, over all members of a set. Used to judge a checkpoint, to verify a set, and to restart.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hooks/imager/descriptors/table.h"
#include "shadowib/base/status.h"

namespace shadowib::descriptors {

using Tables = std::map<std::uint32_t, Table>;

// One end, as messages name it.
struct Holder {
  const Table* table = nullptr;
  std::uint32_t index = 0;
  const Object& object() const { return table->objects[index]; }
};

// A pipe or FIFO of the job.
struct PipeLink {
  std::vector<Holder> holders;
  bool read = false, write = false;  // some member holds that end
  bool packets = false;              // a writer has O_DIRECT
  const Object* contents = nullptr;  // whose queue is the contents; null: empty
};

// A pseudo-terminal: of which kernel and /dev/pts, and the slave's number in there.
struct PtyKey {
  std::string kernel;
  std::uint64_t device = 0, rdev = 0;
  auto operator<=>(const PtyKey&) const = default;
};
struct PtyLink {
  std::vector<Holder> masters, slaves;  // no master: what it was is gone, and the slaves are hung up
  const Object* contents = nullptr;
};

inline constexpr int kInheritedStream = 3;  // see Links::outside

struct Links {
  std::map<PtyKey, PtyLink> ptys;
  std::set<const Object*> in_ptys;                                    // ends of these
  std::map<std::pair<std::uint64_t, std::uint64_t>, PipeLink> pipes;  // by device, inode
  std::map<std::uint64_t, Holder> sockets;                            // by inode: the same socket in every member
  std::map<std::string, std::uint64_t> tcp;                           // connection_key() -> inode
  std::map<std::string, std::uint64_t> unix_names;                    // unix_key() -> inode
  std::multimap<std::string, Holder> udp;                             // local endpoint key
  // Pipes (inode of pipefs) and sockets whose other end is outside. Tolerated since they are standard streams (object
  // -> 0, 1 or 2), or since the job was started with them (object -> kInheritedStream).
  std::map<const Object*, int> outside;
};

// A TCP connection as one end sees it, by `local` and `remote`. Loopback addresses mean their own network namespace.
std::string connection_key(const Table& table, const std::string& local, const std::string& remote);
// The other end of it. Null if it is not in the set.
const Holder* tcp_peer(const Links& links, const Holder& end);
// A bound Unix name, which is known within one kernel.
std::string unix_key(const Table& table, const std::string& address);
bool is_loopback(const std::string& address);

// Host and port in one comparable form: IPv4 and IPv4-mapped IPv6 are the same. Empty if there is no IP address.
std::string endpoint_key(const std::string& address);

// Inodes and the like, which are numbers of one kernel, come out as different ones for different kernels.
Status decode_tables(const std::map<std::uint32_t, std::string>& encoded, Tables* tables);
// Pointers in `links` lead into `tables`.
Status link_tables(const Tables& tables, Links* links);

// A segment as one member has it.
struct SegmentHolder {
  const Table* table = nullptr;
  std::uint32_t index = 0;
  const Segment& segment() const { return table->segments[index]; }
};
// The members that share each segment, ascending, by a key that is equal in all of them.
using SharedSegments = std::map<std::string, std::vector<SegmentHolder>>;
std::string segment_key(const Table& table, const Segment& segment);
SharedSegments collect_segments(const Tables& tables);
// System V semaphores and queues, each with the members that use it, by a key that is equal in all of them.
template <typename T>
using SystemVHolders = std::map<std::string, std::vector<std::pair<const Table*, const T*>>>;
struct SystemVObjects {
  SystemVHolders<SemaphoreSet> semaphores;
  SystemVHolders<MessageQueue> queues;
};
SystemVObjects collect_system_v(const Tables& tables);
// kRefused names an object that a process outside the set uses, too, or that no restart could give to all its
// members.
Status judge_system_v(const Tables& tables);
// kRefused: two members that share `what`, which has a System V id, are in different pid namespaces. A restart makes
// an IPC namespace for each of those.
Status judge_id_holders(const Table& first, const Table& other, const std::string& what);
// Likewise for all of them.
Status judge_pid_namespaces(const SystemVObjects& all);
// As the one tells who can see it, else as far as anyone has it mapped.
std::uint64_t segment_bytes(const std::vector<SegmentHolder>& holders);

}  // namespace shadowib::descriptors
