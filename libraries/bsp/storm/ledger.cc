#include "libraries/bsp/storm/ledger.h"

#include <algorithm>

namespace bsp_storm {
namespace {

std::size_t some_words(std::mt19937_64& random, std::size_t most) {
  switch (random() % 8) {
    case 0:
      return 0;
    case 1:
      return random() % (most + 1);
    case 2:
      return std::min<std::size_t>(most, random() % 700);
    default:
      return std::min<std::size_t>(most, 1 + random() % 8);
  }
}

}  // namespace

Plan plan_superstep(std::uint64_t seed, std::uint64_t superstep, int processes) {
  std::mt19937_64 random(seed * 1000003 + superstep);
  Plan plan;
  const int count = random() % 5 == 0 ? 0 : static_cast<int>(random() % (6 * processes));
  const bool has_gets = random() % 3 == 0;
  const unsigned parity = superstep & 1;
  for (int i = 0; i < count; ++i) {
    Operation op{};
    const std::uint64_t dice = random() % 10;
    op.kind = dice < 5               ? Operation::Kind::kPut
              : dice < 6             ? Operation::Kind::kPutAtOnce
              : dice < 8 && has_gets ? Operation::Kind::kGet
                                     : Operation::Kind::kSend;
    op.from = static_cast<int>(random() % processes);
    op.to = static_cast<int>(random() % processes);
    op.id = (seed << 40) ^ (superstep << 12) ^ static_cast<std::uint64_t>(i) ^ 1;
    if (op.kind == Operation::Kind::kPutAtOnce) {
      op.words = some_words(random, kAtOnce);
      op.offset = (2 * op.from + parity) * kAtOnce + random() % (kAtOnce - op.words + 1);
    } else if (op.kind == Operation::Kind::kSend) {
      op.words = some_words(random, kMessageWords);
    } else {
      op.words = some_words(random, kWords);
      op.offset = random() % (kWords - op.words + 1);
      op.target = random() % (kWords - op.words + 1);
    }
    plan.operations.push_back(op);
  }
  plan.tag_bytes = random() % 4 == 0 ? 4 * static_cast<int>(random() % 3) : -1;
  plan.registers_anew = random() % 7 == 0;
  for (int i = 0; i < processes; ++i) plan.reads.push_back(random() % 8);
  return plan;
}

Ledger::Ledger(int processes) : state_(processes) {
  for (State& state : state_) {
    state.area.assign(kWords, 0);
    state.fetched.assign(kWords, 0);
    state.at_once.assign(2 * kAtOnce * processes, 0);
  }
}

// All gets before all puts; puts and messages by process, then in the order of the calls.
void Ledger::run(const Plan& plan, std::uint64_t) {
  for (State& state : state_) state.queue.clear();
  for (const Operation& op : plan.operations)
    if (op.kind == Operation::Kind::kGet)
      std::copy_n(&state_[op.to].area[op.offset], op.words, &state_[op.from].fetched[op.target]);
  for (int from = 0; from < static_cast<int>(state_.size()); ++from) {
    for (const Operation& op : plan.operations) {
      if (op.from != from || op.kind == Operation::Kind::kGet) continue;
      State& state = state_[op.to];
      if (op.kind == Operation::Kind::kSend) {
        state.queue.push_back({op.id, op.words});
        continue;
      }
      std::vector<std::uint32_t>& memory = op.kind == Operation::Kind::kPut ? state.area : state.at_once;
      for (std::size_t i = 0; i < op.words; ++i) memory[op.offset + i] = word_of(op.id, i);
    }
  }
}

}  // namespace bsp_storm
