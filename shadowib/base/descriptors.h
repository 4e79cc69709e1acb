// Descriptors and mappings that belong to shadowib or a backend, not to the program.
//
// They sit high (at the top of the soft RLIMIT_NOFILE), are CLOEXEC, are no part of an image, and are
// shielded from programs that close every descriptor (shadowib/entry/guards/descriptors.cc asks is_owned_descriptor).
// All functions are thread-safe and take no heap; is_owned_descriptor is async-signal-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shadowib {

// Numbers are sought in [limit - kOwnedDescriptorWindow, limit) first; none is at kMaxOwnedDescriptors or above.
inline constexpr int kMaxOwnedDescriptors = 1 << 20;
inline constexpr int kOwnedDescriptorWindow = 256;

// Closes any descriptor past the guard of close(2), which protects ours. Async-signal-safe.
void raw_close(int fd);

// How one becomes ours: UnownedDescriptors::own (base/unowned_descriptors.h).

// Closes and unmarks an owned descriptor.
void close_owned_descriptor(int fd);

// Unmarks an owned descriptor and leaves it open.
void disown_descriptor(int fd);

// False: the program has closed `fd` past the guard since it was owned, whether or not another owned descriptor has
// got the number.
bool is_still_the_owned_descriptor(int fd);

// Unmarks the owned descriptors that are not open any more: the program has closed them by system calls of its own,
// past the guard. Returns their number, and the lowest of them in *first.
int forget_closed_descriptors(int* first);

// True if `fd` is ours. One load and a bit test.
bool is_owned_descriptor(int fd);

// The lowest number ever used for an owned descriptor, or INT_MAX: a quick test for guards.
int lowest_owned_descriptor();

// The data of entries by which an epoll set of the program's watches owned descriptors. A forked child has the set,
// too, but not the descriptors: it knows such an entry by this alone.
inline constexpr std::uint64_t kOwnedEntry = 0x736861646f776962;  // "shadowib"

// Forgets every owned descriptor without closing: in a forked child (then close = true) and after a restart, where
// the numbers may already be the program's (then close = false).
void forget_owned_descriptors(bool close);

// Mappings that are no part of an image: what a backend mapped for itself (its arena, rings, device pages).
// `address` is page-aligned. At most kMaxOwnedMappings at a time; returns false when full.
inline constexpr int kMaxOwnedMappings = 4096;
bool own_mapping(void* address, std::size_t bytes);
void disown_mapping(void* address);
// True if [address, address + bytes) overlaps an owned mapping; fills the first overlap.
bool find_owned_mapping(std::uintptr_t address, std::size_t bytes, std::uintptr_t* start, std::size_t* length);
// Forgets every owned mapping; unmaps them first if `unmap`.
void forget_owned_mappings(bool unmap);

}  // namespace shadowib
