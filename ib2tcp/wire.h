// The frames ib2tcp processes exchange, and the messages that open a connection. Byte by byte: WIRE_FORMAT.md.
//
// Everything is little-endian (the only machines supported), except `imm`, which is carried as the program gave it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace shadowib::ib2tcp {

static_assert(std::endian::native == std::endian::little, "frames are written as they lie in memory");

inline constexpr std::uint8_t kWireVersion = 3;
inline constexpr std::uint32_t kMaxMessageBytes = 1u << 31;
inline constexpr std::uint32_t kMaxDatagramBytes = 4096;
inline constexpr std::uint32_t kMulticastQpn = 0xffffff;  // every queue pair attached to the group
inline constexpr std::uint32_t kNoSrqn = 0xffffff;        // never given to a shared receive queue

enum class Opcode : std::uint8_t {
  // Requests; each takes one sequence number of its queue pair.
  kSend = 1,
  kSendImm = 2,
  kWrite = 3,
  kWriteImm = 4,
  kRead = 5,
  kCompareSwap = 6,
  kFetchAdd = 7,
  // Datagrams: requests of an unconnected queue pair, each for itself.
  kDatagram = 8,
  kDatagramImm = 9,
  kSendInvalidate = 10,  // a request as the first seven; `rkey` is a window of the receiver's
  // Requests that the sender executes itself, in their place: never in a frame.
  kBindWindow = 48,
  kLocalInvalidate = 49,
  // Answers.
  kReadResponse = 16,
  kAtomicResponse = 17,
  kAck = 18,
  kNak = 19,
  kReceivePosted = 20,  // to a sender that was told "receiver not ready": one is there now
  kDatagramDone = 21,   // a datagram, and all before it of that sender on this connection, was delivered or dropped
  // These belong to the connection, not to a queue pair.
  kHello = 32,  // the first frame of the side that connected
  // Between clusters alone.
  kResume = 33,  // on a new connection: `seq` is the number that the receiver of requests expects; `operand1` 1: its
                 // sender waits for the same, and sends no request before
  kStable = 34,  // `seq`: none before it is asked for again; `operand1`: no result of an atomic before it is
  kVector = 35,  // the frame behind it depends on these, 4 bytes a cluster; `sn` is its number
};

inline constexpr std::uint8_t kFlagSolicited = 1;
inline constexpr std::uint8_t kFlagPaused =
    4;  // of a NAK: the program is stopped for a checkpoint, or went back and has yet to bind a window: not to blame
inline constexpr std::uint8_t kFlagAckValid = 2;  // `ack` says something about the receiving queue pair's requests

// Why a request was not executed (kNak).
enum class Syndrome : std::uint8_t {
  kNone = 0,
  kReceiverNotReady = 1,  // no receive posted; `imm` holds the min_rnr_timer code
  kNotReady = 2,          // no such queue pair, not connected to the sender, or a gap in the sequence: retry later
  kInvalidRequest = 3,
  kRemoteAccess = 4,
  kRemoteOperation = 5,
};

// `imm` of kNotReady that answers a RESUME: no queue pair with that history will come.
inline constexpr std::uint32_t kGoneForGood = 1;

struct FrameHeader {
  std::uint8_t version;
  Opcode opcode;
  std::uint8_t flags;
  Syndrome syndrome;
  std::uint32_t dest_qpn;
  std::uint32_t src_qpn;
  std::uint32_t seq;  // of the request, or of the request answered
  std::uint32_t ack;  // every request of the receiving queue pair before this one has been executed
  std::uint32_t imm;
  std::uint32_t length;  // of the payload that follows; for kRead: bytes asked for, nothing follows
  std::uint32_t rkey;
  std::uint64_t raddr;
  std::uint64_t operand1;  // compare or add; in kAtomicResponse the original value
  std::uint64_t operand2;  // swap
  union {
    std::uint64_t dgid_end;  // of a datagram
    struct {
      std::uint32_t srqn;  // XRC: the shared receive queue a request is for, never 0; else 0
      std::uint32_t sn;    // between clusters: the number of the sender's last CLC (border.h); else 0
    };
  };
};
static_assert(sizeof(FrameHeader) == 64);

inline bool is_request(Opcode opcode) {
  return (opcode >= Opcode::kSend && opcode <= Opcode::kFetchAdd) || opcode == Opcode::kSendInvalidate;
}
inline bool is_local(Opcode opcode) { return opcode == Opcode::kBindWindow || opcode == Opcode::kLocalInvalidate; }
inline bool is_send(Opcode opcode) {
  return opcode == Opcode::kSend || opcode == Opcode::kSendImm || opcode == Opcode::kSendInvalidate;
}
inline bool is_datagram(Opcode opcode) { return opcode == Opcode::kDatagram || opcode == Opcode::kDatagramImm; }
inline bool is_atomic(Opcode opcode) { return opcode == Opcode::kCompareSwap || opcode == Opcode::kFetchAdd; }
inline bool needs_response(Opcode opcode) { return opcode == Opcode::kRead || is_atomic(opcode); }
inline bool is_fatal(Syndrome syndrome) { return syndrome >= Syndrome::kInvalidRequest; }
inline bool takes_receive(Opcode opcode) { return is_send(opcode) || opcode == Opcode::kWriteImm; }
// The path of a datagram, in fields that only connected queue pairs use otherwise. raddr holds these bits, operand1
// the sender's GUID, operand2 and dgid_end the destination's GID as it lies in memory, ack the hop limit. Without a
// global route operand2 is the destination's LID if that is a multicast one.
struct DatagramPath {
  std::uint64_t slid : 16, sl : 4, global : 1, reserved : 11, flow_label : 20, traffic_class : 8, reserved2 : 4;
};
static_assert(sizeof(DatagramPath) == sizeof(std::uint64_t));

// Bytes that follow the header in the stream.
inline std::uint32_t payload_bytes(const FrameHeader& header) {
  switch (header.opcode) {
    case Opcode::kSend:
    case Opcode::kSendImm:
    case Opcode::kSendInvalidate:
    case Opcode::kWrite:
    case Opcode::kWriteImm:
    case Opcode::kReadResponse:
    case Opcode::kDatagram:
    case Opcode::kDatagramImm:
    case Opcode::kVector:
      return header.length;
    default:
      return 0;
  }
}

// Opening a connection. The connecting side speaks first and proves the key first; the accepting side has given
// nothing but a random number until then. MACs are BLAKE2b-256 keyed with the job's key over one role byte and all
// messages before, so that neither can be replayed or turned round.
inline constexpr std::uint32_t kHandshakeMagic = 0x54324249;  // "IB2T"
inline constexpr std::uint16_t kHandshakeVersion = 3;
enum class StreamKind : std::uint8_t { kTcp = 1, kShm = 2, kOfi = 3 };

struct Greeting {  // connecting -> accepting
  std::uint32_t magic;
  std::uint16_t version;
  StreamKind kind;
  std::uint8_t frame_version;
  std::uint16_t lid;      // of the connecting process's first port
  std::uint16_t cluster;  // index + 1 of its cluster; 0: none
  std::uint32_t slot;     // kOfi: of the connecting side's end; its secret is the nonce's first 8 bytes
  std::uint8_t from[16];
  std::uint8_t to[16];
  std::uint8_t nonce[32];
  std::uint32_t from_incarnation;  // of the clusters of both, as the connecting side knows them
  std::uint32_t to_incarnation;
};
static_assert(sizeof(Greeting) == 88);

struct Challenge {  // accepting -> connecting
  std::uint32_t magic;
  std::uint16_t version;
  std::uint8_t reserved[2];
  std::uint8_t nonce[32];
};
static_assert(sizeof(Challenge) == 40);

struct Proof {  // connecting -> accepting
  std::uint8_t mac[32];
};

enum class Verdict : std::uint32_t {
  kAccepted = 1,
  kUseOther = 2,  // there is or will be another one
  kDead = 3,      // one of both is of an incarnation of its cluster that is over, as far as the accepting side knows
  kLater = 4,     // the exchange does not answer the accepting side: it cannot look for the peer's record
};
struct Answer {  // accepting -> connecting; with kShm and kAccepted three descriptors ride along (SCM_RIGHTS)
  Verdict verdict;
  std::uint32_t slot;        // kOfi: of the accepting side's end; its secret is the challenge's first 8 bytes
  std::uint64_t ring_bytes;  // kShm: of each direction
  std::uint8_t mac[32];      // covers all messages and the fields above
};
static_assert(sizeof(Answer) == 48);

}  // namespace shadowib::ib2tcp
