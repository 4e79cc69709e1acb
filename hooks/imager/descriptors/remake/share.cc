// Which members are made by one part of a restart, and what they have to do with those that another part makes.
#include <fcntl.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "hooks/imager/bonds.h"
#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/match/shared_descriptions.h"
#include "hooks/imager/descriptors/remake/restore.h"
#include "hooks/imager/descriptors/remake/tcp_socket.h"

namespace shadowib {
namespace descriptors {
namespace {

// Finds what several members of a plan hold or are connected by, TCP excepted.
class SharedObjects {
 public:
  SharedObjects(const Plan& plan, const BondSink& sink) : plan_(plan), sink_(sink) {}

  void find() const {
    for (const auto& [key, link] : plan_.links.pipes)
      for (const Holder& other : link.holders) bind(link.holders.front(), other);
    for (const auto& [key, link] : plan_.links.ptys)
      for (const auto* ends : {&link.masters, &link.slaves})
        for (const Holder& other : *ends)
          if (!link.masters.empty()) bind(link.masters.front(), other);
    find_inherited();
    find_locked();
    find_offsets();
    for (const auto& [inode, holder] : plan_.links.sockets) find_peers(holder);
  }

  // An open file that several members write to by one offset: apart, each has one of its own, and they write over
  // each other. What only looks like one description is taken for one once something was written by it. Each member's
  // own results, opened by all at the beginning, look so.
  void find_offsets() const {
    SharedDescriptions descriptions;
    std::map<std::pair<std::uint64_t, SharedDescriptions::Name>, Holder> first;  // with the pid namespace
    for (const auto& [member, table] : plan_.tables) descriptions.add(table);
    for (const auto& [member, table] : plan_.tables)
      for (std::uint32_t i = 0; i < table.objects.size(); ++i) {
        const Object& o = table.objects[i];
        const Holder holder{&table, i};
        if (o.kind != Kind::kFile || (o.flags & O_ACCMODE) == O_RDONLY || (o.flags & O_APPEND) != 0) continue;
        SharedDescriptions::Name name = descriptions.name_of(table, i);
        if (!name.told && o.offset == 0) continue;
        const Holder& one = first.emplace(std::pair{table.processes, std::move(name)}, holder).first->second;
        if (one.table != &table && !(is_appended_to(one) && is_appended_to(holder)))
          sink_({one.table->member, member, [one, holder] { return refuse_offset(one, holder); }});
      }
  }

 private:
  // Standard streams that lead outside get a stand-in in each part.
  void bind(const Holder& one, const Holder& other) const {
    if (one.table == other.table || plan_.is_outside(one.object()) || plan_.is_outside(other.object())) return;
    sink_(
        {one.table->member, other.table->member, [one, other] {
           return Status::of(
               Code::kRefused, 0,
               "descriptor %d (%s) of member %u is shared with member %u: they have to be restarted together, on one "
               "machine",
               one.table->first_fd(one.index), describe_object(one.object()).c_str(), one.table->member,
               other.table->member);
         }});
  }

  // By the command's own standard stream, which the member gets: job >out; restart >>out.
  bool is_appended_to(const Holder& holder) const {
    const int own = own_stream(plan_, *holder.table, holder.index);
    return own >= 0 && (::fcntl(own, F_GETFL) & O_APPEND) != 0;
  }

  static Status refuse_offset(const Holder& one, const Holder& other) {
    return Status::of(
        Code::kRefused, 0,
        "members %u and %u write to descriptor %d (%.150s) by one offset, and apart they would write over each "
        "other: "
        "they have to be restarted together, on one machine, as restart --hosts does; or open it with O_APPEND",
        one.table->member, other.table->member, one.table->first_fd(one.index),
        describe_object(one.object()).c_str());
  }

  // A socket or eventfd that several members inherited.
  void find_inherited() const {
    std::map<std::pair<Kind, std::uint64_t>, Holder> first;
    for (const auto& [member, table] : plan_.tables)
      for (std::uint32_t i = 0; i < table.objects.size(); ++i) {
        const Object& o = table.objects[i];
        const bool event = o.kind == Kind::kEventfd;
        if ((!event && o.domain == 0) || (event && o.identity == 0)) continue;
        const Holder holder{&table, i};
        bind(first.emplace(std::pair{o.kind, event ? o.identity : o.inode}, holder).first->second, holder);
      }
  }

  // An open file by whose lock several members are one holder: apart, the second could not take it.
  void find_locked() const {
    std::map<std::tuple<std::string, std::uint64_t, std::uint64_t>, std::vector<Holder>> by_file;
    for (const auto& [member, table] : plan_.tables)
      for (std::uint32_t i = 0; i < table.objects.size(); ++i) {
        const Object& o = table.objects[i];
        if (o.locks.empty()) continue;
        const Holder holder{&table, i};
        auto& others = by_file[{table.kernel, o.device, o.inode}];
        for (const Holder& other : others)
          if (share_a_lock(other, holder)) bind(other, holder);
        others.push_back(holder);
      }
  }

  // An exclusive lock has one holder. A shared flock of one taker is taken for one, as restore_files() does.
  static bool share_a_lock(const Holder& one, const Holder& other) {
    const Object &a = one.object(), &b = other.object();
    const bool alike = one.table->processes == other.table->processes && a.offset == b.offset && a.flags == b.flags;
    for (const FileLock& held : a.locks)
      for (const FileLock& lock : b.locks) {
        if (held.kind == LockKind::kRecord || held.kind != lock.kind || held.exclusive != lock.exclusive ||
            held.start != lock.start || held.end != lock.end)
          continue;
        if (held.exclusive != 0 || (held.kind == LockKind::kFlock && held.taker == lock.taker && alike)) return true;
      }
    return false;
  }

  void find_peers(const Holder& holder) const {
    const Object& o = holder.object();
    if (o.kind == Kind::kUnix) {
      if (const auto peer = plan_.links.sockets.find(o.peer_inode);
          o.peer_inode != 0 && peer != plan_.links.sockets.end())
        bind(holder, peer->second);
      for (const Message& m : o.queue)
        if (const auto name = plan_.links.unix_names.find(unix_key(*holder.table, m.source));
            !m.source.empty() && name != plan_.links.unix_names.end())
          bind(holder, plan_.links.sockets.at(name->second));
    }
    if (o.kind == Kind::kUdp && is_loopback(o.remote))
      for (auto [at, end] = plan_.links.udp.equal_range(endpoint_key(o.remote)); at != end; ++at)
        bind(holder, at->second);
  }

  const Plan& plan_;
  const BondSink& sink_;
};

class Share {
 public:
  Share(const std::set<std::uint32_t>& here, Plan* plan) : here_(here), plan_(*plan) {}

  Status keep() {
    Status parted;
    SharedObjects(plan_, first_parted(here_, &parted)).find();
    SHADOWIB_TRY(parted);
    for (const auto& [inode, holder] : plan_.links.sockets)
      if (const Object& o = holder.object();
          o.kind == Kind::kTcp && o.state == SocketState::kConnected && is_here(holder))
        note_apart(holder);
    prune();
    return {};
  }

 private:
  bool is_here(const Holder& holder) const { return here_.contains(holder.table->member); }

  void note_apart(const Holder& holder) {
    const Holder* peer = tcp_peer(plan_.links, holder);
    if (peer == nullptr || is_here(*peer)) return;
    // Both parts come to the same choice: who listens at its port, and if both or neither does, the lower number.
    const bool mine = listens(holder), theirs = listens(*peer);
    const bool passive = mine != theirs ? mine : holder.object().inode < peer->object().inode;
    const Holder& waits = passive ? holder : *peer;
    plan_.apart[&holder.object()] = {&peer->object(), passive,
                                     "m" + std::to_string(waits.table->member) + "." + std::to_string(waits.index)};
  }

  bool listens(const Holder& holder) const {
    return std::any_of(plan_.links.sockets.begin(), plan_.links.sockets.end(), [&](const auto& entry) {
      const Holder& other = entry.second;
      return other.object().kind == Kind::kTcp && other.object().state == SocketState::kListening &&
             other.table->kernel == holder.table->kernel &&
             port_of(other.object().local) == port_of(holder.object().local);
    });
  }

  // Nodes change hands, so that what leads into the tables still does.
  void prune() {
    const auto gone = [this](const Holder& holder) { return !is_here(holder); };
    std::erase_if(plan_.links.pipes, [&](const auto& entry) { return gone(entry.second.holders.front()); });
    for (auto& [key, link] : plan_.links.ptys) {
      std::erase_if(link.masters, gone);
      std::erase_if(link.slaves, gone);
    }
    std::erase_if(plan_.links.ptys,
                  [](const auto& entry) { return entry.second.masters.empty() && entry.second.slaves.empty(); });
    const auto socket_gone = [&](std::uint64_t inode) { return gone(plan_.links.sockets.at(inode)); };
    std::erase_if(plan_.links.tcp, [&](const auto& entry) { return socket_gone(entry.second); });
    std::erase_if(plan_.links.unix_names, [&](const auto& entry) { return socket_gone(entry.second); });
    std::erase_if(plan_.links.udp, [&](const auto& entry) { return gone(entry.second); });
    std::erase_if(plan_.links.sockets, [&](const auto& entry) { return gone(entry.second); });
    for (auto at = plan_.tables.begin(); at != plan_.tables.end();) {
      const auto next = std::next(at);
      if (!here_.contains(at->first)) plan_.elsewhere.insert(plan_.tables.extract(at));
      at = next;
    }
    std::erase_if(plan_.links.outside, [this](const auto& entry) {
      return std::any_of(plan_.elsewhere.begin(), plan_.elsewhere.end(), [&entry](const auto& other) {
        const std::vector<Object>& objects = other.second.objects;
        return entry.first >= objects.data() && entry.first < objects.data() + objects.size();
      });
    });
  }

  const std::set<std::uint32_t>& here_;
  Plan& plan_;
};

}  // namespace

Status keep_members(const std::set<std::uint32_t>& here, Plan* plan) { return Share(here, plan).keep(); }

}  // namespace descriptors

Status find_offset_bonds(const std::map<std::uint32_t, std::string>& encoded, Streams streams, const BondSink& sink) {
  descriptors::Plan plan;
  SHADOWIB_TRY(descriptors::decode_tables(encoded, &plan.tables));
  for (int stream = 0; stream < 3 && streams == Streams::kOwn; ++stream) plan.standard[stream] = stream;
  descriptors::SharedObjects(plan, sink).find_offsets();
  return {};
}

Status find_descriptor_bonds(const std::map<std::uint32_t, std::string>& encoded, const BondSink& sink) {
  descriptors::Plan plan;
  SHADOWIB_TRY(descriptors::decode_tables(encoded, &plan.tables));
  SHADOWIB_TRY(descriptors::link_tables(plan.tables, &plan.links));
  descriptors::SharedObjects(plan, sink).find();
  return {};
}

Status split_members(const std::map<std::uint32_t, std::string>& encoded,
                     std::vector<std::set<std::uint32_t>>* parts) {
  descriptors::Tables tables;
  SHADOWIB_TRY(descriptors::decode_tables(encoded, &tables));
  std::map<std::pair<std::string, std::uint64_t>, std::set<std::uint32_t>> by_namespace;
  for (const auto& [member, table] : tables) by_namespace[{table.kernel, table.processes}].insert(member);
  for (auto& [where, members] : by_namespace) parts->push_back(std::move(members));
  std::sort(parts->begin(), parts->end());
  return {};
}

Status find_ranks(const std::map<std::uint32_t, std::string>& encoded, std::set<std::uint32_t>* ranks) {
  descriptors::Tables tables;
  SHADOWIB_TRY(descriptors::decode_tables(encoded, &tables));
  for (const auto& [member, table] : tables)
    if (std::any_of(table.objects.begin(), table.objects.end(),
                    [](const descriptors::Object& o) { return o.kind == descriptors::Kind::kLauncher; }))
      ranks->insert(member);
  return {};
}

}  // namespace shadowib
