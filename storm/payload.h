// The right value of every byte: a function of a flow's key, a sequence number and an offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace storm {

// The key of a flow's messages is its plan's; other data of the flow have their own.
constexpr std::uint64_t mirror_key(std::uint64_t key) { return key ^ 0x6d6972726f72u; }
constexpr std::uint64_t library_key(std::uint64_t key) { return key ^ 0x6c696272u; }
constexpr std::uint64_t swap_key(std::uint64_t key) { return key + 0x73776170u; }

// Writes bytes[0..size) of message `sequence` of the flow `key`.
void fill(std::uint8_t* bytes, std::size_t size, std::uint64_t key, std::uint64_t sequence);

// The first offset that is not as fill() has it, looking at bytes [from, size) of the message, which lie at `bytes`.
std::optional<std::size_t> first_difference(const std::uint8_t* bytes, std::size_t from, std::size_t size,
                                            std::uint64_t key, std::uint64_t sequence);

// The sequence number that the first eight bytes of a message say; any number if they are not of this flow.
std::uint64_t sequence_in(const std::uint8_t* bytes, std::uint64_t key);

// The last word of RDMA write `sequence`, whatever its size: what a receiver that polls memory looks for. Never what
// seal_word has for the last word of a place.
std::uint64_t landed_word(std::uint64_t key, std::uint64_t sequence);

// A consumed place is overwritten by its seal, so that what is written to it a second time is seen.
void seal(std::uint8_t* place, std::size_t size, std::uint64_t key, std::uint64_t sequence);
bool sealed(const std::uint8_t* place, std::size_t size, std::uint64_t key, std::uint64_t sequence);

// For a place of `size` bytes, a multiple of eight, that another process or an adapter writes.
std::uint64_t last_word(const std::uint8_t* place, std::size_t size);

}  // namespace storm
