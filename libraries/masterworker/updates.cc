#include "libraries/masterworker/updates.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <utility>

namespace shadowib::masterworker {

ChainHash extend(ChainHash chain, const Payload& input, const Payload& output) {
  // Lengths first: ("ab", "c") and ("a", "bc") are two histories.
  const std::uint64_t head[4] = {chain.low, chain.high, input.size(), output.size()};
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, head, sizeof(head));
  if (input.size() != 0) XXH3_128bits_update(&state, input.data(), input.size());
  if (output.size() != 0) XXH3_128bits_update(&state, output.data(), output.size());
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  return {hash.low64, hash.high64};
}

std::uint64_t UpdateLog::append(std::uint64_t phase, Payload input, Payload output) {
  hash_ = extend(hash_, input, output);
  kept_.push_back({phase, std::move(input), std::move(output)});
  bytes_ += cost(kept_.back());
  ++count_;
  if (most_bytes_ != 0 && bytes_ > most_bytes_) {
    most_bytes_ = 0;
    let_go_ = true;
    release(0);
  }
  cut();
  return count_;
}

void UpdateLog::keep_all(std::uint64_t most_bytes) {
  if (most_bytes == 0 || count_ != 0) return;
  most_bytes_ = most_bytes;
  pin(0);
}

void UpdateLog::release(std::uint64_t count) {
  const auto pin = pins_.find(count);
  if (pin == pins_.end()) return;
  if (--pin->second == 0) pins_.erase(pin);
  cut();
}

const Update* UpdateLog::find(std::uint64_t number) const {
  if (number < first() || number > count_ || kept_.empty()) return nullptr;
  return &kept_[number - first()];
}

void UpdateLog::cut() {
  const std::uint64_t needed = pins_.empty() ? count_ : pins_.begin()->first;
  while (!kept_.empty() && first() <= needed) {
    bytes_ -= cost(kept_.front());
    kept_.pop_front();
  }
}

}  // namespace shadowib::masterworker
