// The settling rule: facts of a send queue and of its peer, and the verdict. Pure: no clock, no exchange, no driver.
//
// The settler (settle.cc, peer_counts.h) collects the facts in each round. Model: model/*.pml; the rule in words:
// docs/internals/settling.md.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>

namespace shadowib {

// One queue pair as its peer needs to see it. Published, so the layout is a contract between members of one version.
struct QpCounts {
  std::uint32_t qp_num, remote_qp_num;
  std::uint32_t consumed;     // receives completed on this connection (wraps)
  std::uint32_t outstanding;  // receives posted and not completed
  std::uint32_t delivered;    // messages it has sent that the peer is known to have taken (wraps)
  std::uint32_t state;
  std::uint32_t adapter;     // by its place in the backend's list: each adapter of a member numbers by itself
  std::uint32_t remote_lid;  // 0: remote_gid tells
  ibv_gid remote_gid;
};

enum class Verdict {
  kEmpty,    // everything posted has run, and every completion owed was polled
  kBlocked,  // the oldest request needs a receive that nobody can post
  kHeld,     // what is left has not run, and will not while threads are parked
  kDoomed,   // the peer is gone or in error, or a guest: nothing of the connection outlives a restart
  kMoving    // wait
};

// A send queue in one round.
struct SendFacts {
  std::uint32_t state = IBV_QPS_RTS;  // ibv_qp_state, as the backend tells it
  bool draining = false;              // in SQD, and not drained yet
  bool reliable = true;               // not UC, not UD
  bool datagrams = false;             // UD
  bool to_guest = false;              // the peer, or the oldest datagram's receiver, is in no checkpoint
  bool all_executed = false;          // nothing is left
  bool owes_completion = false;       // a request that ran is signaled, and its completion was not polled
  bool unproven = false;              // the oldest has no signal, and may have run: a fence is to tell
  // The oldest request that is not known to have run. Valid unless all_executed.
  ibv_wr_opcode oldest = IBV_WR_SEND;
  std::uint32_t messages_before = 0;  // receive-consuming messages in front of it since the connection began; wraps
};

// The known facts of the peer.
struct PeerFacts {
  const QpCounts* row = nullptr;  // its queue pair's, or that of another one with its number
  bool connected = false;         // and that one has ours for its peer
  bool may_come = false;          // a member at the peer's address has not published yet
  // Receives left in the queue that the oldest request takes one of: the peer's own, or the shared one that an XRC
  // request names.
  std::optional<std::uint32_t> receives_left;
};

struct Judgement {
  Verdict verdict = Verdict::kMoving;
  bool awaits_peer = false;    // held because the peer has not reached RTR
  bool may_be_doomed = false;  // moving, since it may have run before the peer went: if that is never told, doomed
};

// The verdict as far as the peer does not matter.
std::optional<Verdict> judge_alone(const SendFacts& send);
// For a send queue that judge_alone() leaves open.
Judgement judge_by_peer(const SendFacts& send, const PeerFacts& peer);

}  // namespace shadowib
