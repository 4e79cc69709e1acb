// A private heap for the shim and for backends: never the program's malloc, whose locks a stopped thread may hold.
//
// Size classes with free lists, in chunks of some 1 MiB; larger requests are mapped by themselves. One short lock, so
// a holder must not be stopped: see arena_protect_holders(). Memory is 16-byte aligned, 64 on request.
#pragma once

#include <cstddef>

namespace shadowib {

// Returns zeroed memory or nullptr. `bytes` may be 0.
void* arena_allocate(std::size_t bytes, std::size_t alignment = 16);
void arena_free(void* pointer);

// A block of more than 128 KiB is mapped by itself, so each of its pages is a fault when it is used the first time.
// Kept instead of freed, it stays mapped for a request of the same size, which gets it with the bytes it had.
void arena_keep(void* pointer);
void* arena_take_kept(std::size_t bytes);  // nullptr: none of that size is kept
// Unmaps kept blocks until no more than `most` bytes of them are left.
void arena_release_kept(std::size_t most);
// Mapped bytes of kept blocks.
std::size_t arena_kept_bytes();

// From now on `enter` is called before the lock is taken and `leave` after it was given back, by the same thread. A
// checkpoint must not stop the thread in between, or whoever allocates while it stands waits for ever. Call while
// there is one thread. A backend needs none: whoever calls it cannot be stopped.
void arena_protect_holders(void (*enter)(), void (*leave)());

// Chunks are no part of an image (backends). They come from map(bytes) and go back by unmap(address, bytes), which a
// backend takes from HostServices: its own copy of this library is not what the imager asks. Null functions: mmap,
// noted with own_mapping(). Call before the first allocation. Default: the shim's objects belong to the image.
void arena_exclude_from_image(void* (*map)(std::size_t) = nullptr, void (*unmap)(void*, std::size_t) = nullptr);

// Likewise for memory that must not be read from an image, such as the keys of a connection. It is in no image and no
// core file, is wiped when it is given back, and reads as zeros in a forked child. It outlives a restart no more than
// the connection does.
void* arena_allocate_secret(std::size_t bytes);
void arena_free_secret(void* pointer);

// With forget_owned_mappings(): none of them is there any more.
void arena_forget_secrets();

// How often that has been. The owner of a secret remembers it from before. Once it differs, the memory is gone, and
// may be neither used nor freed.
unsigned arena_secrets_forgotten();

// Bytes mapped for the arena, for tests and status.
std::size_t arena_mapped_bytes();

// Bytes asked for so far, whether given back or not: what work has cost, for the log and for tests.
std::size_t arena_requested_bytes();

// A forked child takes the lock's ownership back.
void arena_reset_lock_after_fork();

}  // namespace shadowib
