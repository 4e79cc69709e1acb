#include "shadowib/cr/peers.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "hooks/agent.h"
#include "shadowib/base/log.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

// Who sent a datagram, in the ids that others know it by.
struct DatagramSource {
  std::uint32_t virtual_qp_num, virtual_lid;
  ibv_gid virtual_gid;
};

// Where one came from, really. The GID counts only if there is no LID.
struct SourceAddress {
  std::uint32_t lid, qp_num;
  ibv_gid gid;
  SourceAddress(std::uint32_t real_lid, const ibv_gid& real_gid, std::uint32_t real_qp_num)
      : lid(real_lid), qp_num(real_qp_num), gid(real_lid == 0 ? real_gid : ibv_gid{}) {}
  bool operator<(const SourceAddress& other) const { return std::memcmp(this, &other, sizeof(*this)) < 0; }
};

// Caches of what the exchange said, under their own lock; rebuilt in a new epoch.
struct Cache {
  SpinLock lock;
  std::map<std::string, std::uint32_t> members;                                              // address key -> member
  std::map<std::uint32_t, Directory> directories;                                            // by member
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::weak_ptr<RemoteKeys>> remote_keys;  // by member, pd
  std::map<SourceAddress, DatagramSource> sources;
};
Cache& cache() {
  static Cache& c = *new Cache;  // never destroyed: the helper may outlive main
  return c;
}

std::string key_of(const std::string& rest) { return std::string(job_info().epoch) + "/" + rest; }

std::string hex(const ibv_gid& gid) {
  char text[33];
  for (int i = 0; i < 16; ++i) std::snprintf(text + 2 * i, 3, "%02x", gid.raw[i]);
  return text;
}

std::string address_key(const RemoteEnd& remote) {
  return remote.lid.value != 0 ? "lid/" + std::to_string(remote.lid.value) : "gid/" + hex(remote.gid);
}

template <typename T>
void put_array(std::string* out, const std::vector<T>& items) {
  std::uint64_t n = items.size();
  out->append(reinterpret_cast<const char*>(&n), sizeof(n));
  out->append(reinterpret_cast<const char*>(items.data()), n * sizeof(T));
}
template <typename T>
bool take_array(std::string_view* in, std::vector<T>* items) {
  std::uint64_t n = 0;
  if (in->size() < sizeof(n)) return false;
  std::memcpy(&n, in->data(), sizeof(n));
  in->remove_prefix(sizeof(n));
  if (n > in->size() / sizeof(T)) return false;
  items->resize(n);
  if (n != 0) std::memcpy(static_cast<void*>(items->data()), in->data(), n * sizeof(T));
  in->remove_prefix(n * sizeof(T));
  return true;
}

Status claim_lid(VirtualLid lid) {
  return job_exchange()->claim(key_of("lid/" + std::to_string(lid.value)), std::to_string(job_info().member));
}

// Publishes who holds a context's addresses. LIDs of another process on the same adapter are shared: then the claim
// fails and the first holder stands for the adapter.
Status publish_addresses(ShadowContext& context) {
  std::string member = std::to_string(job_info().member);
  for (ShadowPort& port : context.ports) {
    if (port.lid.value != 0)
      if (Status s = claim_lid(port.lid); !s.ok() && s.code() != Code::kBusy) return s;
    for (const RecordedGid& gid : port.gids) {
      if (gid.empty()) continue;
      SHADOWIB_TRY(job_exchange()->publish(key_of("gid/" + hex(gid.gid)), member));
    }
  }
  return {};
}

// `again`: asks the exchange even if it was asked before.
bool directory_of(std::uint32_t member, bool again, Directory* directory) {
  Cache& c = cache();
  if (!again) {
    SpinGuard guard(c.lock);
    if (auto it = c.directories.find(member); it != c.directories.end()) {
      *directory = it->second;
      return true;
    }
  }
  std::string text;
  bool found = false;
  if (!job_exchange()->get(key_of("rebuild/" + std::to_string(member)), &text, &found).ok() || !found) return false;
  if (!decode_directory(text, directory)) return false;
  SpinGuard guard(c.lock);
  c.directories[member] = *directory;
  return true;
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

const DirectoryPort* port_in(const Directory& directory, const RemoteEnd& remote) {
  for (const DirectoryPort& port : directory.ports)
    if (remote.lid.value != 0 ? port.virtual_lid == remote.lid.value
                              : std::memcmp(&port.virtual_gid, &remote.gid, sizeof(ibv_gid)) == 0)
      return &port;
  return nullptr;
}

// The remote queue pair's real number and protection domain: from its member's rebuild, or made since.
bool find_remote_qp(std::uint32_t member, const Directory& directory, VirtualQpNum number, DirectoryQp* out) {
  auto it = std::lower_bound(directory.qps.begin(), directory.qps.end(), number.value,
                             [](const DirectoryQp& qp, std::uint32_t n) { return qp.virtual_qp_num < n; });
  if (it != directory.qps.end() && it->virtual_qp_num == number.value) {
    *out = *it;
    return true;
  }
  std::string text;
  bool found = false;
  std::string key = "late/" + std::to_string(member) + "/qp/" + std::to_string(number.value);
  if (!job_exchange()->get(key_of(key), &text, &found).ok() || !found || text.size() != sizeof(*out)) return false;
  std::memcpy(out, text.data(), sizeof(*out));
  return true;
}

DirectorySrq entry_of(const ShadowSrq& srq) {
  return {srq.number.value, srq.real_number.value, ShadowPd::of(srq.srq.pd)->id};
}

// The same for an XRC shared receive queue.
bool find_remote_srq(std::uint32_t member, const Directory& directory, VirtualSrqNum number, DirectorySrq* out) {
  auto it = std::lower_bound(directory.srqs.begin(), directory.srqs.end(), number.value,
                             [](const DirectorySrq& srq, std::uint32_t n) { return srq.virtual_number < n; });
  if (it != directory.srqs.end() && it->virtual_number == number.value) {
    *out = *it;
    return true;
  }
  std::string text;
  bool found = false;
  std::string key = "late/" + std::to_string(member) + "/srq/" + std::to_string(number.value);
  if (!job_exchange()->get(key_of(key), &text, &found).ok() || !found || text.size() != sizeof(*out)) return false;
  std::memcpy(out, text.data(), sizeof(*out));
  return true;
}

// The port at that address, in the directory of *member; nullptr: nobody's. Asks again once, since the member may
// have opened a device since we looked.
const DirectoryPort* find_port(const RemoteEnd& remote, std::uint32_t* member, Directory* directory) {
  *member = member_of(remote);
  for (bool again : {false, true})
    if (*member != kNobody && directory_of(*member, again, directory))
      if (const DirectoryPort* port = port_in(*directory, remote); port != nullptr) return port;
  return nullptr;
}

void set_address(const DirectoryPort* port, ibv_ah_attr* attr) {
  attr->dlid = port != nullptr ? static_cast<std::uint16_t>(port->real_lid) : kNobodyLid;
  if (attr->is_global) attr->grh.dgid = port != nullptr ? port->real_gid : ibv_gid{};
}

bool is_multicast(const ibv_ah_attr& attr) {
  return attr.is_global != 0 ? attr.grh.dgid.raw[0] == 0xff : attr.dlid >= kFirstMulticastLid;
}

std::string source_key(const SourceAddress& from) {
  return key_of("source/" + (from.lid != 0 ? std::to_string(from.lid) : hex(from.gid)) + "/" +
                std::to_string(from.qp_num));
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
bool copy_first(const ibv_sge* list, int count, ibv_grh* grh, bool back) {
  char* at = reinterpret_cast<char*>(grh);
  std::size_t left = sizeof(*grh);
  for (int i = 0; i < count && left > 0; ++i) {
    const std::size_t n = std::min<std::size_t>(left, list[i].length);
    const iovec ours{at, n}, its{reinterpret_cast<void*>(list[i].addr), n};
    const ssize_t done = back ? ::process_vm_writev(::getpid(), &ours, 1, &its, 1, 0)
                              : ::process_vm_readv(::getpid(), &ours, 1, &its, 1, 0);
    if (done != static_cast<ssize_t>(n)) return false;
    at += n;
    left -= n;
  }
  return left == 0;
}

std::string late_key(const char* kind, std::uint32_t member, std::uint32_t pd, std::uint32_t id) {
  return key_of("late/" + std::to_string(member) + "/" + kind + "/" + std::to_string(pd) + "/" + std::to_string(id));
}

// What a peer has made since the restart, if its virtual key is not the real one. False: nothing; *real is unchanged.
bool find_late(const char* kind, const RemoteKeys& remote, VirtualKey id, RealKey* real) {
  std::string text;
  bool found = false;
  if (!job_exchange()->get(late_key(kind, remote.member, remote.pd, id.value), &text, &found).ok() || !found ||
      text.size() != sizeof(real->value))
    return false;
  std::memcpy(&real->value, text.data(), sizeof(real->value));
  return true;
}

Status announce_late(const char* kind, std::uint32_t pd, std::uint32_t id, std::uint32_t real) {
  return job_exchange()->publish(late_key(kind, job_info().member, pd, id),
                                 {reinterpret_cast<const char*>(&real), sizeof(real)});
}

void note_remote(ShadowQp& qp, const ibv_qp_attr& attr, int mask) {
  SpinGuard guard(registry().lock);  // the status that others ask for shows it
  if (mask & IBV_QP_AV) {
    qp.remote.lid = {attr.ah_attr.dlid};
    qp.remote.has_gid = attr.ah_attr.is_global != 0;
    if (qp.remote.has_gid) qp.remote.gid = attr.ah_attr.grh.dgid;
  }
  if (mask & IBV_QP_DEST_QPN) qp.remote.qp_num = {attr.dest_qp_num};
}

}  // namespace

std::string encode_directory(const Directory& directory) {
  std::string out;
  put_array(&out, directory.ports);
  put_array(&out, directory.qps);
  put_array(&out, directory.srqs);
  put_array(&out, directory.keys);
  put_array(&out, directory.windows);
  return out;
}

bool decode_directory(const std::string& text, Directory* directory) {
  std::string_view in(text);
  return take_array(&in, &directory->ports) && take_array(&in, &directory->qps) &&
         take_array(&in, &directory->srqs) && take_array(&in, &directory->keys) &&
         take_array(&in, &directory->windows) && in.empty();
}

Status announce_ports(ShadowContext& context) {
  if (job_info().generation == 0) return publish_addresses(context);
  // An old member may hold, as its virtual LID, the real one this context was given: take another then.
  for (ShadowPort& port : context.ports) {
    for (Status s = claim_lid(port.lid); port.lid.value != 0 && !s.ok(); s = claim_lid(port.lid)) {
      if (s.code() != Code::kBusy) return s;
      port.lid.value = port.lid.value % 0xbfff + 1;
    }
    port.attr.lid = static_cast<std::uint16_t>(port.lid.value);
  }
  SHADOWIB_TRY(publish_addresses(context));
  return publish_directory();
}

Status claim_ports_again(ShadowContext& context) { return publish_addresses(context); }

Status publish_directory() {
  Directory d;
  Registry& r = registry();
  {
    SpinGuard guard(r.lock);
    for (ShadowContext& context : r.contexts)
      for (ShadowPort& port : context.ports) {
        DirectoryPort p{port.lid.value, port.real_lid.value, {}, {}};
        if (port.gids.empty() || port.real_gids.empty()) d.ports.push_back(p);
        for (std::size_t g = 0; g < port.gids.size() && g < port.real_gids.size(); ++g) {
          if (port.gids[g].empty() && g > 0) continue;
          p.virtual_gid = port.gids[g].gid;
          p.real_gid = port.real_gids[g];
          d.ports.push_back(p);
        }
      }
    for (ShadowQp& qp : r.qps) d.qps.push_back({qp.qp_num.value, qp.real->qp_num, qp.pd_id()});
    for (ShadowSrq& srq : r.srqs)
      if (srq.xrcd != nullptr) d.srqs.push_back(entry_of(srq));
    for (ShadowMr& mr : r.mrs) d.keys.push_back({ShadowPd::of(mr.mr.pd)->id, mr.mr.rkey, mr.real->rkey});
    for (ShadowMw& mw : r.mws)
      d.windows.push_back({ShadowPd::of(mw.mw.pd)->id, window_block(mw.mw.rkey), window_block(mw.real->rkey)});
  }
  std::sort(d.qps.begin(), d.qps.end(),
            [](const DirectoryQp& a, const DirectoryQp& b) { return a.virtual_qp_num < b.virtual_qp_num; });
  std::sort(d.srqs.begin(), d.srqs.end(),
            [](const DirectorySrq& a, const DirectorySrq& b) { return a.virtual_number < b.virtual_number; });
  return job_exchange()->publish(key_of("rebuild/" + std::to_string(job_info().member)), encode_directory(d));
}

Status turn_address(ShadowQp& qp, ibv_qp_attr* attr, int mask) {
  if ((mask & (IBV_QP_AV | IBV_QP_DEST_QPN)) == 0) return {};
  note_remote(qp, *attr, mask);
  if (job_info().generation == 0) return {};
  Directory directory;
  std::uint32_t member;
  const DirectoryPort* port = find_port(qp.remote, &member, &directory);
  DirectoryQp remote{kNobodyQpNum, kNobodyQpNum, 0};
  bool known = port != nullptr && find_remote_qp(member, directory, qp.remote.qp_num, &remote);
  if (mask & IBV_QP_AV) set_address(port, &attr->ah_attr);
  if (mask & IBV_QP_DEST_QPN) attr->dest_qp_num = remote.real_qp_num;
  if (!known) return {};
  qp.remote.real_qp_num = {remote.real_qp_num};
  qp.remote_keys = remote_keys_of(member, remote.pd, directory);
  return {};
}

void turn_address(ShadowAh& ah, ibv_ah_attr* attr) {
  ah.remote.lid = {ah.attr.dlid};
  ah.remote.has_gid = ah.attr.is_global != 0;
  if (ah.remote.has_gid) ah.remote.gid = ah.attr.grh.dgid;
  if (job_info().generation == 0 || is_multicast(ah.attr)) return;
  Directory directory;
  std::uint32_t member;
  set_address(find_port(ah.remote, &member, &directory), attr);
}

RealQpNum resolve_remote_qp(ShadowAh& ah, VirtualQpNum number) {
  if (job_info().generation == 0 || is_multicast(ah.attr)) return {number.value};
  RealQpNum real;
  {
    SpinGuard guard(ah.lock);
    if (ah.qp_nums.find(number, &real)) return real;
  }
  Directory directory;
  std::uint32_t member;
  DirectoryQp remote;
  if (find_port(ah.remote, &member, &directory) == nullptr || !find_remote_qp(member, directory, number, &remote))
    return {kNobodyQpNum};
  SpinGuard guard(ah.lock);
  ah.qp_nums.insert(number, {remote.real_qp_num});
  return {remote.real_qp_num};
}

RealSrqNum resolve_remote_srq(ShadowQp& qp, VirtualSrqNum number) {
  if (job_info().generation == 0) return {number.value};
  auto known = std::find_if(qp.remote_srqs.begin(), qp.remote_srqs.end(),
                            [number](const RemoteSrq& srq) { return srq.number == number; });
  if (known == qp.remote_srqs.end()) {
    Directory directory;
    std::uint32_t member;
    DirectorySrq found;
    if (find_port(qp.remote, &member, &directory) == nullptr || !find_remote_srq(member, directory, number, &found))
      return {kNobodySrqNum};
    qp.remote_srqs.push_back({number, {found.real_number}, remote_keys_of(member, found.pd, directory)});
    known = qp.remote_srqs.end() - 1;
  }
  if (qp.remote_keys != known->keys) qp.remote_keys = known->keys;
  return known->real;
}

Status announce_source(const ShadowQp& qp) {
  if (job_info().generation == 0 || !qp.is_datagram()) return {};
  for (const ShadowPort& port : qp.context->ports) {
    DatagramSource source{qp.qp_num.value, port.lid.value, {}};
    if (!port.gids.empty()) source.virtual_gid = port.gids[0].gid;
    auto publish = [&](const ibv_gid& real_gid) {
      const SourceAddress from(port.real_lid.value, real_gid, qp.real->qp_num);
      return job_exchange()->publish(source_key(from), {reinterpret_cast<const char*>(&source), sizeof(source)});
    };
    if (port.real_lid.value != 0) SHADOWIB_TRY(publish({}));
    for (std::size_t g = 0; port.real_lid.value == 0 && g < port.real_gids.size() && g < port.gids.size(); ++g) {
      if (port.gids[g].empty()) continue;
      source.virtual_gid = port.gids[g].gid;
      SHADOWIB_TRY(publish(port.real_gids[g]));
    }
  }
  return {};
}

void turn_source(ShadowQp& qp, const ibv_sge* list, int count, ibv_wc* wc) {
  if (job_info().generation == 0) return;
  ibv_grh grh{};
  const bool global = (wc->wc_flags & IBV_WC_GRH) != 0 && !qp.context->has_other_addresses.load() &&
                      copy_first(list, count, &grh, false);
  DatagramSource source;
  if (find_source({wc->slid, grh.sgid, wc->src_qp}, &source)) {
    wc->src_qp = source.virtual_qp_num;
    if (wc->slid != 0) wc->slid = static_cast<std::uint16_t>(source.virtual_lid);
    grh.sgid = source.virtual_gid;
  }
  if (!global) return;
  for (const ShadowPort& port : qp.context->ports)
    for (std::size_t g = 0; g < port.real_gids.size() && g < port.gids.size(); ++g)
      if (std::memcmp(&port.real_gids[g], &grh.dgid, sizeof(ibv_gid)) == 0) {
        grh.dgid = port.gids[g].gid;
        (void)copy_first(list, count, &grh, true);
        return;
      }
  (void)copy_first(list, count, &grh, true);
}

RealKey resolve_remote_key(ShadowQp& qp, VirtualKey key) {
  if (qp.remote_keys == nullptr) return {key.value};
  RemoteKeys& remote = *qp.remote_keys;
  SpinGuard guard(remote.lock);
  RealKey real, block;
  if (remote.keys.find(key, &real)) return real;
  const VirtualKey virtual_block{window_block(key.value)};
  if (remote.windows.find(virtual_block, &block) || find_late("mw", remote, virtual_block, &block))
    real.value = block.value << 8 | (key.value & 0xff);
  else
    (void)find_late("mr", remote, key, &real);
  remote.keys.insert(key, real);
  return real;
}

void announce_late_qp(const ShadowQp& qp) {
  if (job_info().generation == 0) return;
  DirectoryQp entry{qp.qp_num.value, qp.real->qp_num, qp.pd_id()};
  std::string key = "late/" + std::to_string(job_info().member) + "/qp/" + std::to_string(qp.qp_num.value);
  Status s = job_exchange()->publish(key_of(key), {reinterpret_cast<const char*>(&entry), sizeof(entry)});
  if (s.ok()) s = announce_source(qp);
  if (!s.ok()) log_line(LogLevel::kError, "queue pair 0x%x cannot be announced: %s", qp.qp_num.value, s.text());
}

void announce_late_srq(const ShadowSrq& srq) {
  if (job_info().generation == 0) return;
  const DirectorySrq entry = entry_of(srq);
  std::string key = "late/" + std::to_string(job_info().member) + "/srq/" + std::to_string(srq.number.value);
  Status s = job_exchange()->publish(key_of(key), {reinterpret_cast<const char*>(&entry), sizeof(entry)});
  if (!s.ok())
    log_line(LogLevel::kError, "shared receive queue 0x%x cannot be announced: %s", srq.number.value, s.text());
}

void announce_late_mr(const ShadowMr& mr, std::uint32_t pd) {
  Status s = announce_late("mr", pd, mr.mr.rkey, mr.real->rkey);
  if (!s.ok()) log_line(LogLevel::kError, "memory region 0x%x cannot be announced: %s", mr.mr.rkey, s.text());
}

void announce_late_mw(const ShadowMw& mw, std::uint32_t pd) {
  Status s = announce_late("mw", pd, window_block(mw.mw.rkey), window_block(mw.real->rkey));
  if (!s.ok()) log_line(LogLevel::kError, "memory window 0x%x cannot be announced: %s", mw.mw.rkey, s.text());
}

std::uint32_t member_of(const RemoteEnd& remote) {
  std::string name = address_key(remote);
  Cache& c = cache();
  {
    SpinGuard guard(c.lock);
    if (auto it = c.members.find(name); it != c.members.end()) return it->second;
  }
  std::string text;
  bool found = false;
  if (!job_exchange()->get(key_of(name), &text, &found).ok() || !found) return kNobody;
  auto member = static_cast<std::uint32_t>(std::strtoul(text.c_str(), nullptr, 10));
  SpinGuard guard(c.lock);
  c.members[name] = member;
  return member;
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
