// Memory of the imager's own while it saves: mapped at once, filled as needed, no part of the image.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shadowib {

class Scratch {
 public:
  // Reserves address space; pages cost memory only when written. False if the kernel gives none.
  bool map(std::size_t bytes);
  void unmap();
  // Zeroed, aligned to `alignment`; nullptr when the region is used up.
  void* take(std::size_t bytes, std::size_t alignment = 64);
  // Takes all that is left, from the next aligned address on: nothing can be taken behind it.
  std::uint8_t* take_rest(std::size_t* bytes);

  std::uint64_t start() const { return start_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t start_ = 0, bytes_ = 0, used_ = 0;
};

}  // namespace shadowib
