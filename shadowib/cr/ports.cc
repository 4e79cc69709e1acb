#include "shadowib/cr/ports.h"

#include <endian.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>

#include "shadowib/cr/peers.h"
#include "shadowib/objects/backend.h"
#include "shadowib/objects/route_header.h"

namespace shadowib {
namespace {

constexpr std::uint8_t kHopLimit = 64;

bool is_link_local(const ibv_gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }
// Addresses of one family reach each other.
int family(const ibv_gid& gid) { return is_ipv4(gid) ? 0 : is_link_local(gid) ? 1 : 2; }
bool reaches(const ibv_gid& from, const ibv_gid& to) {
  if (to.raw[0] == 0xff) return !is_ipv4(from);  // a group of IPv6, whatever its scope
  return family(from) == family(to);
}
bool same(const ibv_gid& a, const ibv_gid& b) { return std::memcmp(a.raw, b.raw, sizeof(a.raw)) == 0; }

std::vector<RecordedGid> read_gids(ibv_context* real, std::uint8_t number, int entries) {
  std::vector<RecordedGid> gids(static_cast<std::size_t>(std::max(0, entries)));
  if (g_backend.query_gid_table != nullptr) {  // one call; entry by entry is some 10 ms on a table of 1024
    std::vector<ibv_gid_entry> table(4 * gids.size() + 64);
    const ssize_t n = g_backend.query_gid_table(real, table.data(), table.size());
    for (ssize_t i = 0; i < n; ++i) {
      const ibv_gid_entry& entry = table[static_cast<std::size_t>(i)];
      if (entry.port_num == number && entry.gid_index < gids.size())
        gids[entry.gid_index] = {entry.gid, entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 1 : 0};
    }
    if (n >= 0) return gids;
  }
  for (std::size_t g = 0; g < gids.size(); ++g) {
    if (g_backend.query_gid(real, number, static_cast<int>(g), &gids[g].gid) != 0) gids[g].gid = {};
    if (gids[g].empty() || g_backend.query_gid_type == nullptr ||
        g_backend.query_gid_type(real, number, static_cast<unsigned>(g), &gids[g].type) != 0)
      gids[g].type = 0;
  }
  return gids;
}

std::vector<std::uint16_t> read_pkeys(ibv_context* real, std::uint8_t number, int entries) {
  std::vector<std::uint16_t> pkeys;
  for (std::uint16_t pkey = 0; std::ssize(pkeys) < entries; pkeys.push_back(pkey))
    if (g_backend.query_pkey(real, number, static_cast<int>(pkeys.size()), &pkey) != 0) break;
  return pkeys;
}

const ShadowPort* port_of(const ShadowContext& context, std::uint8_t number) {
  return number >= 1 && number <= context.ports.size() ? &context.ports[number - 1u] : nullptr;
}

Status ask(ShadowContext& context, std::size_t index, ibv_port_attr* attr) {
  ShadowPort& port = context.ports[index];
  const auto number = static_cast<std::uint8_t>(index + 1);
  *attr = {};
  if (int rc = g_backend.query_port(context.real, number, attr, sizeof(*attr)); rc != 0)
    return Status::of(Code::kIo, rc, "port %u of %s cannot be queried", number, context.device->device.name);
  port.real_lid = {attr->lid};
  port.real_is_ethernet = attr->link_layer == IBV_LINK_LAYER_ETHERNET;
  port.real_mtu = attr->active_mtu;
  port.real_table = read_gids(context.real, number, attr->gid_tbl_len);
  return {};
}

}  // namespace

int find_substitute(const std::vector<RecordedGid>& real, const RecordedGid& known, int index) {
  int best = -1, best_score = -1;
  for (std::size_t i = 0; i < real.size(); ++i) {
    if (real[i].empty()) continue;
    const int score = 16 * same(real[i].gid, known.gid) + 8 * (real[i].type == known.type) +
                      4 * (family(real[i].gid) == family(known.gid)) + 2 * is_ipv4(real[i].gid) +
                      (static_cast<int>(i) == index);
    if (score > best_score) best = static_cast<int>(i), best_score = score;
  }
  return best;
}

std::vector<int> find_partitions(const std::vector<std::uint16_t>& real, const std::vector<std::uint16_t>& known) {
  const auto partition = [](std::uint16_t pkey) { return be16toh(pkey) & 0x7fff; };
  std::vector<int> found;
  for (std::size_t k = 0; k < known.size(); ++k) {
    int best = -1, best_score = -1;
    for (std::size_t r = 0; r < real.size(); ++r) {
      if (real.size() > 1 && (partition(known[k]) == 0 || partition(real[r]) != partition(known[k]))) continue;
      const int score = 2 * (real[r] == known[k]) + (r == k);
      if (score > best_score) best = static_cast<int>(r), best_score = score;
    }
    found.push_back(best);
  }
  return found;
}

int source_index(const ShadowPort& port, int program_index, const ibv_gid& dgid) {
  const auto at = static_cast<std::size_t>(program_index);
  const int chosen = program_index >= 0 && at < port.real_indices.size() ? port.real_indices[at] : -1;
  const auto leads_there = [&](int i) {
    return i >= 0 && !port.real_table[static_cast<std::size_t>(i)].empty() &&
           (!port.real_is_ethernet || reaches(port.real_table[static_cast<std::size_t>(i)].gid, dgid));
  };
  if (leads_there(chosen)) return chosen;
  int other = -1;
  for (int i = 0; i < static_cast<int>(port.real_table.size()); ++i)
    if (leads_there(i) && (other < 0 || port.real_table[static_cast<std::size_t>(i)].type >
                                            port.real_table[static_cast<std::size_t>(other)].type))
      other = i;
  return other >= 0 ? other : std::max(0, chosen);
}

Status record_ports(ShadowContext& context) {
  context.ports.resize(context.attr.phys_port_cnt);
  for (std::size_t i = 0; i < context.ports.size(); ++i) {
    ShadowPort& port = context.ports[i];
    const auto number = static_cast<std::uint8_t>(i + 1);
    SHADOWIB_TRY(ask(context, i, &port.attr));
    port.lid = {port.attr.lid};
    port.gids = port.real_table;
    port.real_gids.clear();
    port.real_indices.clear();
    for (std::size_t g = 0; g < port.gids.size(); ++g) {
      port.real_gids.push_back(port.gids[g].gid);
      port.real_indices.push_back(static_cast<int>(g));
    }
    port.pkeys = read_pkeys(context.real, number, port.attr.pkey_tbl_len);
  }
  return {};
}

Status rebuild_ports(ShadowContext& context) {
  for (std::size_t i = 0; i < context.ports.size(); ++i) {
    ShadowPort& port = context.ports[i];
    ibv_port_attr attr;
    SHADOWIB_TRY(ask(context, i, &attr));
    for (std::size_t g = 0; g < port.gids.size(); ++g) {
      const bool needed = !port.gids[g].empty() || g == 0;  // a peer may be known by LID alone, and need the first
      const int substitute = needed ? find_substitute(port.real_table, port.gids[g], static_cast<int>(g)) : -1;
      port.real_indices[g] = substitute;
      port.real_gids[g] = substitute < 0 ? ibv_gid{} : port.real_table[static_cast<std::size_t>(substitute)].gid;
    }
    const auto number = static_cast<std::uint8_t>(i + 1);
    port.real_pkey_indices = find_partitions(read_pkeys(context.real, number, attr.pkey_tbl_len), port.pkeys);
  }
  return {};
}

void note_source(ShadowContext& context, const ibv_ah_attr& route) {
  if (route.is_global == 0 || route.port_num < 1 || route.port_num > context.ports.size()) return;
  ShadowPort& port = context.ports[route.port_num - 1u];
  if (route.grh.sgid_index < port.gids.size())
    std::atomic_ref(port.named_gid).store(route.grh.sgid_index, std::memory_order_relaxed);
}

ibv_gid program_source(const ShadowPort& port, const ibv_gid& real) {
  const auto stands_for = [&](std::size_t g) {
    return g < port.real_gids.size() && g < port.gids.size() && !port.gids[g].empty() &&
           same(port.real_gids[g], real);
  };
  const auto named = static_cast<std::size_t>(port.named_gid);
  if (stands_for(named)) return port.gids[named].gid;
  for (std::size_t g = 0; g < port.gids.size(); ++g)
    if (stands_for(g)) return port.gids[g].gid;
  return named < port.gids.size() ? port.gids[named].gid : ibv_gid{};
}

RecordedGid program_gid(const ShadowContext& context, const ibv_gid& real, const ibv_gid& from) {
  RecordedGid best{real, 0};
  int best_score = -1;
  for (const ShadowPort& port : context.ports)
    for (std::size_t g = 0; g < port.real_gids.size() && g < port.gids.size(); ++g) {
      if (port.gids[g].empty() || !same(port.real_gids[g], real)) continue;
      const int named = std::atomic_ref(const_cast<int&>(port.named_gid)).load(std::memory_order_relaxed);
      const int score = 2 * (family(port.gids[g].gid) == family(from)) + (static_cast<int>(g) == named);
      if (score > best_score) best = port.gids[g], best_score = score;
    }
  return best;
}

void set_route(const ShadowContext& context, const DirectoryPort* peer, ibv_ah_attr* attr) {
  attr->dlid = peer != nullptr ? static_cast<std::uint16_t>(peer->real_lid) : kNobodyLid;
  const ShadowPort* port = port_of(context, attr->port_num);
  if (port != nullptr && port->real_is_ethernet && attr->is_global == 0) {
    attr->is_global = 1;
    attr->grh = {};
    attr->grh.hop_limit = kHopLimit;
  }
  if (attr->is_global == 0) return;
  attr->grh.dgid = peer != nullptr ? peer->real_gid : ibv_gid{};
  if (port == nullptr) return;
  // An address that leads nowhere is none for RoCE: to ourselves, where nobody has the number.
  if (peer == nullptr && port->real_is_ethernet && !port->real_gids.empty()) attr->grh.dgid = port->real_gids[0];
  attr->grh.sgid_index = static_cast<std::uint8_t>(source_index(*port, attr->grh.sgid_index, attr->grh.dgid));
}

void set_multicast_route(const ShadowContext& context, ibv_ah_attr* attr) {
  const ShadowPort* port = port_of(context, attr->port_num);
  if (attr->is_global == 0 || port == nullptr) return;
  attr->grh.sgid_index = static_cast<std::uint8_t>(source_index(*port, attr->grh.sgid_index, attr->grh.dgid));
}

ibv_mtu possible_mtu(const ShadowContext& context, std::uint8_t port_num, const DirectoryPort* peer, ibv_mtu asked) {
  const ShadowPort* port = port_of(context, port_num);
  if (port != nullptr) asked = std::min(asked, port->real_mtu);
  return peer != nullptr ? std::min(asked, static_cast<ibv_mtu>(peer->real_mtu)) : asked;
}

}  // namespace shadowib
