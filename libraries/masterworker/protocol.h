// Messages between a master and its workers. Both are processes of one program on one kind of processor, so the bytes
// go as they lie in memory.
//
// Hello and Welcome are datagrams: first contact. A hello is repeated until its welcome comes; the master knows it by
// its token.
//
// All others are SENDs of a reliable connection: a Header and up to kSlotBytes - sizeof(Header) bytes of input and
// output. More lies in registered memory of the sender. The *receiver* reads it, then it says kRelease.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <type_traits>

namespace shadowib::masterworker {

inline constexpr std::uint32_t kSlotBytes = 4096;
inline constexpr std::uint32_t kMagic = 0x4d573032;  // "MW02"

enum class Kind : std::uint16_t {
  kTask = 1,  // master: number = hand-out, extra = generation of aborts
  kUpdate,    // master: number = number of the update
  kEnd,       // master: number = phase; the worker returns from TOPC_master_slave
  kResult,    // worker: number = hand-out
  kRelease,   // both: number = buffer that has been read
  kReady,     // worker: connected
  kLeave,     // worker: takes no more tasks; number = kToldToLeave, or 0 at its end with the farm
};
inline constexpr std::uint64_t kToldToLeave = 1;  // by SIGTERM: no other is made in its place

struct Header {
  std::uint32_t magic = kMagic;
  Kind kind{};
  std::uint8_t round = 0;
  std::uint8_t spare = 0;
  std::uint64_t life = 0;  // random, of the master from its start or restart: what comes from before is dropped (M1)
  std::uint64_t number = 0;
  std::uint64_t extra = 0;
  std::uint64_t input_bytes = 0, output_bytes = 0;
  std::uint64_t address = 0;  // not 0: both lie there, one behind the other
  std::uint32_t key = 0;
  std::uint32_t buffer = 0;  // for kRelease
};
static_assert(sizeof(Header) == 64 && std::is_trivially_copyable_v<Header>);

// An adapter's address, as a datagram or a connection needs it.
struct Place {
  std::uint32_t queue_pair = 0;
  std::uint16_t lid = 0;
  std::uint8_t global = 0;  // 1: only by GID
  std::uint8_t spare = 0;
  union ibv_gid gid {};
};

struct Hello {
  std::uint32_t magic = kMagic;
  std::uint32_t pid = 0;
  std::uint64_t token = 0;  // of this worker: random
  std::uint64_t life = 0;   // of the master it is a fork of
  std::uint64_t updates = 0, phase = 0;
  std::uint64_t chain[2]{};  // fingerprint of the updates
  std::uint64_t abort_address = 0;
  std::uint32_t abort_key = 0;
  std::uint32_t first_packet = 0;
  Place datagrams, connection;
  std::uint64_t elsewhere = 0;  // 1: no fork of the master; it has run the program from its beginning
};
static_assert(std::is_trivially_copyable_v<Hello> && sizeof(Hello) <= 256);

// The others end the worker. kStranger: of another life, or nobody awaits it. kTooLate: it lacks updates that the
// master has no more. kNoRoom: the master's device takes no more workers.
enum class Answer : std::uint32_t { kWelcome = 1, kStranger, kTooLate, kNoRoom };

struct Welcome {
  std::uint32_t magic = kMagic;
  Answer answer{};
  std::uint64_t token = 0;
  std::uint32_t rank = 0, first_packet = 0;
  std::uint32_t workers = 0, spare = 0;
  Place connection;
};
static_assert(std::is_trivially_copyable_v<Welcome> && sizeof(Welcome) <= 256);

// Written into a worker by RDMA, 8 bytes each.
struct AbortWords {
  volatile std::uint64_t generation = 0;  // tasks handed out before are asked to end
  volatile std::uint64_t handout = 0;     // and so is this one
};

}  // namespace shadowib::masterworker
