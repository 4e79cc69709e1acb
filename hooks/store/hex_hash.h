// XXH3-128 as 32 hex digits: how placements, and messages of keepers, write the hash of a content. Uses the heap.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace shadowib {

class HexHash {
 public:
  HexHash();
  ~HexHash();
  void add(std::string_view bytes);
  // The hash of everything added so far.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hex_hash(std::string_view bytes);

// HexHash::add for processors that have AVX2. `state`: XXH3_state_t.
void add_to_xxh3_avx2(void* state, const void* bytes, std::size_t count);

}  // namespace shadowib
