// Types of messages, so that messages in a portable image can be read on another architecture.
//
// A code is a letter: b short char, h short, i int, l long, q long long, f d D floats. Upper case B H I L Q have no
// sign. c is char: bytes are read where numbers look alike only. 0: not known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace shadowib::bsp {

constexpr std::uint32_t types_of(int tag, int payload) {
  return static_cast<std::uint32_t>(tag & 0xff) << 8 | static_cast<std::uint32_t>(payload & 0xff);
}

// The name of this architecture, as images have it.
extern const char kTarget[];

// Turns data[0..bytes), values of this architecture's widths and of the other byte order, into its own. Empty, or the
// reason why that cannot be.
std::string turn(char code, std::byte* data, std::size_t bytes);

// Appends data[0..bytes) of architecture `target` to *to, as this one has it. Empty, or the reason why that cannot
// be.
std::string convert(const std::string& target, char code, const std::byte* data, std::size_t bytes,
                    std::vector<std::byte>* to);

}  // namespace shadowib::bsp
