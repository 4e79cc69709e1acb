// The queue of messages of the last superstep. Messages stay where they have arrived: nothing is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shadowib::bsp {

class Inbox {
 public:
  struct Message {
    const std::byte* tag;
    const std::byte* payload;
    std::size_t bytes;
  };

  // A new superstep: the queue is empty, and its messages have tags of that size.
  void begin(std::uint32_t tag_bytes) {
    messages_.clear();
    next_ = 0, bytes_ = 0, tag_bytes_ = tag_bytes;
  }
  void add(const Message& message) {
    messages_.push_back(message);
    bytes_ += message.bytes;
  }

  std::size_t count() const { return messages_.size() - next_; }
  std::size_t bytes() const { return bytes_; }  // of the payloads in the queue
  std::uint32_t tag_bytes() const { return tag_bytes_; }
  // nullptr if the queue is empty.
  const Message* first() const { return next_ < messages_.size() ? &messages_[next_] : nullptr; }
  // Calls visit(message) for each message in the queue.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (std::size_t i = next_; i < messages_.size(); ++i) visit(messages_[i]);
  }
  void remove_first() { bytes_ -= messages_[next_++].bytes; }

 private:
  std::vector<Message> messages_;
  std::size_t next_ = 0, bytes_ = 0;
  std::uint32_t tag_bytes_ = 0;
};

}  // namespace shadowib::bsp
