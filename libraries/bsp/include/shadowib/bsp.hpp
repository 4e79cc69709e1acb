// BSP programs in C++20: typed arrays and queues over supersteps, with no registration by hand.
//
//   bsp::World world;                        // begins with all processes of bsprun, ends when it is destroyed
//   bsp::Array<double> row(world, 100);      // in every process, 100 elements each; counts from the next sync
//   bsp::Queue<int, double> halo(world);     // messages with a tag
//   world.sync();
//   row.put(world.next(), 0, 3.5);           // to element 0 there
//   halo.send(world.next(), 7, {1.0, 2.0});
//   world.sync();
//   for (const auto& [tag, values] : halo) use(tag, values);
//
// Offsets and sizes are elements. Types are trivially copyable. Wrong use ends the job as in bsp.h. One thread.
// Arrays and queues are made and destroyed by all processes in the same order.
#ifndef SHADOWIB_BSP_HPP
#define SHADOWIB_BSP_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace bsp {

// The forms of MulticoreBSP, whatever <bsp.h> is compiled for.
namespace c {
extern "C" {
void shadowib_bsp_begin(unsigned) __asm__("bspm_begin");
void shadowib_bsp_end() __asm__("bspm_end");
[[noreturn]] void shadowib_bsp_abort(const char*, ...) __asm__("bspm_abort");
unsigned shadowib_bsp_nprocs() __asm__("bspm_nprocs");
unsigned shadowib_bsp_pid() __asm__("bspm_pid");
double shadowib_bsp_time() __asm__("bspm_time");
void shadowib_bsp_sync() __asm__("bspm_sync");
void shadowib_bsp_push_reg(const void*, std::size_t) __asm__("bspm_push_reg");
void shadowib_bsp_pop_reg(const void*) __asm__("bspm_pop_reg");
void shadowib_bsp_put(unsigned, const void*, void*, std::size_t, std::size_t) __asm__("bspm_put");
void shadowib_bsp_get(unsigned, const void*, std::size_t, void*, std::size_t) __asm__("bspm_get");
void shadowib_bsp_set_tagsize(std::size_t*) __asm__("bspm_set_tagsize");
void shadowib_bsp_send(unsigned, const void*, const void*, std::size_t) __asm__("bspm_send");
std::size_t shadowib_bsp_hpmove(void**, void**) __asm__("bspm_hpmove");
}
}  // namespace c

template <typename T>
concept Plain = std::is_trivially_copyable_v<T> && !std::is_same_v<T, bool>;
// Messages lie at multiples of 8 bytes.
template <typename T>
concept Sendable = Plain<T> && alignof(T) <= 8;

namespace detail {

// A queue as the world sees it: takes the messages with its number.
class Receiver {
 public:
  virtual void clear() = 0;
  virtual void take(const std::byte* payload, std::size_t bytes) = 0;

 protected:
  ~Receiver() = default;
};

}  // namespace detail

// The parallel part of a program. One at a time, first in main().
class World {
 public:
  World() : World(c::shadowib_bsp_nprocs()) {}
  // With at most so many processes.
  explicit World(unsigned processes) {
    c::shadowib_bsp_begin(processes);
    std::size_t tag = sizeof(std::uint32_t);  // the number of a queue
    c::shadowib_bsp_set_tagsize(&tag);
    c::shadowib_bsp_sync();  // the size counts from here on
  }
  ~World() {
    if (std::uncaught_exceptions() > 0) c::shadowib_bsp_abort("an exception leaves the parallel part");
    c::shadowib_bsp_end();
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  unsigned pid() const { return c::shadowib_bsp_pid(); }
  unsigned nprocs() const { return c::shadowib_bsp_nprocs(); }
  unsigned next() const { return (pid() + 1) % nprocs(); }
  unsigned previous() const { return (pid() + nprocs() - 1) % nprocs(); }
  double time() const { return c::shadowib_bsp_time(); }
  template <typename... Values>
  [[noreturn]] void abort(const char* format, Values... values) const {
    c::shadowib_bsp_abort(format, values...);
  }

  // Ends the superstep: gets, then puts, have happened, and messages are in their queues.
  void sync() {
    c::shadowib_bsp_sync();
    ended_.clear();
    for (detail::Receiver* queue : queues_)
      if (queue != nullptr) queue->clear();
    void *tag, *payload;
    for (std::size_t bytes; (bytes = c::shadowib_bsp_hpmove(&tag, &payload)) != SIZE_MAX;) {
      std::uint32_t number;
      std::memcpy(&number, tag, sizeof(number));
      if (number < queues_.size() && queues_[number] != nullptr)
        queues_[number]->take(static_cast<const std::byte*>(payload), bytes);
    }
  }

 private:
  template <Plain T>
  friend class Array;
  template <Sendable Tag, Sendable T>
  friend class Queue;
  // Until the next sync: others' puts and gets of this superstep still go there.
  void keep(std::shared_ptr<void> memory) { ended_.push_back(std::move(memory)); }
  std::uint32_t add(detail::Receiver* queue) {
    queues_.push_back(queue);
    return static_cast<std::uint32_t>(queues_.size() - 1);
  }
  void remove(std::uint32_t number) { queues_[number] = nullptr; }

  std::vector<detail::Receiver*> queues_;
  std::vector<std::shared_ptr<void>> ended_;  // memory of arrays that this superstep has destroyed
};

// Elements of this process that others reach, from the sync after its construction to the one after its end.
template <Plain T>
class Array {
 public:
  Array(World& world, std::size_t elements, T value = T())
      : world_(world), memory_(std::make_shared<std::vector<T>>(elements, value)), own_(*memory_) {
    bind();
  }
  ~Array() {
    c::shadowib_bsp_pop_reg(own_.data());
    world_.keep(std::move(memory_));
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  std::size_t size() const { return own_.size(); }
  T& operator[](std::size_t at) { return own_[at]; }
  const T& operator[](std::size_t at) const { return own_[at]; }
  std::span<T> own() { return own_; }
  auto begin() { return own_.begin(); }
  auto end() { return own_.end(); }

  // To elements at, at + 1, ... of process `to`, at the sync. Values are copied now.
  void put(unsigned to, std::size_t at, const T& value) { put(to, at, std::span<const T>(&value, 1)); }
  void put(unsigned to, std::size_t at, std::span<const T> values) {
    c::shadowib_bsp_put(to, values.data(), own_.data(), at * sizeof(T), values.size_bytes());
  }
  // Elements at, at + 1, ... of process `from`, as they are at the sync before puts, to `values` at the sync.
  void get(unsigned from, std::size_t at, T& value) { get(from, at, std::span<T>(&value, 1)); }
  void get(unsigned from, std::size_t at, std::span<T> values) {
    c::shadowib_bsp_get(from, own_.data(), at * sizeof(T), values.data(), values.size_bytes());
  }

 private:
  // An address of its own even with no elements.
  void bind() {
    own_.reserve(1);
    c::shadowib_bsp_push_reg(own_.data(), own_.size() * sizeof(T));
  }

  World& world_;
  std::shared_ptr<std::vector<T>> memory_;
  std::vector<T>& own_;
};

// Messages of some T with a tag. The queue has those of the last superstep until the next sync.
template <Sendable Tag, Sendable T>
class Queue : private detail::Receiver {
 public:
  struct Message {
    Tag tag;
    std::span<const T> values;  // until the next sync
  };

  explicit Queue(World& world) : world_(world), number_(world.add(this)) {}
  ~Queue() { world_.remove(number_); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // To process `to`. Values are copied now.
  void send(unsigned to, const Tag& tag, std::span<const T> values) {
    buffer_.resize(kTagBytes + values.size_bytes());
    std::memcpy(buffer_.data(), &tag, sizeof(Tag));
    if (!values.empty()) std::memcpy(buffer_.data() + kTagBytes, values.data(), values.size_bytes());
    c::shadowib_bsp_send(to, &number_, buffer_.data(), buffer_.size());
  }
  void send(unsigned to, const Tag& tag, std::initializer_list<T> values) {
    send(to, tag, std::span<const T>(values.begin(), values.size()));
  }
  void send(unsigned to, const Tag& tag, const T& value) { send(to, tag, std::span<const T>(&value, 1)); }

  std::size_t size() const { return messages_.size(); }
  auto begin() const { return messages_.begin(); }
  auto end() const { return messages_.end(); }

 private:
  static constexpr std::size_t kTagBytes = (sizeof(Tag) + 7) / 8 * 8;

  void clear() override { messages_.clear(); }
  void take(const std::byte* payload, std::size_t bytes) override {
    // Processes that have made queues in another order send others' messages.
    if (bytes < kTagBytes || (bytes - kTagBytes) % sizeof(T) != 0)
      c::shadowib_bsp_abort("queue %u: a message of %zu bytes splits an element of %zu", number_, bytes, sizeof(T));
    Message message;
    std::memcpy(&message.tag, payload, sizeof(Tag));
    message.values = {reinterpret_cast<const T*>(payload + kTagBytes), (bytes - kTagBytes) / sizeof(T)};
    messages_.push_back(message);
  }

  World& world_;
  const std::uint32_t number_;
  std::vector<std::byte> buffer_;
  std::vector<Message> messages_;
};

}  // namespace bsp
#endif
