// The heap of instrumented code: each block knows the allocation that made it, and so its type.
//
// A block has 16 bytes in front, and one byte behind, so that a pointer past its end leads into it. Memory is zero at
// first: what a program never set fits everywhere. Threads: any; a lock is taken only if the process has several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "libraries/portable/tables.h"

namespace shadowib::portable {

struct HeapBlock {
  unsigned char* address;
  std::uint64_t size;
  unsigned alignment;  // to this power of two
  const Allocation* allocation;
};

// Null, and errno ENOMEM, if there is no memory. The caller owns the block, and frees it by heap_free.
void* heap_take(std::size_t size, std::size_t alignment, const Allocation* allocation);
void heap_free(void* block);
// Gives a block another size and allocation, in its place. Returns false if it must move.
bool heap_resize(void* block, std::size_t size, const Allocation* allocation);
// Gives a large block another size without a copy, perhaps at another address, which it returns. Null: the caller
// must copy.
void* heap_remap(void* block, std::size_t size, const Allocation* allocation);
// Bytes that were asked for.
std::size_t heap_size(const void* block);
// True if `address` lies in memory of this heap, in a block or not.
bool heap_owns(const void* address);
// The block that `address` lies in. Returns false if it lies in none.
bool heap_block_at(const void* address, HeapBlock* block);
// All blocks, in the order of their addresses. No thread may use the heap meanwhile.
std::vector<HeapBlock> heap_blocks();

}  // namespace shadowib::portable
