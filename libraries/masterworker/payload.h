// Immutable bytes that several owners share: task inputs and outputs.
//
// Empty payloads have no address: TOPC_MSG(NULL, 0) is NULL at its destination. Not thread-safe, as all of this
// library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace shadowib::masterworker {

class Payload {
 public:
  Payload() = default;
  Payload(const Payload& other) : block_(other.block_) {
    if (block_ != nullptr) ++block_->owners;
  }
  Payload(Payload&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  Payload& operator=(Payload other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~Payload() {
    if (block_ != nullptr && --block_->owners == 0) std::free(block_);
  }

  // Copies `bytes` from `data`.
  static Payload copy(const void* data, std::size_t bytes) {
    Payload payload = allocate(bytes);
    if (bytes != 0) std::memcpy(payload.data(), data, bytes);
    return payload;
  }

  // Bytes without content, for the caller to fill through data().
  static Payload allocate(std::size_t bytes) {
    Payload payload;
    if (bytes == 0) return payload;
    void* memory = bytes <= PTRDIFF_MAX - sizeof(Block) ? std::malloc(sizeof(Block) + bytes) : nullptr;
    if (memory == nullptr) throw std::bad_alloc();
    payload.block_ = new (memory) Block{1, bytes};
    return payload;
  }

  // Bytes for C: the address of data(), which adopt() takes back. Null if there are none. Only where nobody shares
  // them.
  void* release() { return block_ != nullptr ? std::exchange(block_, nullptr) + 1 : nullptr; }
  static Payload adopt(void* data) {
    Payload payload;
    if (data != nullptr) payload.block_ = static_cast<Block*>(data) - 1;
    return payload;
  }

  // Aligned as malloc aligns. Programs may write into what they are handed, hence no const.
  void* data() const { return block_ != nullptr ? block_ + 1 : nullptr; }
  std::size_t size() const { return block_ != nullptr ? block_->size : 0; }

 private:
  // One allocation: the bytes follow it. Owners are of one thread, so their count needs no atomic operation.
  struct alignas(std::max_align_t) Block {
    std::size_t owners;
    std::size_t size;
  };

  Block* block_ = nullptr;
};

}  // namespace shadowib::masterworker
