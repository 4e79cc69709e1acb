#include "storm/plan.h"

#include <algorithm>
#include <cstring>

#include "storm/random.h"

namespace storm {
namespace {

constexpr std::uint32_t kBufferBytes = 256 << 10;  // of the messages in flight one way

void weigh(DirectionPlan& plan, std::initializer_list<std::pair<Kind, int>> weights) {
  for (auto [kind, weight] : weights) plan.weights[static_cast<int>(kind)] = static_cast<std::uint8_t>(weight);
}

// Which operations there are, and how often.
void choose_mix(DirectionPlan& plan, Transport transport, Dice& dice) {
  if (transport == Transport::kUd) return weigh(plan, {{Kind::kSend, 3}, {Kind::kSendImm, 2}});
  if (transport == Transport::kUc)
    return weigh(plan, {{Kind::kSend, 4}, {Kind::kSendImm, 2}, {Kind::kWrite, 3}, {Kind::kWriteImm, 2}});
  if (plan.manner == Manner::kPermit)
    return weigh(plan, {{Kind::kWriteImm, 6}, {Kind::kAdd, 1}, {Kind::kSharedAdd, 1}, {Kind::kRead, 1}});
  switch (dice.below(6)) {
    case 0:  // messages alone
      return weigh(plan, {{Kind::kSend, 5}, {Kind::kSendImm, 3}});
    case 1:  // one-sided alone: nothing but memory tells the receiver
      return weigh(plan, {{Kind::kWrite, 6}, {Kind::kRead, 2}, {Kind::kMirrorWrite, 1}, {Kind::kMirrorRead, 1}});
    case 2:  // what may be done once and tells what it found
      return weigh(plan, {{Kind::kAdd, 3}, {Kind::kSharedAdd, 5}, {Kind::kSwap, 3}, {Kind::kSend, 1}});
    default:
      return weigh(plan, {{Kind::kSend, 5},
                          {Kind::kSendImm, 3},
                          {Kind::kWrite, 5},
                          {Kind::kWriteImm, 3},
                          {Kind::kRead, 2},
                          {Kind::kMirrorWrite, 1},
                          {Kind::kMirrorRead, 1},
                          {Kind::kAdd, 2},
                          {Kind::kSharedAdd, 2},
                          {Kind::kSwap, 1}});
  }
}

Manner choose_manner(Transport transport, Dice& dice) {
  switch (transport) {
    case Transport::kRc:
      return dice.pick({Manner::kAmple, Manner::kAmple, Manner::kLate, Manner::kPermit, Manner::kPaced});
    case Transport::kXrc:
      return dice.pick({Manner::kAmple, Manner::kLate});
    default:
      return Manner::kPaced;
  }
}

DirectionPlan plan_direction(std::uint64_t key, const Variety& variety, Transport transport) {
  Dice dice(key);
  DirectionPlan plan{};
  const bool connected = transport == Transport::kRc || transport == Transport::kXrc;
  plan.key = key;
  plan.manner = choose_manner(transport, dice);
  plan.shared_queue = transport == Transport::kRc && plan.manner != Manner::kPermit &&
                      plan.manner != Manner::kPaced && dice.percent(40);
  plan.slot_bytes = dice.pick({16u, 64u, 64u, 256u, 1024u, 4096u, 32768u});
  if (plan.shared_queue) plan.slot_bytes = std::min(plan.slot_bytes, kSharedBytes);
  // What is refused for the want of a receive must be of one packet, or the packets before the last one are written.
  if (plan.manner == Manner::kPermit || transport == Transport::kUd)
    plan.slot_bytes = std::min(plan.slot_bytes, kDatagramBytes);
  if (!connected) plan.slot_bytes = std::clamp(plan.slot_bytes, 64u, 4096u);
  const std::uint32_t most = std::min(4096u, kBufferBytes / plan.slot_bytes);
  plan.send_depth = std::min(most, dice.pick({8u, 32u, 128u, 512u, 4096u}));
  plan.receive_depth = plan.manner == Manner::kPermit ? 1 : std::min(most, dice.pick({4u, 16u, 64u, 256u, 1024u}));
  plan.ring = std::min(most, dice.pick({2u, 4u, 16u, 64u}));
  plan.hold = dice.between(1, plan.ring / 2);
  plan.signal_every = variety.strict ? 1 : std::min(plan.send_depth / 2, dice.pick({1u, 4u, 16u, 64u, 1024u}));
  plan.chain = dice.pick({1u, 2u, 5u, 16u});
  plan.laziness = dice.pick({1u, 1u, 1u, 4u, 40u});
  plan.pieces = dice.pick({1u, 1u, 2u, 4u});
  plan.max_inline = dice.pick({0u, 0u, 32u, 128u});
  plan.read_depth = static_cast<std::uint8_t>(dice.pick({1, 4, 16}));
  plan.rnr_retry = static_cast<std::uint8_t>(plan.manner == Manner::kPaced ? dice.below(4) : 7);
  plan.repeating_ids = dice.percent(25);
  plan.builders = variety.extended && dice.percent(40);
  plan.windowed =
      variety.windows && transport == Transport::kRc && plan.manner != Manner::kPermit && dice.percent(30);
  plan.ends_in_error = transport != Transport::kXrc && dice.percent(30);
  choose_mix(plan, transport, dice);
  plan.fences = variety.fences;
  if (!plan.fences) plan.weights[static_cast<int>(Kind::kMirrorWrite)] = 0;  // which reads before it must not see
  plan.rnr_timer = static_cast<std::uint8_t>(variety.rnr_timer != 0 ? variety.rnr_timer : 1 + key % 12);
  plan.operations = plan.laziness >= 40 ? dice.between(50, 300) : dice.between(200, 1500) + plan.send_depth;
  if (plan.slot_bytes >= 32768) plan.operations = std::min(plan.operations, 300u);
  if (plan.windowed) plan.weights[static_cast<int>(Kind::kSendInvalidate)] = 1;
  return plan;
}

std::uint32_t choose_bytes(const DirectionPlan& plan, Transport transport, Kind kind, Dice& dice) {
  const bool connected = transport == Transport::kRc || transport == Transport::kXrc;
  if (kind == Kind::kAdd || kind == Kind::kSharedAdd || kind == Kind::kSwap) return 8;
  std::uint32_t most = dice.percent(60) ? std::min(plan.slot_bytes, 128u) : plan.slot_bytes;
  if (!connected) return dice.between(16, most);  // they carry their number
  if (kind == Kind::kWrite || kind == Kind::kWriteImm || kind == Kind::kMirrorWrite) return dice.between(8, most);
  return dice.percent(5) ? 0 : dice.between(1, most);
}

}  // namespace

const char* name_of(Transport transport) {
  static constexpr const char* kNames[] = {"rc", "uc", "ud", "xrc"};
  return kNames[static_cast<int>(transport)];
}

bool is_message(Kind kind) {
  return kind == Kind::kSend || kind == Kind::kSendImm || kind == Kind::kSendInvalidate || kind == Kind::kWriteImm;
}

bool is_to_ring(Kind kind) { return kind == Kind::kWrite || kind == Kind::kWriteImm; }

bool answers(Kind kind) {
  return kind == Kind::kRead || kind == Kind::kMirrorRead || kind == Kind::kAdd || kind == Kind::kSharedAdd ||
         kind == Kind::kSwap;
}

std::vector<Connection> connections(int processes, const Variety& variety) {
  std::vector<Connection> all;
  for (int a = 0; a < processes; ++a)
    for (int b = a; b < processes; ++b)
      for (int i = 0; i < variety.connections; ++i) all.push_back({static_cast<int>(all.size()), {a, b}});
  return all;
}

ConnectionPlan plan_connection(std::uint64_t seed, const Variety& variety, const Connection& connection,
                               std::uint32_t epoch) {
  const std::uint64_t key = key_of(seed, connection.index, epoch);
  Dice dice(key);
  ConnectionPlan plan{};
  // Half of the time reliable connections, else in turn, so that every run has all.
  const auto& transports = variety.transports;
  plan.transport = transports[(static_cast<std::uint32_t>(connection.index) + epoch) % transports.size()];
  const bool has_rc = std::find(transports.begin(), transports.end(), Transport::kRc) != transports.end();
  if (has_rc && dice.percent(50)) plan.transport = Transport::kRc;
  for (int side = 0; side < 2; ++side)
    plan.directions[side] = plan_direction(key_of(key, side, 7), variety, plan.transport);
  // Of one queue pair.
  plan.directions[1].read_depth = plan.directions[0].read_depth;
  plan.linger = dice.percent(30) ? dice.between(1, 10) : 0;
  plan.by_gid = dice.percent(40);
  return plan;
}

Operation operation_at(const DirectionPlan& plan, Transport transport, std::uint64_t n) {
  Dice dice(key_of(plan.key, n));
  std::uint32_t sum = 0;
  for (std::uint8_t weight : plan.weights) sum += weight;
  std::uint32_t at = dice.below(sum);
  int kind = 0;
  for (; at >= plan.weights[kind]; ++kind) at -= plan.weights[kind];
  Operation op{};
  op.kind = static_cast<Kind>(kind);
  op.bytes = choose_bytes(plan, transport, op.kind, dice);
  op.pieces = static_cast<std::uint8_t>(answers(op.kind) && op.bytes == 8 ? 1 : dice.between(1, plan.pieces));
  const bool last = n + plan.signal_every >= plan.operations;
  op.signaled = plan.signal_every == 1 || n % plan.signal_every == plan.signal_every - 1 || dice.percent(15) ||
                (last && (answers(op.kind) || transport == Transport::kUd));
  op.inlined = !answers(op.kind) && op.bytes <= plan.max_inline && dice.percent(60);
  op.fenced = op.kind == Kind::kMirrorWrite || (transport == Transport::kRc && dice.percent(5) && plan.fences);
  op.solicited = is_message(op.kind) && dice.percent(20);
  op.queue = static_cast<std::uint8_t>(dice.below(2));
  op.detail = dice.next();
  return op;
}

std::uint32_t immediate(const DirectionPlan& plan, std::uint64_t n) {
  return static_cast<std::uint32_t>(n ^ plan.key);
}

}  // namespace storm
