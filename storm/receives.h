// Receives of a queue pair or of a shared receive queue: their places, and which are posted.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "storm/random.h"

namespace storm {

class Receives {
 public:
  // `count` places of `bytes` each from `memory` on, which belongs to the caller and is registered with both keys.
  // One of `queue_pair` and `shared` is given. `ids` are the wr_ids of the places from there on, or all the same.
  Receives(ibv_qp* queue_pair, ibv_srq* shared, std::uint8_t* memory, std::uint32_t count, std::uint32_t bytes,
           std::uint32_t pieces, const std::uint32_t (&lkeys)[2], std::uint64_t key);

  // Posts the next n free places, as one chain. n <= free_places().
  void post(std::uint32_t n);
  // A completion: its place if it was posted, else null with a fault. Without a common completion queue the order of
  // a shared queue's completions says nothing. The caller frees the place.
  std::uint8_t* take(std::uint64_t wr_id, std::uint32_t* place);
  bool owns(std::uint64_t wr_id) const { return (wr_id ^ salt_) >> 32 == 0; }
  // The bytes behind `used` bytes of a place must not have been touched.
  void check_rest(std::uint32_t place, std::uint32_t used) const;
  void free(std::uint32_t place) { free_.push_back(place); }

  std::uint32_t free_places() const { return static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t outstanding() const { return static_cast<std::uint32_t>(posted_.size()); }
  std::uint64_t posted() const { return count_posted_; }
  std::uint8_t* at(std::uint32_t place) const { return memory_ + static_cast<std::size_t>(place) * bytes_; }
  std::uint32_t size() const { return size_; }

 private:
  ibv_qp* const queue_pair_;
  ibv_srq* const shared_;
  std::uint8_t* const memory_;
  const std::uint32_t size_, bytes_, pieces_, lkeys_[2];
  const std::uint64_t salt_;
  Dice dice_;
  std::deque<std::uint32_t> free_, posted_;
  std::uint64_t count_posted_ = 0;
};

}  // namespace storm
