// Messages between connection managers: one datagram of a fixed layout (MESSAGES.md) between their queue pairs.
//
// The kinds are those of the InfiniBand communication management protocol (IBTA, volume 1, chapter 12): REQ, REP,
// RTU, REJ, DREQ, DREP for connections, SIDR_REQ and SIDR_REP for datagrams. All ids in a message are virtual ones,
// those the program sees, so that a message is as good after a restart as before.
#pragma once

#include <infiniband/verbs.h>
#include <netinet/in.h>

#include <cstdint>

namespace shadowib::cm {

enum class Kind : std::uint16_t {
  kRequest = 1,
  kReply = 2,
  kReadyToUse = 3,
  kReject = 4,
  kDisconnectRequest = 5,
  kDisconnectReply = 6,
  kServiceRequest = 7,
  kServiceReply = 8,
};

// Where a connection manager is reached: by datagrams to its queue pair.
struct Address {
  ibv_gid gid;  // used where lid is 0
  std::uint32_t lid, qp_num, qkey, reserved;
  bool operator==(const Address& other) const { return __builtin_memcmp(this, &other, sizeof(*this)) == 0; }
};
static_assert(sizeof(Address) == 32);

// Reasons of a REJ (IBTA, table "Rejection reasons") and states of a SIDR_REP that we send.
inline constexpr std::uint8_t kRejectInvalidServiceId = 8, kRejectStaleConnection = 10, kRejectConsumerDefined = 28;
inline constexpr std::uint8_t kServiceUnsupported = 1, kServiceRejected = 2;

struct Message {
  static constexpr std::uint32_t kMagic = 0x4d434253;  // "SBCM"
  static constexpr std::uint16_t kVersion = 1;
  std::uint32_t magic;
  std::uint16_t version;
  Kind kind;
  std::uint32_t from_id, to_id;  // of the connection at either end; to_id is 0 in a first request
  Address from;                  // the sender's connection manager
  // The queue pair that is connected, and where it is.
  ibv_gid gid;
  std::uint32_t lid, qp_num, qkey, psn;
  std::uint16_t port_space;
  std::uint8_t qp_type, reason;
  std::uint8_t responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, srq;
  std::uint8_t private_data_bytes, reserved;
  sockaddr_in6 source, destination;  // of the request; the family says which kind of address it is
  std::uint8_t private_data[256];
};
static_assert(sizeof(Message) == 408);

}  // namespace shadowib::cm
