// The name that a Redis server gives to a script: its SHA-1, in hexadecimal. Computed by the compiler.
// Source: RFC 3174. It only names here, and keeps nothing safe.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shadowib {

class ScriptName {
 public:
  explicit constexpr ScriptName(std::string_view script) {
    std::uint32_t hash[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    // A one bit, zeros, and the length in bits as the last eight bytes.
    const std::size_t blocks = (script.size() + 8) / 64 + 1;
    for (std::size_t block = 0; block < blocks; ++block) {
      std::uint32_t words[16] = {};
      for (std::size_t i = 0; i < 64; ++i) {
        const std::size_t at = block * 64 + i;
        const std::size_t from_end = blocks * 64 - 1 - at;
        std::uint32_t byte = at < script.size()    ? static_cast<unsigned char>(script[at])
                             : at == script.size() ? 0x80
                                                   : 0;
        if (from_end < 8) byte = static_cast<std::uint8_t>(std::uint64_t{script.size()} * 8 >> 8 * from_end);
        words[i / 4] = words[i / 4] << 8 | byte;
      }
      mix(hash, words);
    }
    for (std::size_t i = 0; i < 40; ++i) text_[i] = "0123456789abcdef"[hash[i / 8] >> (28 - i % 8 * 4) & 15];
  }

  constexpr std::string_view text() const { return {text_, sizeof(text_)}; }

 private:
  static constexpr void mix(std::uint32_t (&hash)[5], std::uint32_t (&w)[16]) {
    std::uint32_t a = hash[0], b = hash[1], c = hash[2], d = hash[3], e = hash[4];
    for (std::size_t t = 0; t < 80; ++t) {
      std::uint32_t& word = w[t % 16];
      if (t >= 16) word = std::rotl(w[(t + 13) % 16] ^ w[(t + 8) % 16] ^ w[(t + 2) % 16] ^ word, 1);
      const std::uint32_t f = t < 20   ? ((b & c) | (~b & d)) + 0x5a827999
                              : t < 40 ? (b ^ c ^ d) + 0x6ed9eba1
                              : t < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc
                                       : (b ^ c ^ d) + 0xca62c1d6;
      const std::uint32_t next = std::rotl(a, 5) + f + e + word;
      e = d, d = c, c = std::rotl(b, 30), b = a, a = next;
    }
    hash[0] += a, hash[1] += b, hash[2] += c, hash[3] += d, hash[4] += e;
  }

  char text_[40] = {};
};

static_assert(ScriptName("abc").text() == "a9993e364706816aba3e25717850c26c9cd0d89d");
static_assert(ScriptName("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq").text() ==
              "84983e441c3bd26ebaae4aa1f95129e5e54670f1");

}  // namespace shadowib
