#include "storm/receives.h"

#include <algorithm>
#include <cstring>

#include "storm/ledger.h"

namespace storm {
namespace {
constexpr std::uint8_t kUntouched = 0xee;
constexpr std::uint32_t kMostPieces = 4, kChecked = 64;
}  // namespace

Receives::Receives(ibv_qp* queue_pair, ibv_srq* shared, std::uint8_t* memory, std::uint32_t count,
                   std::uint32_t bytes, std::uint32_t pieces, const std::uint32_t (&lkeys)[2], std::uint64_t key)
    : queue_pair_(queue_pair),
      shared_(shared),
      memory_(memory),
      size_(count),
      bytes_(bytes),
      pieces_(std::min(pieces, kMostPieces)),
      lkeys_{lkeys[0], lkeys[1]},
      salt_(key << 32),
      dice_(key) {
  for (std::uint32_t place = 0; place < count; ++place) free_.push_back(place);
}

void Receives::post(std::uint32_t n) {
  if (n == 0) return;
  std::vector<ibv_recv_wr> chain(n);
  std::vector<ibv_sge> pieces(static_cast<std::size_t>(n) * kMostPieces);
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint32_t place = free_.front();
    free_.pop_front();
    posted_.push_back(place);
    std::memset(at(place), kUntouched, bytes_);
    ibv_sge* sge = &pieces[static_cast<std::size_t>(i) * kMostPieces];
    const std::uint32_t count = dice_.between(1, pieces_);
    std::uint32_t from = 0;
    for (std::uint32_t p = 0; p < count; ++p) {
      const std::uint32_t left = bytes_ - from;
      const std::uint32_t size = p + 1 == count ? left : dice_.between(1, left / 2);
      sge[p] = {reinterpret_cast<std::uintptr_t>(at(place)) + from, size, lkeys_[(place + p) % 2]};
      from += size;
    }
    chain[i].wr_id = salt_ | place;
    chain[i].sg_list = sge;
    chain[i].num_sge = static_cast<int>(count);
    chain[i].next = i + 1 < n ? &chain[i + 1] : nullptr;
  }
  ibv_recv_wr* bad = nullptr;
  if (shared_ != nullptr)
    STORM_ZERO(ibv_post_srq_recv(shared_, chain.data(), &bad));
  else
    STORM_ZERO(ibv_post_recv(queue_pair_, chain.data(), &bad));
  count_posted_ += n;
}

std::uint8_t* Receives::take(std::uint64_t wr_id, std::uint32_t* place) {
  *place = static_cast<std::uint32_t>(wr_id);
  auto found = shared_ == nullptr ? posted_.begin() : std::find(posted_.begin(), posted_.end(), *place);
  if (!owns(wr_id) || found == posted_.end() || *found != *place) {
    ledger().fault(Fault::kCompletion, "receive %lx completes, which is not %s", wr_id,
                   shared_ == nullptr ? "the oldest posted" : "posted");
    return nullptr;
  }
  posted_.erase(found);
  return at(*place);
}

void Receives::check_rest(std::uint32_t place, std::uint32_t used) const {
  const std::uint8_t* from = at(place) + used;
  const std::uint32_t size = std::min(kChecked, bytes_ - std::min(used, bytes_));
  if (std::any_of(from, from + size, [](std::uint8_t byte) { return byte != kUntouched; }))
    ledger().fault(Fault::kCorrupted, "a receive of %u bytes is written to behind byte %u", bytes_, used);
}

}  // namespace storm
