#include "shadowib/cr/peers.h"

#include <endian.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>

#include "hooks/agent/agent.h"
#include "hooks/job/protocol.h"
#include "shadowib/base/guard.h"
#include "shadowib/base/lasting.h"
#include "shadowib/base/log.h"
#include "shadowib/cr/border.h"
#include "shadowib/cr/ports.h"
#include "shadowib/cr/published_ids.h"
#include "shadowib/cr/wiring.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/objects/ip_groups.h"
#include "shadowib/objects/registry.h"
#include "shadowib/objects/route_header.h"

namespace shadowib {
namespace {

// Caches of what the exchange said, under their own lock; rebuilt in a new epoch.
struct Cache {
  SpinLock lock;
  std::map<std::string, std::vector<std::uint32_t>> members SHADOWIB_GUARDED_BY(lock);              // by address key
  std::map<std::uint32_t, std::shared_ptr<const Directory>> directories SHADOWIB_GUARDED_BY(lock);  // by member
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::weak_ptr<RemoteKeys>> remote_keys
      SHADOWIB_GUARDED_BY(lock);  // by member, pd
  std::map<SourceAddress, DatagramSource> sources SHADOWIB_GUARDED_BY(lock);
};
Cache& cache() { return Lasting<Cache>::get(); }

std::string key_of(const RemoteEnd& remote) {
  return remote.lid.value != 0 ? address_key(remote.lid) : address_key(remote.gid);
}

// As members_at, cached unless `again`.
Status cached_members_at(const RemoteEnd& remote, bool again, std::vector<std::uint32_t>* members) {
  const std::string key = key_of(remote);
  Cache& c = cache();
  if (!again) {
    SpinGuard guard(c.lock);
    if (auto it = c.members.find(key); it != c.members.end()) {
      *members = it->second;
      return {};
    }
  }
  SHADOWIB_TRY(members_at(remote, members));
  SpinGuard guard(c.lock);
  c.members[key] = *members;
  return {};
}

// Null: it has published none. `again`: asks the exchange even if it was asked before. Shared, since it is as long as
// its member has objects, and each of ours asks.
Status directory_of(std::uint32_t member, bool again, std::shared_ptr<const Directory>* directory) {
  directory->reset();
  Cache& c = cache();
  if (!again) {
    SpinGuard guard(c.lock);
    if (auto it = c.directories.find(member); it != c.directories.end()) {
      *directory = it->second;
      return {};
    }
  }
  std::string text;
  bool found = false;
  SHADOWIB_TRY(job_exchange()->get(job_key("rebuild/" + std::to_string(member)), &text, &found));
  const auto decoded = std::make_shared<Directory>();
  if (!found || !decode_directory(text, decoded.get())) return {};
  *directory = decoded;
  SpinGuard guard(c.lock);
  c.directories[member] = decoded;
  return {};
}

std::shared_ptr<RemoteKeys> remote_keys_of(std::uint32_t member, std::uint32_t pd, const Directory& directory) {
  Cache& c = cache();
  SpinGuard guard(c.lock);
  std::weak_ptr<RemoteKeys>& entry = c.remote_keys[{member, pd}];
  if (auto known = entry.lock()) return known;
  auto keys = std::make_shared<RemoteKeys>();
  keys->member = member;
  keys->pd = pd;
  for (const DirectoryKey& k : directory.keys)
    if (k.pd == pd) keys->keys.insert({k.virtual_rkey}, {k.real_rkey});
  for (const DirectoryKey& k : directory.windows)
    if (k.pd == pd) keys->windows.insert({k.virtual_rkey}, {k.real_rkey});
  entry = keys;
  return keys;
}

bool is_at(const DirectoryPort& port, const RemoteEnd& remote) {
  return remote.lid.value != 0 ? port.virtual_lid == remote.lid.value
                               : std::memcmp(&port.virtual_gid, &remote.gid, sizeof(ibv_gid)) == 0;
}

const DirectoryPort* port_in(const Directory& directory, const RemoteEnd& remote) {
  for (const DirectoryPort& port : directory.ports)
    if (is_at(port, remote)) return &port;
  return nullptr;
}

// The real number and protection domain of what others name by number: from its member's rebuild, or made since.
Status find_number(const char* kind, std::uint32_t member, std::uint32_t adapter,
                   const std::vector<DirectoryNumber>& known, std::uint32_t number, DirectoryNumber* out,
                   bool* found) {
  const DirectoryNumber wanted{number, 0, 0, adapter};
  auto it = std::lower_bound(known.begin(), known.end(), wanted);
  *found = it != known.end() && !(wanted < *it);
  if (*found) {
    *out = *it;
    return {};
  }
  std::string text;
  SHADOWIB_TRY(job_exchange()->get(late_number_key(kind, member, adapter, number), &text, found));
  *found = *found && text.size() == sizeof(*out);
  if (*found) std::memcpy(out, text.data(), sizeof(*out));
  return {};
}

// What a virtual address, and a number behind it, really are.
struct Found {
  bool has_port = false, has_number = false;
  DirectoryPort port{};       // of the member that has the number; of any at the address if none has
  std::uint32_t at_port = 0;  // that member
  std::uint32_t member = 0;
  DirectoryNumber number{kNobodyQpNum, kNobodyQpNum, 0, 0};
  std::shared_ptr<RemoteKeys> keys;  // of the number's protection domain
};

// *done: nothing is left to look for.
Status look_at(std::uint32_t member, const Directory& directory, const RemoteEnd& remote, const char* kind,
               std::uint32_t number, Found* found, bool* done) {
  const DirectoryPort* port = port_in(directory, remote);
  if (port == nullptr) return {};
  if (!found->has_port) found->port = *port, found->at_port = member;
  found->has_port = true;
  *done = kind == nullptr;
  if (*done) return {};
  const auto& known = std::strcmp(kind, "qp") == 0 ? directory.qps : directory.srqs;
  std::vector<std::uint32_t> asked;
  for (const DirectoryPort& each : directory.ports) {
    if (!is_at(each, remote) || std::find(asked.begin(), asked.end(), each.adapter) != asked.end()) continue;
    asked.push_back(each.adapter);
    port = &each;
    SHADOWIB_TRY(find_number(kind, member, each.adapter, known, number, &found->number, done));
    if (*done) break;
  }
  if (!*done) return {};
  found->port = *port;
  found->member = found->at_port = member;
  found->has_number = true;
  found->keys = remote_keys_of(member, found->number.pd, directory);
  return {};
}

// Looks for the member at that address which has `number` of that kind ("qp" or "srq"; nullptr: any member will do).
// Asks again once, since a member may have opened a device since we looked. One whose directory has the address has
// not got the number: what it makes later is found apart. Its directory is not read anew for each queue pair that is
// gone.
Status find_remote(const RemoteEnd& remote, const char* kind, std::uint32_t number, Found* found) {
  std::vector<std::uint32_t> members, looked_at;
  for (bool again : {false, true}) {
    SHADOWIB_TRY(cached_members_at(remote, again, &members));
    for (std::uint32_t member : members) {
      if (std::find(looked_at.begin(), looked_at.end(), member) != looked_at.end()) continue;
      std::shared_ptr<const Directory> directory;
      SHADOWIB_TRY(directory_of(member, again, &directory));
      if (directory == nullptr) continue;
      bool done = false;
      SHADOWIB_TRY(look_at(member, *directory, remote, kind, number, found, &done));
      if (done) return {};
      if (port_in(*directory, remote) != nullptr) looked_at.push_back(member);
    }
  }
  return {};
}

// Members of other clusters that have never left the epoch have published no directory in its first generation: they
// are who they were, and so is the cluster that goes back to them.
Status count_as_identical(const RemoteEnd& remote, const Found& found, bool* identical) {
  *identical = false;
  if (found.has_port || !goes_back()) return {};
  std::vector<std::uint32_t> members;
  SHADOWIB_TRY(cached_members_at(remote, false, &members));
  for (std::uint32_t member : members) {
    std::shared_ptr<const Directory> directory;
    SHADOWIB_TRY(directory_of(member, false, &directory));
    if (directory != nullptr) return {};
  }
  *identical = !members.empty();
  return {};
}

bool is_multicast(const ibv_ah_attr& attr) {
  return attr.is_global != 0 ? is_multicast_gid(attr.grh.dgid) : attr.dlid >= kFirstMulticastLid;
}

bool find_source(const SourceAddress& from, DatagramSource* source) {
  Cache& c = cache();
  {
    SpinGuard guard(c.lock);
    if (auto it = c.sources.find(from); it != c.sources.end()) {
      *source = it->second;
      return true;
    }
  }
  std::string text;
  bool found = false;
  if (!job_exchange()->get(source_key(from), &text, &found).ok() || !found || text.size() != sizeof(*source))
    return false;
  std::memcpy(source, text.data(), sizeof(*source));
  SpinGuard guard(c.lock);
  c.sources.insert_or_assign(from, *source);
  return true;
}

// The header in front of a datagram, which may lie in several pieces: out of them or, if `back`, into them. By system
// calls, since a program may have unmapped its buffer. False: it is not there.
bool copy_first(ShadowContext& context, const ibv_sge* list, int count, RouteHeader* header, bool back) {
  char* at = reinterpret_cast<char*>(header);
  std::size_t left = sizeof(*header);
  for (int i = 0; i < count && left > 0; ++i) {
    const std::size_t n = std::min<std::size_t>(left, list[i].length);
    const iovec ours{at, n}, its{context.displaced.memory_of({list[i].lkey}, list[i].addr), n};
    const ssize_t done = back ? ::process_vm_writev(::getpid(), &ours, 1, &its, 1, 0)
                              : ::process_vm_readv(::getpid(), &ours, 1, &its, 1, 0);
    if (done != static_cast<ssize_t>(n)) return false;
    at += n;
    left -= n;
  }
  return left == 0;
}

// What a peer has made since the restart, if its virtual key is not the real one. Not *found: *real is unchanged.
Status find_late(const char* kind, const RemoteKeys& remote, VirtualKey id, RealKey* real, bool* found) {
  *found = false;
  if (!guarded(Guard::kAskForLateKeys)) return {};
  std::string text;
  SHADOWIB_TRY(job_exchange()->get(late_key(kind, remote.member, remote.pd, id.value), &text, found));
  *found = *found && text.size() == sizeof(real->value);
  if (*found) std::memcpy(&real->value, text.data(), sizeof(real->value));
  return {};
}

// A request that needs what the exchange does not tell is refused.
int post_error(const Status& status) {
  log_line(LogLevel::kError, "a request is refused, since the exchange does not tell where it leads: %s",
           status.text());
  return EIO;
}

// Before the first restart, when addresses are real ones. Adapters other than ib2tcp give guests none of their own.
bool has_guests_lid(const RemoteEnd& remote) {
  if (g_backend.name == nullptr || std::strcmp(g_backend.name, "ib2tcp") != 0) return false;
  const std::uint32_t lid = remote.lid.value != 0 ? remote.lid.value : remote.gid.raw[14] << 8u | remote.gid.raw[15];
  return lid >= kFirstGuestLid && lid < kNobodyLid;
}

// The program's address of somebody. On Ethernet a LID means nothing, whatever stands there: UCX has 0xc000.
void note_address(const ShadowContext& context, const ibv_ah_attr& attr, RemoteEnd* remote) {
  const bool has_port = attr.port_num >= 1 && attr.port_num <= context.ports.size();
  const bool ethernet = has_port && context.ports[attr.port_num - 1u].attr.link_layer == IBV_LINK_LAYER_ETHERNET;
  remote->lid = {ethernet ? 0u : attr.dlid};
  remote->has_gid = attr.is_global != 0;
  if (remote->has_gid) remote->gid = attr.grh.dgid;
}

void note_remote(ShadowQp& qp, const ibv_qp_attr& attr, int mask) {
  SpinGuard guard(registry().lock);  // the status that others ask for shows it
  if (mask & IBV_QP_AV) note_address(*qp.context, attr.ah_attr, &qp.remote);
  if (mask & IBV_QP_DEST_QPN) qp.remote.qp_num = {attr.dest_qp_num};
}

bool lead_to_one_place(const ibv_ah_attr& a, const ibv_ah_attr& b) {
  return a.dlid == b.dlid && (a.is_global == 0 || std::memcmp(&a.grh.dgid, &b.grh.dgid, sizeof(ibv_gid)) == 0);
}

// The backend's handle to one of the members at that address. nullptr: it cannot be made.
ibv_ah* handle_to(ShadowAh& ah, const DirectoryPort& port) {
  ibv_ah_attr attr = ah.attr;
  set_route(*ShadowContext::of(ah.ah.context), &port, &attr);
  if (lead_to_one_place(ah.real_attr, attr)) return ah.real;
  const auto known = [&]() -> ibv_ah* {
    for (const AhRoute& route : ah.routes)
      if (lead_to_one_place(route.attr, attr)) return route.real;
    return nullptr;
  };
  {
    SpinGuard guard(ah.lock);
    if (ibv_ah* real = known()) return real;
  }
  ibv_ah* const made = g_backend.create_ah(ShadowPd::of(ah.ah.pd)->real, &attr);
  if (made == nullptr) {
    log_line(LogLevel::kError, "an address handle to LID %u cannot be made (errno %d)", attr.dlid, errno);
    return nullptr;
  }
  SpinGuard guard(ah.lock);
  if (ibv_ah* real = known()) {  // another thread was faster
    g_backend.destroy_ah(made);
    return real;
  }
  ah.routes.push_back({attr, made});
  return made;
}

// READs and atomics under way at once: what the program asks for as its adapter's, or its peer's, may be more than
// this one has, or the peer's of now.
void limit_reads(const ShadowQp& qp, ibv_qp_attr* attr, int mask) {
  const ShadowContext& context = *qp.context;
  const auto limit = [](std::uint8_t* asked, int told, std::int64_t is) {
    if (*asked <= told && is > 0) *asked = static_cast<std::uint8_t>(std::min<std::int64_t>(*asked, is));
  };
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
    limit(&attr->max_dest_rd_atomic, context.attr.max_qp_rd_atom, context.real_attr.max_qp_rd_atom);
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) == 0) return;
  limit(&attr->max_rd_atomic, context.attr.max_qp_init_rd_atom, context.real_attr.max_qp_init_rd_atom);
  limit(&attr->max_rd_atomic, context.attr.max_qp_init_rd_atom, qp.remote.real_responders);
}

// Partitions are known by their P_Keys; where a port's table has one differs between adapters and machines.
Status turn_partition(const ShadowQp& qp, std::uint8_t port_number, std::uint16_t* index) {
  const std::vector<ShadowPort>& ports = qp.context->ports;
  if (port_number < 1 || port_number > ports.size()) return {};  // the adapter will say what is wrong
  const ShadowPort& port = ports[port_number - 1u];
  if (*index >= port.real_pkey_indices.size()) return {};
  const int real = port.real_pkey_indices[*index];
  if (real < 0)
    return Status::of(
        Code::kRefused, EINVAL,
        "queue pair 0x%x is in the partition of P_Key 0x%x, of which port %u of this adapter is no member",
        qp.qp_num.value, be16toh(port.pkeys[*index]), port_number);
  *index = static_cast<std::uint16_t>(real);
  return {};
}

std::uint8_t first_port(const ShadowQp& qp, const ibv_qp_attr& attr, int mask) {
  if (mask & IBV_QP_PORT) return attr.port_num;
  std::uint8_t number = 0;
  for (const RecordedModify& m : qp.modifies)
    if (m.mask & IBV_QP_PORT) number = m.attr.port_num;
  return number;
}

// The way on which a connection goes on when the first is gone, to another port of the same peer.
Status turn_alternate(const ShadowQp& qp, ibv_qp_attr* attr) {
  RemoteEnd remote;
  note_address(*qp.context, attr->alt_ah_attr, &remote);
  Found found;
  SHADOWIB_TRY(find_remote(remote, nullptr, 0, &found));
  set_route(*qp.context, found.has_port ? &found.port : nullptr, &attr->alt_ah_attr);
  return turn_partition(qp, attr->alt_port_num, &attr->alt_pkey_index);
}

}  // namespace

Status turn_address(ShadowQp& qp, ibv_qp_attr* attr, int mask) {
  // A receiver that is stopped for a checkpoint posts no receives for a while, and a device knows of no pause.
  if ((mask & IBV_QP_RNR_RETRY) != 0 && g_backend.set_paused == nullptr) attr->rnr_retry = 7;  // for ever
  const bool restarted = job_info().generation > 0;
  if (restarted) limit_reads(qp, attr, mask);
  if (restarted && (mask & IBV_QP_PKEY_INDEX) != 0)
    SHADOWIB_TRY(turn_partition(qp, first_port(qp, *attr, mask), &attr->pkey_index));
  if (restarted && (mask & IBV_QP_ALT_PATH) != 0) SHADOWIB_TRY(turn_alternate(qp, attr));
  if ((mask & (IBV_QP_AV | IBV_QP_DEST_QPN)) == 0) return {};
  note_remote(qp, *attr, mask);
  if ((mask & IBV_QP_AV) != 0) SHADOWIB_TRY(note_wiring(qp.remote));
  qp.remote.is_guest = !restarted && has_guests_lid(qp.remote);
  if (!restarted) return {};
  Found found;
  bool identical = false;
  SHADOWIB_TRY(find_remote(qp.remote, "qp", qp.remote.qp_num.value, &found));
  SHADOWIB_TRY(count_as_identical(qp.remote, found, &identical));
  if (identical) {
    qp.remote.is_guest = has_guests_lid(qp.remote);
    qp.remote.real_qp_num = {qp.remote.qp_num.value};
    return {};
  }
  const DirectoryPort* peer = found.has_port ? &found.port : nullptr;
  qp.remote.real_responders = peer != nullptr ? peer->real_responders : 0;
  qp.remote.is_guest = found.has_port && is_guest_index(found.at_port);
  if (mask & IBV_QP_AV) set_route(*qp.context, peer, &attr->ah_attr);
  if ((mask & IBV_QP_AV) && (mask & IBV_QP_PATH_MTU))  // both are new on the way to RTR
    attr->path_mtu = possible_mtu(*qp.context, attr->ah_attr.port_num, peer, attr->path_mtu);
  if (mask & IBV_QP_DEST_QPN) attr->dest_qp_num = found.number.real_number;
  if (!found.has_number) return {};
  qp.remote.real_qp_num = {found.number.real_number};
  qp.remote_keys = found.keys;
  return {};
}

Status turn_address(ShadowAh& ah, ibv_ah_attr* attr) {
  note_address(*ShadowContext::of(ah.ah.context), ah.attr, &ah.remote);
  SHADOWIB_TRY(is_multicast(ah.attr) ? note_wired_by_multicast() : note_wiring(ah.remote));
  ah.remote.is_guest = job_info().generation == 0 && !is_multicast(ah.attr) && has_guests_lid(ah.remote);
  if (job_info().generation == 0) return {};
  const ShadowContext& context = *ShadowContext::of(ah.ah.context);
  if (is_multicast(ah.attr)) {
    set_multicast_route(context, attr);
    return {};
  }
  Found found;
  bool identical = false;
  SHADOWIB_TRY(find_remote(ah.remote, nullptr, 0, &found));
  SHADOWIB_TRY(count_as_identical(ah.remote, found, &identical));
  if (identical) {
    ah.remote.is_guest = has_guests_lid(ah.remote);
    ah.real_attr = *attr;
    return {};
  }
  ah.remote.is_guest = found.has_port && is_guest_index(found.at_port);
  set_route(context, found.has_port ? &found.port : nullptr, attr);
  ah.real_attr = *attr;
  return {};
}

RealDestination resolve_destination(ShadowAh& ah, VirtualQpNum number) {
  if (job_info().generation == 0 || is_multicast(ah.attr)) return {ah.real, {number.value}};
  {
    SpinGuard guard(ah.lock);
    if (DestinationIndex known; ah.destination_of.find(number, &known)) return ah.destinations[known.value];
  }
  Found found;
  bool identical = false;
  Status status = find_remote(ah.remote, "qp", number.value, &found);
  if (status.ok()) status = count_as_identical(ah.remote, found, &identical);
  if (!status.ok()) {
    (void)post_error(status);
    return {nullptr, {}};
  }
  if (identical) return {ah.real, {number.value}};
  if (!found.has_number) return {ah.real, {kNobodyQpNum}};
  const RealDestination to{handle_to(ah, found.port), {found.number.real_number}};
  if (to.ah == nullptr) return {ah.real, {kNobodyQpNum}};
  SpinGuard guard(ah.lock);
  ah.destination_of.insert(number, {static_cast<std::uint32_t>(ah.destinations.size())});
  ah.destinations.push_back(to);
  return to;
}

int resolve_remote_srq(ShadowQp& qp, VirtualSrqNum number, RealSrqNum* real) {
  *real = {number.value};
  if (job_info().generation == 0) return 0;
  auto known = std::find_if(qp.remote_srqs.begin(), qp.remote_srqs.end(),
                            [number](const RemoteSrq& srq) { return srq.number == number; });
  if (known == qp.remote_srqs.end()) {
    Found found;
    bool identical = false;
    if (const Status status = find_remote(qp.remote, "srq", number.value, &found); !status) return post_error(status);
    if (const Status status = count_as_identical(qp.remote, found, &identical); !status) return post_error(status);
    if (identical) return 0;
    if (!found.has_number) {
      *real = {kNobodySrqNum};
      return 0;
    }
    qp.remote_srqs.push_back({number, {found.number.real_number}, found.keys});
    known = qp.remote_srqs.end() - 1;
  }
  if (qp.remote_keys != known->keys) qp.remote_keys = known->keys;
  *real = known->real;
  return 0;
}

void turn_source(ShadowQp& qp, const ibv_sge* list, int count, ibv_wc* wc) {
  if (job_info().generation == 0 || !guarded(Guard::kTurnSources)) return;
  RouteHeader header{};
  const bool global = (wc->wc_flags & IBV_WC_GRH) != 0 && copy_first(*qp.context, list, count, &header, false);
  ibv_gid from = header.source();
  DatagramSource source;
  if (find_source({wc->slid, from, wc->src_qp}, &source)) {
    wc->src_qp = source.virtual_qp_num;
    if (wc->slid != 0) wc->slid = static_cast<std::uint16_t>(source.virtual_lid);
    from = source.virtual_gid;
  }
  if (!global) return;
  const RecordedGid to = program_gid(*qp.context, header.destination(), from);
  header.name(from, to.gid, to.type != 0);
  (void)copy_first(*qp.context, list, count, &header, true);
}

int resolve_remote_key(ShadowQp& qp, VirtualKey key, RealKey* real) {
  *real = {key.value};
  if (qp.remote_keys == nullptr) return 0;
  RemoteKeys& remote = *qp.remote_keys;
  SpinGuard guard(remote.lock);
  if (remote.keys.find(key, real)) return 0;
  RealKey found{key.value}, block;
  const VirtualKey virtual_block{window_block(key.value)};
  const bool late = is_late_key(key.value);  // another that is not in the table is the real one
  bool in_window = remote.windows.find(virtual_block, &block), is_known = true;
  if (!in_window && late)
    if (const Status status = find_late("mw", remote, virtual_block, &block, &in_window); !status)
      return post_error(status);
  if (in_window) {
    found.value = block.value << 8 | (key.value & 0xff);
  } else if (late) {
    if (const Status status = find_late("mr", remote, key, &found, &is_known); !status) return post_error(status);
    if (!is_known) {
      *real = {kNobodyKey};
      return 0;
    }
  }
  remote.keys.insert(key, found);
  *real = found;
  return 0;
}

Status members_at(const RemoteEnd& remote, std::vector<std::uint32_t>* members) {
  std::vector<std::string> names;
  members->clear();
  SHADOWIB_TRY(job_exchange()->list(key_of(remote), &names));
  for (const std::string& name : names)
    members->push_back(static_cast<std::uint32_t>(std::strtoul(name.c_str(), nullptr, 10)));
  return {};
}

Status reserve_neighbours_numbers(const ShadowContext& context) {
  std::set<std::uint32_t> neighbours;
  std::vector<std::uint32_t> members;
  for (const ShadowPort& port : context.ports) {
    RemoteEnd here;
    here.lid = port.lid;
    for (const RecordedGid& gid : port.gids)
      if (here.lid.value == 0 && !gid.empty()) here.gid = gid.gid, here.has_gid = true;
    if (here.lid.value == 0 && !here.has_gid) continue;
    SHADOWIB_TRY(cached_members_at(here, true, &members));
    for (std::uint32_t member : members)
      if (member != job_info().member) neighbours.insert(member);
  }
  std::vector<std::uint32_t> qp_nums, srq_nums;
  for (std::uint32_t member : neighbours) {
    std::shared_ptr<const Directory> directory;
    SHADOWIB_TRY(directory_of(member, false, &directory));
    if (directory == nullptr) continue;
    for (const DirectoryNumber& qp : directory->qps) qp_nums.push_back(qp.virtual_number);
    for (const DirectoryNumber& srq : directory->srqs) srq_nums.push_back(srq.virtual_number);
  }
  Registry& r = registry();
  const auto reserve = [](const std::vector<std::uint32_t>& numbers, std::vector<std::uint32_t>* reserved) {
    reserved->insert(reserved->end(), numbers.begin(), numbers.end());
    std::sort(reserved->begin(), reserved->end());
    reserved->erase(std::unique(reserved->begin(), reserved->end()), reserved->end());
  };
  SpinGuard guard(r.lock);
  reserve(qp_nums, &r.reserved_qp_nums);
  reserve(srq_nums, &r.reserved_srq_nums);
  return {};
}

void forget_peers() {
  Cache& c = cache();
  SpinGuard guard(c.lock);
  c.members.clear();
  c.directories.clear();
  c.remote_keys.clear();
  c.sources.clear();
}

}  // namespace shadowib
