#include "hooks/imager/descriptors/match/match.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/match/family.h"
#include "hooks/imager/descriptors/pty.h"
#include "hooks/raw/proc.h"

namespace shadowib {
namespace descriptors {
namespace {

Status refuse_end(const Holder& holder, const char* why, int error = 0) {
  return Status::of(Code::kRefused, error, "descriptor %d (%s) of pid %d, member %u, cannot be checkpointed: %s",
                    holder.table->first_fd(holder.index), describe_object(holder.object()).c_str(), holder.table->pid,
                    holder.table->member, why);
}

std::pair<std::uint64_t, std::uint64_t> pipe_key(const Object& o) { return {o.device, o.inode}; }

void collect_pipe(const Holder& holder, Links* links) {
  const Object& o = holder.object();
  PipeLink& link = links->pipes[pipe_key(o)];
  int mode = o.flags & O_ACCMODE;
  link.holders.push_back(holder);
  link.read |= mode != O_WRONLY;
  link.write |= mode != O_RDONLY;
  link.packets |= mode != O_RDONLY && (o.flags & O_DIRECT) != 0;
  if (mode != O_WRONLY && !o.queue.empty()) {
    link.contents = &o;
    link.packets |= o.queue.size() > 1;
  }
}

Status collect_socket(const Holder& holder, Links* links) {
  const Object& o = holder.object();
  auto [at, added] = links->sockets.emplace(o.inode, holder);
  if (!added) {
    if (at->second.object().kind == o.kind && at->second.object().state == o.state) return {};
    return Status::of(Code::kCorrupt, 0, "members %u and %u describe socket %llu differently",
                      at->second.table->member, holder.table->member, static_cast<unsigned long long>(o.inode));
  }
  if (o.kind == Kind::kTcp && o.state == SocketState::kConnected)
    links->tcp[connection_key(*holder.table, o.local, o.remote)] = o.inode;
  if (o.kind == Kind::kUnix && !o.local.empty() && (o.type == SOCK_DGRAM || o.state == SocketState::kListening))
    links->unix_names[unix_key(*holder.table, o.local)] = o.inode;
  if (o.kind == Kind::kUdp && !o.local.empty()) links->udp.emplace(endpoint_key(o.local), holder);
  return {};
}

void collect_pty(const Holder& holder, Links* links) {
  const Object& o = holder.object();
  const Table& t = *holder.table;
  if (o.kind == Kind::kPty) {
    PtyLink& link = links->ptys[{t.kernel, o.device, o.rdev}];
    link.masters.push_back(holder);
    if ((o.pty_flags & kPtyContents) != 0) link.contents = &o;
  }
  if (is_pty_slave(o)) links->ptys[{t.kernel, o.device, o.rdev}].slaves.push_back(holder);
  if (o.kind == Kind::kDevice && o.identity != 0)  // /dev/tty
    links->ptys[{t.kernel, t.terminal_device, o.identity}].slaves.push_back(holder);
}

Status collect(const Tables& tables, Links* links) {
  for (const auto& [member, table] : tables)
    for (std::uint32_t i = 0; i < table.objects.size(); ++i) {
      Holder holder{&table, i};
      Kind kind = holder.object().kind;
      collect_pty(holder, links);
      if (kind == Kind::kPipe || kind == Kind::kFifo) collect_pipe(holder, links);
      if (kind == Kind::kTcp || kind == Kind::kUdp || kind == Kind::kUnix || kind == Kind::kNetlink)
        SHADOWIB_TRY(collect_socket(holder, links));
    }
  return {};
}

Status judge_pipe(const PipeLink& link, Links* links) {
  if (link.read && link.write) return {};
  bool gone = std::all_of(link.holders.begin(), link.holders.end(),
                          [](const Holder& h) { return h.object().counterpart_gone != 0; });
  if (gone) return {};
  int stdio = -1;
  for (const Holder& h : link.holders) stdio = std::max(stdio, static_cast<int>(h.object().stdio));
  for (const Holder& h : link.holders) {
    if (stdio < 0 && h.object().inherited != 0 && h.object().kind == Kind::kPipe) {
      links->outside[&h.object()] = kInheritedStream;
      continue;
    }
    if (stdio < 0)
      return refuse_end(
          h,
          "the other end of this pipe is held by a process outside the job; close it, or run that process "
          "in the job too");
    links->outside[&h.object()] = h.object().stdio >= 0 ? h.object().stdio : stdio;
  }
  return {};
}

bool is_member(const PtyUser& user, const std::string& kernel, const Tables& tables) {
  return std::any_of(tables.begin(), tables.end(), [&](const auto& entry) {
    return entry.second.kernel == kernel && entry.second.processes == user.space && entry.second.pid == user.pid;
  });
}

Status judge_pty(const PtyKey& key, PtyLink* link, const Tables& tables) {
  for (const Holder& h : link->masters) {
    for (const PtyUser& user : h.object().users)
      if (!is_member(user, key.kernel, tables))
        return refuse_end(h, ("its " + std::string(user.slave != 0 ? "slave" : "master") + " is open in process " +
                              std::to_string(user.pid) + " (" + user.name +
                              "), which is no member of the job; end it, or run it in the job too")
                                 .c_str());
    if ((h.object().pty_flags & kPtyUnopened) != 0)
      return refuse_end(h,
                        "nobody has opened its slave yet, so what was written to it cannot be read; open the slave "
                        "before the checkpoint, or close both");
  }
  if (!link->masters.empty() && link->contents == nullptr)
    return refuse_end(link->masters.front(), "nobody in the job could look at what is in it");
  if (!link->masters.empty()) return {};
  // Standard streams are connected to the command's, hung up or not, as is /dev/tty.
  std::erase_if(link->slaves, [](const Holder& h) { return h.object().stdio >= 0 || h.object().identity != 0; });
  for (const Holder& h : link->slaves)
    if (h.object().counterpart_gone == 0)
      return refuse_end(
          h,
          "it is not the terminal of standard input, output or error, and its master is held by a process "
          "outside the job; close it before the checkpoint, or run that process in the job too");
  return {};
}

Status judge_ptys(const Tables& tables, Links* links) {
  for (auto& [key, link] : links->ptys) {
    SHADOWIB_TRY(judge_pty(key, &link, tables));
    for (const auto* ends : {&link.masters, &link.slaves})
      for (const Holder& h : *ends) links->in_ptys.insert(&h.object());
  }
  std::erase_if(links->ptys,
                [](const auto& entry) { return entry.second.masters.empty() && entry.second.slaves.empty(); });
  return {};
}

// The other end is not in the set: fine for a standard stream, else refused.
Status judge_outsider(const Holder& holder, Links* links) {
  if (holder.object().stdio >= 0) {
    links->outside[&holder.object()] = holder.object().stdio;
    return {};
  }
  if (holder.object().inherited != 0) {
    links->outside[&holder.object()] = kInheritedStream;
    return {};
  }
  return refuse_end(holder, "the other end is outside the job; close the connection, or run its peer in the job too");
}

bool has_peer(const Links& links, const Object& o, Kind kind) {
  auto peer = links.sockets.find(o.peer_inode);
  return peer != links.sockets.end() && peer->second.object().kind == kind && &peer->second.object() != &o &&
         peer->second.object().type == o.type;
}

// Each queued datagram must have a sender we can have again: the peer, a name bound in the set, or one that leads to
// nobody.
Status judge_senders(const Holder& holder, const Links& links) {
  const Object& o = holder.object();
  // What is connected takes datagrams of its peer alone, and nobody else can name what has no name.
  const bool takes_others = o.state != SocketState::kConnected && !o.local.empty();
  for (const Message& m : o.queue) {
    const bool sent_anew = m.sender_gone != 0 && takes_others;
    if (!m.source.empty() && !sent_anew && !links.unix_names.contains(unix_key(*holder.table, m.source)))
      return refuse_end(holder,
                        "a datagram waits on it from a sender outside the job; receive it before the checkpoint");
    bool peer = has_peer(links, o, Kind::kUnix) || (o.state == SocketState::kConnected && o.counterpart_gone);
    if (m.source.empty() && o.local.empty() && !peer)
      return refuse_end(holder, "a datagram waits on it whose sender has closed; receive it before the checkpoint");
  }
  return {};
}

Status judge_unix(const Holder& holder, Links* links) {
  const Object& o = holder.object();
  if (o.state == SocketState::kConnected && !o.counterpart_gone) {
    if (!has_peer(*links, o, Kind::kUnix)) return judge_outsider(holder, links);
    const Object& peer = links->sockets.at(o.peer_inode).object();
    if (o.type != SOCK_DGRAM && (peer.peer_inode != o.inode || peer.state != SocketState::kConnected))
      return Status(Code::kCorrupt, 0, "two ends of a Unix connection disagree about each other");
    if (o.type == SOCK_DGRAM && peer.peer_inode != o.inode && peer.local.empty())
      return refuse_end(holder, "it is connected to an unnamed socket that has since been connected elsewhere");
  }
  return o.type == SOCK_DGRAM ? judge_senders(holder, *links) : Status();
}

Status judge_tcp(const Holder& holder, Links* links) {
  const Object& o = holder.object();
  if (o.state != SocketState::kConnected) return {};
  if (endpoint_key(o.local) == endpoint_key(o.remote)) return refuse_end(holder, "it is connected to itself");
  if (tcp_peer(*links, holder) == nullptr && !o.counterpart_gone) return judge_outsider(holder, links);
  if (o.undrained != 0)
    return refuse_end(
        holder,
        "bytes sent on it do not fit the receiver's queue (net.ipv4.tcp_rmem, SO_RCVBUF); let the receiver "
        "read, then try again");
  return {};
}

bool same_network(const std::string& remote, const Table& one, const Table& other) {
  return !is_loopback(remote) || (one.kernel == other.kernel && one.network == other.network);
}

Status judge_udp(const Holder& holder, Links* links) {
  const Object& o = holder.object();
  if (o.remote.empty()) return {};
  std::string remote = endpoint_key(o.remote);
  for (const auto& [local, peer] : links->udp)  // a peer bound to any address has only the port in common
    if (same_network(o.remote, *holder.table, *peer.table) &&
        (local == remote || (local.size() == remote.size() && local.substr(16) == remote.substr(16) &&
                             (local.substr(0, 16) == std::string(16, '\0') ||
                              local.substr(0, 16) == std::string(10, '\0') + "\xff\xff" + std::string(4, '\0')))))
      return {};
  return judge_outsider(holder, links);
}

// What /proc has of a process: after a restart members have their pids, and there is a first process.
Status judge_process_file(const Holder& holder, const Tables& tables) {
  const Table& own = *holder.table;
  const Object& o = holder.object();
  const std::int32_t pid = o.kind == Kind::kFile || o.kind == Kind::kDirectory ? process_of(o.path) : 0;
  const bool known = pid <= 1 || std::any_of(tables.begin(), tables.end(), [&](const auto& entry) {
                       return entry.second.kernel == own.kernel && entry.second.processes == own.processes &&
                              entry.second.pid == pid;
                     });
  if (known) return {};
  return refuse_end(holder, "it tells of a process that is no member of the job; close it before the checkpoint",
                    EAGAIN);
}

Status judge_epoll(const Holder& holder) {
  for (const EpollEntry& entry : holder.object().entries) {
    auto& descriptors = holder.table->descriptors;
    bool there = std::any_of(descriptors.begin(), descriptors.end(), [&](auto& d) { return d.fd == entry.fd; });
    if (!there)
      return Status::of(Code::kCorrupt, 0, "an epoll set watches descriptor %d, which is not there", entry.fd);
  }
  return {};
}

void separate_kernels(Tables* tables) {
  constexpr int kShift = 48;  // inode numbers of pipes and sockets are counted up from 1
  std::map<std::string, std::uint64_t> order;
  for (auto& [member, table] : *tables) {
    const std::uint64_t mark = order.emplace(table.kernel, order.size()).first->second << kShift;
    for (Object& o : table.objects) {
      if (o.kind < Kind::kPipe || o.kind == Kind::kTimerfd || o.kind >= Kind::kMemory) continue;
      o.inode ^= mark;
      if (o.peer_inode != 0) o.peer_inode ^= mark;
      if (o.identity != 0) o.identity ^= mark;
    }
  }
}

}  // namespace

bool is_loopback(const std::string& address) {
  const std::string key = endpoint_key(address);
  if (key.size() < 16) return false;
  const bool mapped = key.compare(0, 12, std::string(10, '\0') + "\xff\xff") == 0;
  return mapped ? key[12] == 127 : key.compare(0, 16, std::string(15, '\0') + '\1') == 0;
}

std::string connection_key(const Table& table, const std::string& local, const std::string& remote) {
  std::string key = endpoint_key(local) + endpoint_key(remote);
  if (is_loopback(local) || is_loopback(remote)) key += table.kernel + " " + std::to_string(table.network);
  return key;
}

const Holder* tcp_peer(const Links& links, const Holder& end) {
  const auto at = links.tcp.find(connection_key(*end.table, end.object().remote, end.object().local));
  return at == links.tcp.end() ? nullptr : &links.sockets.at(at->second);
}

std::string unix_key(const Table& table, const std::string& address) { return table.kernel + " " + address; }

std::string endpoint_key(const std::string& address) {
  std::string key;
  if (address.size() == sizeof(sockaddr_in)) {
    sockaddr_in in;
    std::memcpy(&in, address.data(), sizeof(in));
    key.assign(10, '\0');
    key += "\xff\xff";
    key.append(reinterpret_cast<const char*>(&in.sin_addr), 4);
    key.append(reinterpret_cast<const char*>(&in.sin_port), 2);
  } else if (address.size() == sizeof(sockaddr_in6)) {
    sockaddr_in6 in;
    std::memcpy(&in, address.data(), sizeof(in));
    key.append(reinterpret_cast<const char*>(&in.sin6_addr), 16);
    key.append(reinterpret_cast<const char*>(&in.sin6_port), 2);
  }
  return key;
}

Status decode_tables(const std::map<std::uint32_t, std::string>& encoded, Tables* tables) {
  for (const auto& [member, bytes] : encoded) {
    Table& table = (*tables)[member];
    SHADOWIB_TRY(decode_table(bytes, &table));
    if (table.member != member)
      return Status::of(Code::kCorrupt, 0, "descriptor table of member %u stands where member %u's belongs",
                        table.member, member);
  }
  separate_kernels(tables);
  return {};
}

Status link_tables(const Tables& tables, Links* links) {
  SHADOWIB_TRY(judge_families(tables));
  SHADOWIB_TRY(collect(tables, links));
  for (const auto& [key, link] : links->pipes) SHADOWIB_TRY(judge_pipe(link, links));
  SHADOWIB_TRY(judge_ptys(tables, links));
  for (const auto& [member, table] : tables)
    for (std::uint32_t i = 0; i < table.objects.size(); ++i) {
      Holder holder{&table, i};
      switch (holder.object().kind) {
        case Kind::kUnix:
          SHADOWIB_TRY(judge_unix(holder, links));
          break;
        case Kind::kTcp:
          SHADOWIB_TRY(judge_tcp(holder, links));
          break;
        case Kind::kUdp:
          SHADOWIB_TRY(judge_udp(holder, links));
          break;
        case Kind::kEpoll:
          SHADOWIB_TRY(judge_epoll(holder));
          break;
        default:
          break;
      }
    }
  return {};
}

}  // namespace descriptors

Status match_descriptors(const std::map<std::uint32_t, std::string>& encoded) {
  descriptors::Tables tables;
  SHADOWIB_TRY(descriptors::decode_tables(encoded, &tables));
  SHADOWIB_TRY(descriptors::judge_system_v(tables));
  descriptors::Links links;
  SHADOWIB_TRY(descriptors::link_tables(tables, &links));
  for (const auto& [member, table] : tables)
    for (std::uint32_t i = 0; i < table.objects.size(); ++i)
      SHADOWIB_TRY(descriptors::judge_process_file({&table, i}, tables));
  return {};
}

Status read_families(const std::map<std::uint32_t, std::string>& encoded, std::map<std::uint32_t, Family>* families) {
  descriptors::Tables tables;
  SHADOWIB_TRY(descriptors::decode_tables(encoded, &tables));
  SHADOWIB_TRY(descriptors::judge_families(tables));
  for (const auto& [member, table] : tables) {
    Family& family = (*families)[member];
    family = {table.pid, table.group, table.session, 0, {}};
    if (const descriptors::Table* parent = descriptors::parent_of(tables, table)) family.parent = parent->pid;
    for (const descriptors::Child& c : table.children)
      if (c.ended != 0)
        family.ended.push_back({c.pid, c.session == table.session || c.group == c.pid ? c.group : 0, c.wait_status});
  }
  return {};
}

}  // namespace shadowib
