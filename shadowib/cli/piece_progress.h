// Progress of pieces of a set that are moved or made one after the other: bytes done of all.
#pragma once

#include <cstdint>
#include <string>

#include "hooks/store/pieces.h"
#include "shadowib/cli/output.h"

namespace shadowib::cli {

class PieceProgress {
 public:
  PieceProgress(const std::string& what, std::uint64_t total_bytes) : total_(total_bytes) {
    progress_.step(what);
    progress_.update(0, total_);
  }
  PieceProgress(const PieceProgress&) = delete;
  PieceProgress& operator=(const PieceProgress&) = delete;

  // For bytes of the piece under way. Must not outlive this.
  Moved moved() {
    return [this](std::uint64_t bytes) { progress_.update(done_ + (of_piece_ += bytes), total_); };
  }
  // The piece under way is begun again.
  void again() { of_piece_ = 0; }
  // It has come to its end.
  void next(std::uint64_t bytes) {
    of_piece_ = 0;
    progress_.update(done_ += bytes, total_);
  }
  // Before a line that is told meanwhile.
  void clear() { progress_.clear(); }

 private:
  Progress progress_;
  const std::uint64_t total_;
  std::uint64_t done_ = 0, of_piece_ = 0;
};

}  // namespace shadowib::cli
