// The ledger of a BSP storm: all processes compute the state of all from the seed, byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace bsp_storm {

inline constexpr std::size_t kWords = 6144;  // of a process's registered area
inline constexpr std::size_t kAtOnce = 256;  // words that one process may write at once to another, by parity
inline constexpr std::size_t kMessageWords = 3000;

struct Operation {
  enum class Kind { kPut, kPutAtOnce, kGet, kSend } kind;
  int from, to;                       // `from` calls
  std::size_t offset, words, target;  // target: a get's place in the caller's memory
  std::uint64_t id;
};

// A superstep: what is called in it, in order, and what is set for the next.
struct Plan {
  std::vector<Operation> operations;
  int tag_bytes;                   // from the next superstep on
  bool registers_anew;             // the area is removed and registered again
  std::vector<std::size_t> reads;  // by process: messages that it reads afterwards
};

Plan plan_superstep(std::uint64_t seed, std::uint64_t superstep, int processes);

// Word `at` of the data of an operation.
inline std::uint32_t word_of(std::uint64_t id, std::size_t at) {
  std::uint64_t x = (id * 0x9e3779b97f4a7c15u) ^ (at * 0xc2b2ae3d27d4eb4fu);
  x ^= x >> 31;
  return static_cast<std::uint32_t>(x * 0xd6e8feb86659fd93u >> 32);
}

struct Message {
  std::uint64_t id;
  std::size_t words;
};

// The state of all processes after each superstep.
class Ledger {
 public:
  explicit Ledger(int processes);
  void run(const Plan& plan, std::uint64_t superstep);

  const std::vector<std::uint32_t>& area(int process) const { return state_[process].area; }
  const std::vector<std::uint32_t>& fetched(int process) const { return state_[process].fetched; }
  // Words written at once by `from`, in supersteps of that parity.
  const std::uint32_t* at_once(int process, int from, unsigned parity) const {
    return &state_[process].at_once[(2 * from + parity) * kAtOnce];
  }
  const std::vector<Message>& queue(int process) const { return state_[process].queue; }

 private:
  struct State {
    std::vector<std::uint32_t> area, fetched, at_once;
    std::vector<Message> queue;
  };
  std::vector<State> state_;
};

}  // namespace bsp_storm
