// Immutable bytes that several owners share: task inputs and outputs.
//
// Empty payloads have no address: TOPC_MSG(NULL, 0) is NULL at its destination. Not thread-safe, as all of this
// library.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>

namespace shadowib::masterworker {

class Payload {
 public:
  Payload() = default;

  // Copies `bytes` from `data`.
  static Payload copy(const void* data, std::size_t bytes) {
    Payload payload = allocate(bytes);
    if (bytes != 0) std::memcpy(payload.bytes_.get(), data, bytes);
    return payload;
  }

  // Bytes without content, for the caller to fill through data().
  static Payload allocate(std::size_t bytes) {
    Payload payload;
    if (bytes != 0) payload.bytes_ = std::shared_ptr<char[]>(new char[bytes]);
    payload.size_ = bytes;
    return payload;
  }

  // Aligned as malloc aligns. Programs may write into what they are handed, hence no const.
  void* data() const { return bytes_.get(); }
  std::size_t size() const { return size_; }

 private:
  std::shared_ptr<char[]> bytes_;
  std::size_t size_ = 0;
};

}  // namespace shadowib::masterworker
