// Lets memory be registered that the program has protected since its first registration: an adapter pins pages only
// as far as the process may use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shadowib {

// For the agent of a restarted process, while all threads of the program stand.
class LiftedProtection {
 public:
  // Lets the process read [address, address + bytes), and write it if `write`. False, and nothing has changed: part
  // of it is not mapped or may be executed, the kernel refuses, or nothing is in the way. Call once.
  bool lift(const void* address, std::size_t bytes, bool write);
  // Protects it as it was. 0 or errno. Call after lift().
  int put_back();

 private:
  struct Piece {
    std::uint64_t start, end;
    int protection;
  };
  int find_pieces(std::uint64_t start, std::uint64_t end, int wanted);

  std::vector<Piece> pieces_;  // that are protected, ascending
};

}  // namespace shadowib
