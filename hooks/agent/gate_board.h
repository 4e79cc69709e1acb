// A file of the job in which members of one host tell each other what they still send again to clusters that went
// back (gate.h), faster than the exchange does. It only hurries: what it does not tell, or a file system keeps back,
// the exchange tells.
//
// Values of one recovery only grow, so that an old one is no harm. For the agent's thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "hooks/federation/rule.h"

namespace shadowib {

class GateBoard {
 public:
  using Values = std::array<std::uint64_t, federation::kMaxClusters>;

  // `file` is made if it is not there.
  explicit GateBoard(const std::string& file);
  ~GateBoard();
  GateBoard(const GateBoard&) = delete;
  GateBoard& operator=(const GateBoard&) = delete;

  void write(std::uint32_t member, const Values& values);
  // False: that member has written nothing, or just writes.
  bool read(std::uint32_t member, Values* values) const;

 private:
  int fd_ = -1;
};

}  // namespace shadowib
