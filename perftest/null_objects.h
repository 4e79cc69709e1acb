// The parts of the null backend's objects, and the functions that null_queues.cc gives null_backend.cc.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <new>

#include "shadowib/abi/backend.h"
#include "shadowib/base/lock.h"

namespace shadowib::null_backend {

extern const HostServices* g_host;
extern std::atomic<std::uint32_t> g_next_number;  // of queue pairs, protection domains and keys

// Objects come from the host's memory, which is no part of an image, and go back to a list of their kind.
template <class T>
class Pool {
 public:
  T* make() {
    SpinGuard guard(lock_);
    if (free_ == nullptr && !grow()) {
      g_host->set_errno(ENOMEM);
      return nullptr;
    }
    Node* node = free_;
    free_ = node->next;
    return new (node) T{};
  }
  void recycle(T* object) {
    object->~T();
    SpinGuard guard(lock_);
    free_ = new (static_cast<void*>(object)) Node{free_};
  }

 private:
  struct Node {
    Node* next;
  };
  static constexpr std::size_t kSlot = (sizeof(T) + 63) / 64 * 64;
  bool grow() {
    constexpr std::size_t kBytes = (kSlot > 65536 ? kSlot : 65536) * 4;
    auto* chunk = static_cast<char*>(g_host->map(kBytes));
    if (chunk == nullptr) return false;
    for (std::size_t at = 0; at + kSlot <= kBytes; at += kSlot) free_ = new (chunk + at) Node{free_};
    return true;
  }
  SpinLock lock_;
  Node* free_ = nullptr;
};

// A ring of at least so many entries, in the host's memory. Under its owner's lock.
template <class T>
class Ring {
 public:
  // False, with the program's errno set: no memory.
  bool create(std::uint32_t least) {
    std::uint32_t entries = 64;
    while (entries < least) entries *= 2;
    bytes_ = (entries * sizeof(T) + 4095) & ~std::size_t{4095};
    at_ = static_cast<T*>(g_host->map(bytes_));
    mask_ = entries - 1;
    if (at_ == nullptr) g_host->set_errno(ENOMEM);
    return at_ != nullptr;
  }
  void destroy() { g_host->unmap(at_, bytes_); }
  // Makes it at least so large; what it holds stays. False as create(): it is as before.
  bool grow(std::uint32_t least) {
    if (least <= mask_ + 1) return true;
    Ring larger{};
    if (!larger.create(least)) return false;
    while (!empty()) larger.push(pop());
    destroy();
    *this = larger;
    return true;
  }
  bool empty() const { return head_ == tail_; }
  bool full() const { return tail_ - head_ > mask_; }
  void push(const T& entry) { at_[tail_++ & mask_] = entry; }
  const T& pop() { return at_[head_++ & mask_]; }
  std::uint32_t pushed() const { return tail_; }  // since it was made or grew

 private:
  T* at_;
  std::size_t bytes_;
  std::uint32_t mask_, head_, tail_;
};

// An eventfd the program does not see, or -1 with the program's errno set.
int owned_eventfd(int flags);

// Completions of all queues that were made and have not been destroyed, since they have their size.
std::uint32_t completions_made();

// Sets the slots of completion channels and queues, queue pairs, shared receive queues and address handles.
void offer_queues(BackendOps* ops);

}  // namespace shadowib::null_backend
