#include "shadowib/objects/route_header.h"

#include <endian.h>
#include <netinet/in.h>
#include <netinet/ip.h>

#include <cstring>

namespace shadowib {
namespace {

constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

iphdr ipv4_part(const ibv_grh& grh) {
  iphdr ip;
  std::memcpy(&ip, reinterpret_cast<const char*>(&grh) + sizeof(grh) - sizeof(ip), sizeof(ip));
  return ip;
}

std::uint16_t checksum(iphdr ip) {
  std::uint16_t words[sizeof(ip) / 2];
  ip.check = 0;
  std::memcpy(words, &ip, sizeof(ip));
  std::uint32_t sum = 0;
  for (std::uint16_t word : words) sum += word;
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

ibv_gid mapped(std::uint32_t address) {
  ibv_gid gid;
  std::memcpy(gid.raw, kMapped, sizeof(kMapped));
  std::memcpy(gid.raw + sizeof(kMapped), &address, sizeof(address));
  return gid;
}
std::uint32_t address_in(const ibv_gid& gid) {
  std::uint32_t address;
  std::memcpy(&address, gid.raw + sizeof(kMapped), sizeof(address));
  return address;
}

}  // namespace

bool is_ipv4(const ibv_gid& gid) { return std::memcmp(gid.raw, kMapped, sizeof(kMapped)) == 0; }

// A global route header begins with a 6, and so may what means nothing; then the checksum decides.
bool RouteHeader::has_ipv4() const {
  const iphdr ip = ipv4_part(bytes);
  if (be32toh(bytes.version_tclass_flow) >> 28 != 6) return ip.version == 4;
  return ip.version == 4 && ip.ihl == 5 && ip.check == checksum(ip);
}

bool RouteHeader::has_udp() const { return has_ipv4() || bytes.next_hdr == IPPROTO_UDP; }

ibv_gid RouteHeader::source() const { return has_ipv4() ? mapped(ipv4_part(bytes).saddr) : bytes.sgid; }
ibv_gid RouteHeader::destination() const { return has_ipv4() ? mapped(ipv4_part(bytes).daddr) : bytes.dgid; }

std::uint32_t RouteHeader::flow_label() const {
  return has_ipv4() ? 0 : be32toh(bytes.version_tclass_flow) & 0xfffff;
}
std::uint8_t RouteHeader::traffic_class() const {
  if (has_ipv4()) return ipv4_part(bytes).tos;
  return static_cast<std::uint8_t>(be32toh(bytes.version_tclass_flow) >> 20);
}

void RouteHeader::name(const ibv_gid& from, const ibv_gid& to, bool ipv4) {
  const bool had_ipv4 = has_ipv4();
  iphdr ip = ipv4_part(bytes);
  if (is_ipv4(from) && is_ipv4(to) && (ipv4 || had_ipv4)) {
    if (!had_ipv4) {
      ip = {};
      ip.version = 4;
      ip.ihl = 5;
      ip.tos = traffic_class();
      ip.tot_len = htobe16(static_cast<std::uint16_t>(be16toh(bytes.paylen) + sizeof(ip)));
      ip.ttl = bytes.hop_limit;
      ip.protocol = IPPROTO_UDP;
    }
    ip.saddr = address_in(from);
    ip.daddr = address_in(to);
    ip.check = checksum(ip);
    bytes = {};
    std::memcpy(reinterpret_cast<char*>(&bytes) + sizeof(bytes) - sizeof(ip), &ip, sizeof(ip));
    return;
  }
  if (had_ipv4) {
    bytes.version_tclass_flow = htobe32(6u << 28 | static_cast<std::uint32_t>(ip.tos) << 20);
    bytes.paylen = htobe16(static_cast<std::uint16_t>(be16toh(ip.tot_len) - sizeof(ip)));
    bytes.next_hdr = IPPROTO_UDP;
    bytes.hop_limit = ip.ttl;
  }
  bytes.sgid = from;
  bytes.dgid = to;
}

}  // namespace shadowib
