// Makes a piece of a parity group from pieces on other hosts: parities before a set is committed, and lost pieces
// later. Takes 1 MiB of each source at a time, so memory does not grow with the pieces. For keepers and commands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hooks/store/erasure.h"
#include "hooks/store/parity_group.h"
#include "shadowib/base/status.h"

namespace shadowib {

// Reads ranges of pieces for several streams at a time, one stream a host of the group.
class RangeSource {
 public:
  virtual ~RangeSource() = default;
  // The stream's next bytes are those of the range. The range before has been read to its end.
  virtual Status open(int stream, const FileRange& range) = 0;
  virtual Status read(int stream, char* to, std::size_t bytes) = 0;
};

// Hashes of what the segments of a blob hold, in order, without zeros behind its end.
using SegmentHashes = std::vector<std::string>;

class PieceMaker {
 public:
  // `stretches` of plan_piece(). All but the stretches must outlive this.
  PieceMaker(const ParityGroup& group, std::vector<Stretch> stretches, RangeSource& source);
  ~PieceMaker();
  PieceMaker(const PieceMaker&) = delete;
  PieceMaker& operator=(const PieceMaker&) = delete;
  // From now on a segment must have the hash that its host has told. For parities: they need segments only, whole.
  void expect(std::vector<SegmentHashes> hashes);
  // The next bytes of the piece. kCorrupt: a segment has another hash than its host has told.
  Status next(char* to, std::size_t bytes);

 private:
  struct Input;  // one element of the stretch under way
  Status begin();
  Status end();
  Status step(std::uint8_t* to, std::size_t bytes);

  const ParityGroup& group_;
  const std::vector<Stretch> stretches_;
  RangeSource& source_;
  std::vector<SegmentHashes> expected_;
  std::size_t at_ = 0;      // the stretch under way
  std::uint64_t done_ = 0;  // bytes of it
  std::unique_ptr<ElementCode> code_;
  std::vector<std::unique_ptr<Input>> inputs_;
};

}  // namespace shadowib
