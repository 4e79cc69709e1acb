// XXH3-64 of bytes: one value on every architecture.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shadowib::portable {

std::uint64_t content_hash(const void* bytes, std::size_t count, std::uint64_t seed);

}  // namespace shadowib::portable
