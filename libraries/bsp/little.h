// Whole numbers that processes of several architectures share: in memory their lowest byte is first.
#pragma once

#include <bit>
#include <type_traits>

namespace shadowib::bsp {

// Where the processor has that order, a number like others.
template <typename T>
class Little {
 public:
  Little() = default;
  constexpr Little(T value) : stored_(turned(value)) {}
  constexpr operator T() const { return turned(stored_); }

  // For a peer that reads it at any time: what was written before is there, too.
  void publish(T value) { __atomic_store_n(&stored_, turned(value), __ATOMIC_RELEASE); }

 private:
  static constexpr T turned(T value) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
    if constexpr (std::endian::native == std::endian::little) return value;
    if constexpr (sizeof(T) == 2) return static_cast<T>(__builtin_bswap16(static_cast<unsigned short>(value)));
    if constexpr (sizeof(T) == 4) return static_cast<T>(__builtin_bswap32(static_cast<unsigned>(value)));
    return static_cast<T>(__builtin_bswap64(static_cast<unsigned long long>(value)));
  }

  T stored_;
};

}  // namespace shadowib::bsp
