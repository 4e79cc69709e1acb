// Ids of other members: who holds a virtual LID or GID, what its queue pairs and keys really are now.
//
// Keys in the exchange, below the epoch:
//   lid/<virtual lid>, gid/<32 hex>      -> member index
//   rebuild/<member>                     -> Directory of that member (encode_directory), published by each rebuild
//   late/<member>/qp/<virtual qp_num>    -> queue pair made after a restart
//   late/<member>/srq/<virtual number>   -> XRC shared receive queue made after a restart
//   late/<member>/mr/<pd>/<virtual rkey> -> region made after a restart whose virtual key is not its real one
//   late/<member>/mw/<pd>/<virtual block> -> window made after a restart, likewise
//   source/<real lid or gid>/<real qp_num> -> a queue pair that sends datagrams, as others know it
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shadowib/base/status.h"
#include "shadowib/exchange/exchange.h"
#include "shadowib/objects/address_handle.h"
#include "shadowib/objects/queue_pair.h"

namespace shadowib {

// What one member publishes of itself: plain arrays, sorted for searching.
struct DirectoryPort {
  std::uint32_t virtual_lid, real_lid;
  ibv_gid virtual_gid, real_gid;
};
struct DirectoryQp {
  std::uint32_t virtual_qp_num, real_qp_num, pd;
};
struct DirectorySrq {  // of XRC: those that others name by number
  std::uint32_t virtual_number, real_number, pd;
};
struct DirectoryKey {
  std::uint32_t pd, virtual_rkey, real_rkey;
};
struct Directory {
  std::vector<DirectoryPort> ports;
  std::vector<DirectoryQp> qps;       // by virtual_qp_num
  std::vector<DirectorySrq> srqs;     // by virtual_number
  std::vector<DirectoryKey> keys;     // by pd, virtual_rkey
  std::vector<DirectoryKey> windows;  // blocks instead of keys (objects/memory_window.h)
};
std::string encode_directory(const Directory& directory);
bool decode_directory(const std::string& text, Directory* directory);  // false: malformed

// Announces the ports of a context opened now; at generations above 0 also chooses and claims their virtual LIDs.
Status announce_ports(ShadowContext& context);
// After a restart: claims a context's virtual addresses in the new epoch.
Status claim_ports_again(ShadowContext& context);
// After a restart: publishes this member's directory.
Status publish_directory();

// Fills qp.remote from the virtual address in attr (IBV_QP_AV, IBV_QP_DEST_QPN as in mask) and, at generations above
// 0, turns attr into real ids. An address nobody holds becomes kNobodyLid: sends to it end in RETRY_EXC_ERR, and
// never reach a process whose real address happens to equal the virtual one.
inline constexpr std::uint16_t kNobodyLid = 0xbfff;
inline constexpr std::uint32_t kNobodyQpNum = 0xffffff;
inline constexpr std::uint32_t kNobodySrqNum = 0xffffff;
Status turn_address(ShadowQp& qp, ibv_qp_attr* attr, int mask);
// The same for an address handle, from ah.attr.
void turn_address(ShadowAh& ah, ibv_ah_attr* attr);
inline constexpr std::uint16_t kFirstMulticastLid = 0xc000;

// At generations above 0: announces a queue pair, queue or region made after the restart.
void announce_late_qp(const ShadowQp& qp);
void announce_late_srq(const ShadowSrq& srq);
// A datagram queue pair, so that receivers can tell who it is; others need none.
Status announce_source(const ShadowQp& qp);
void announce_late_mr(const ShadowMr& mr, std::uint32_t pd);
void announce_late_mw(const ShadowMw& mw, std::uint32_t pd);

// The member that holds qp's remote end, or kNobody. Cached in the process. Asks the exchange.
inline constexpr std::uint32_t kNobody = ~0u;
std::uint32_t member_of(const RemoteEnd& remote);
// Forgets cached members (a restart's epoch has its own).
void forget_peers();

}  // namespace shadowib
