// Ids that members publish for peers that name their objects by virtual ids: the forms, and the places.
//
// Keys in the exchange, below the epoch:
//   lid/<virtual lid>                    -> claimed by the first member that has it
//   at/lid/<virtual lid>/<member>, at/gid/<32 hex>/<member>: the member has the adapter open that has the address:
//                                           several for a kernel's adapter, one for ib2tcp's
//   rebuild/<member>                     -> Directory of that member (encode_directory), published by each rebuild
//   late/<member>/<qp or srq>/<adapter>/<virtual number> -> queue pair, or XRC shared receive queue, made after a
//                                           restart; as all of late/, until it is destroyed
//   late-number/<qp or srq>/<virtual number> -> claimed by the member whose queue pair or queue has it, if it is a
//                                           late one (objects/registry.h)
//   late/<member>/mr/<pd>/<virtual rkey> -> region made after a restart whose virtual key is not its real one
//   late/<member>/mw/<pd>/<virtual block> -> window made after a restart, likewise
//   device/at/<host>/<place>, device/any/<place> -> a device as members knew it whose adapter is another now
//                                                   (identity.h)
//   source/<real lid or gid>/<real qp_num> -> a queue pair that sends datagrams, as others know it
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "shadowib/objects/context.h"
#include "shadowib/objects/ids.h"

namespace shadowib {

// One member's published ids: plain arrays, sorted for searching.
struct DirectoryPort {
  std::uint32_t virtual_lid, real_lid;
  ibv_gid virtual_gid, real_gid;
  std::uint32_t real_mtu;         // ibv_mtu
  std::uint32_t real_responders;  // READs and atomics that a queue pair answers at once; 0: not known
  std::uint32_t adapter;          // of the member's, each of which numbers by itself; as in DirectoryNumber
};
struct DirectoryNumber {  // of a queue pair, or of an XRC shared receive queue
  std::uint32_t virtual_number, real_number, pd, adapter;
  bool operator<(const DirectoryNumber& other) const {
    return std::pair(virtual_number, adapter) < std::pair(other.virtual_number, other.adapter);
  }
};
struct DirectoryKey {
  std::uint32_t pd, virtual_rkey, real_rkey;
};
struct Directory {
  std::vector<DirectoryPort> ports;
  std::vector<DirectoryNumber> qps;   // by virtual number, adapter
  std::vector<DirectoryNumber> srqs;  // likewise
  std::vector<DirectoryKey> keys;     // by pd, virtual_rkey
  std::vector<DirectoryKey> windows;  // blocks instead of keys (objects/memory_window.h)
};
std::string encode_directory(const Directory& directory);
bool decode_directory(const std::string& text, Directory* directory);  // false: malformed

// A device and its identity, as another member may take them over.
std::string encode_device(const ShadowDevice& device);
bool decode_device(const std::string& text, ShadowDevice* device);  // false: malformed

// The sender of a datagram, in the ids that others know it by.
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

// Keys, with the epoch in front.
std::string job_key(const std::string& rest);
std::string hex(const ibv_gid& gid);
std::string address_key(VirtualLid lid);
std::string address_key(const ibv_gid& gid);
std::string source_key(const SourceAddress& from);
std::string late_number_key(const char* kind, std::uint32_t member, std::uint32_t adapter, std::uint32_t number);
std::string late_key(const char* kind, std::uint32_t member, std::uint32_t pd, std::uint32_t id);

}  // namespace shadowib
