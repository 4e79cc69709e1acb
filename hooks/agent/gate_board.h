// A file of the job in which members of one host tell each other what they still send again to clusters that went
// back (gate.h), faster than the exchange does. It only hurries: what it does not tell, or a file system keeps back,
// the exchange tells.
//
// Each member says how far it has come, and how far the others have to come before it can go on. A member sleeps
// meanwhile, and is woken when they are that far: by the last of them, and not by each step of each.
//
// Values of one recovery only grow, so that an old one is no harm.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "hooks/federation/rule.h"

namespace shadowib {

class GateBoard {
 public:
  using Values = std::array<std::uint64_t, federation::kMaxClusters>;
  static constexpr std::uint64_t kNothing = std::numeric_limits<std::uint64_t>::max();  // left, or awaited

  // `file` is made if it is not there, with room for members before `members`, and for `own`.
  GateBoard(const std::string& file, std::uint32_t own, std::uint32_t members);
  ~GateBoard();
  GateBoard(const GateBoard&) = delete;
  GateBoard& operator=(const GateBoard&) = delete;

  // False: the file system does not have such files. Then nothing is written, read or slept for.
  bool is_there() const { return places_ != nullptr; }

  // The own member's `earliest`, which grows, and what it awaits of the least of all others; 0: each step. Wakes
  // those who may go on by that, and itself if the others are far enough. One thread at a time.
  void write(unsigned cluster, std::uint64_t earliest, std::uint64_t awaits);
  // For each cluster; 0: that member has said nothing of it.
  Values read(std::uint32_t member) const;

  // Changes when the member is woken: by one for each time, if not by two at once. Not 0 once it has been here.
  std::uint32_t wakings(std::uint32_t member) const;
  // Until the own wakings() are not `seen` any more, or so long.
  void sleep(std::uint32_t seen, std::int64_t timeout_ns) const;

 private:
  struct Place;

  std::uint64_t earliest(std::uint32_t member, unsigned cluster) const;
  void wake(std::uint32_t member);
  void open_places(int fd, std::uint32_t members);

  const Place* places_ = nullptr;  // read here, written by pwrite(): a full disk is an error, and no signal
  std::size_t bytes_ = 0;
  std::uint32_t members_ = 0, own_;
  int fd_ = -1;
};

}  // namespace shadowib
