// The ring by itself: both ways in and out of it, a peer that lies about its counts, and two threads that sleep.
#include <errno.h>
#include <gtest/gtest.h>
#include <semaphore.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "ib2tcp/transports/byte_ring.h"

namespace shadowib::ib2tcp {
namespace {

constexpr std::size_t kBytes = 4096;

char byte_at(std::uint64_t position) { return static_cast<char>((position * 2654435761u) >> 13); }

struct Ring {
  RingControl control{};
  std::unique_ptr<char[]> data{new char[kBytes]};
  RingProducer producer;
  RingConsumer consumer;
  Ring() {
    producer.attach(&control, data.get(), kBytes);
    consumer.attach(&control, data.get(), kBytes);
  }
  bool is_inside(const char* at, std::size_t bytes) const {
    return at >= data.get() && bytes <= kBytes && at + bytes <= data.get() + kBytes;
  }
};

// Writes bytes that their position tells, in place or by a copy. Returns how many.
std::size_t put(RingProducer& producer, std::uint64_t position, std::size_t bytes, bool in_place) {
  if (in_place) {
    char* to = producer.reserve(bytes);
    if (to == nullptr) return 0;
    for (std::size_t i = 0; i < bytes; ++i) to[i] = byte_at(position + i);
    producer.commit(bytes);
    return bytes;
  }
  std::vector<char> memory(bytes);
  for (std::size_t i = 0; i < bytes; ++i) memory[i] = byte_at(position + i);
  const iovec parts[2] = {{memory.data(), bytes / 2}, {memory.data() + bytes / 2, bytes - bytes / 2}};
  const ssize_t n = producer.write(parts, 2);
  EXPECT_GE(n, 0);
  return static_cast<std::size_t>(n);
}

// Takes up to `bytes` and checks them. *may_wait: the producer's flag has to be looked at.
std::size_t take(RingConsumer& consumer, std::uint64_t position, std::size_t bytes, bool in_place, bool* may_wait) {
  if (in_place) {
    std::size_t there;
    const char* from = consumer.peek(&there);
    there = std::min(there, bytes);
    for (std::size_t i = 0; i < there; ++i) EXPECT_EQ(from[i], byte_at(position + i));
    *may_wait = there > 0 && consumer.consume(there);
    return there;
  }
  std::vector<char> memory(bytes);
  const iovec part{memory.data(), bytes};
  const ssize_t n = consumer.read(&part, 1);
  EXPECT_GE(n, 0);
  for (ssize_t i = 0; i < n; ++i)
    EXPECT_EQ(memory[static_cast<std::size_t>(i)], byte_at(position + static_cast<std::uint64_t>(i)));
  *may_wait = n > 0;
  return static_cast<std::size_t>(n);
}

TEST(Ring, BothWaysCarryEveryByteOnceAndInOrder) {
  Ring ring;
  std::mt19937 random(3);
  std::uint64_t in = 0, out = 0;
  for (int i = 0; i < 200'000 && !::testing::Test::HasFailure(); ++i) {
    bool may_wait;
    if (random() % 2 == 0)
      in += put(ring.producer, in, 1 + random() % 700, random() % 2 == 0);
    else
      out += take(ring.consumer, out, 1 + random() % 700, random() % 2 == 0, &may_wait);
    ASSERT_LE(in - out, kBytes);
    ASSERT_EQ(ring.consumer.readable(), in != out);
  }
  EXPECT_GT(out, 1u << 20);
}

TEST(Ring, RoomInOnePieceEndsAtTheEnd) {
  Ring ring;
  bool may_wait;
  ASSERT_EQ(put(ring.producer, 0, kBytes - 100, true), kBytes - 100);
  ASSERT_EQ(take(ring.consumer, 0, kBytes, true, &may_wait), kBytes - 100);
  EXPECT_EQ(ring.producer.reserve(101), nullptr) << "it would lie beyond the end";
  EXPECT_NE(ring.producer.reserve(100), nullptr);
  ASSERT_EQ(put(ring.producer, kBytes - 100, 300, false), 300u);
  std::size_t there;
  ring.consumer.peek(&there);
  EXPECT_EQ(there, 100u) << "the rest lies at the beginning";
}

// Whatever a peer writes into the counts, memory outside of the ring stays as it is, and its end is told.
TEST(Ring, ImpossibleCountsDoNoHarm) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 20'000; ++i) {
    Ring ring;
    bool may_wait;
    const std::size_t before = random() % kBytes;
    put(ring.producer, 0, before, false);
    take(ring.consumer, 0, random() % (kBytes + 1), true, &may_wait);
    const std::uint64_t lie = random() % 2 == 0 ? random() : before + kBytes + 1 + random() % 3;
    ring.control.consumed.store(lie);
    for (int k = 0; k < 4; ++k) {
      const std::size_t wanted = 1 + random() % kBytes;
      char* to = ring.producer.reserve(wanted);
      ASSERT_TRUE(to == nullptr || ring.is_inside(to, wanted));
      if (to != nullptr) ring.producer.commit(wanted);
      (void)ring.producer.has_room();
    }
    if (before - lie > kBytes && ring.producer.has_room()) {
      std::vector<char> more(2 * kBytes);
      const iovec part{more.data(), more.size()};
      EXPECT_EQ(ring.producer.write(&part, 1), -1);
    }
  }
  for (int i = 0; i < 20'000; ++i) {
    Ring ring;
    const std::uint64_t lie = random() % 2 == 0 ? random() : kBytes + 1 + random() % 3;
    ring.control.produced.store(lie);
    std::size_t there;
    const char* from = ring.consumer.peek(&there);
    ASSERT_TRUE(ring.is_inside(from, there));
    if (lie <= kBytes) continue;
    EXPECT_EQ(there, 0u);
    EXPECT_TRUE(ring.consumer.readable()) << "so that somebody asks";
    char byte;
    const iovec part{&byte, 1};
    EXPECT_EQ(ring.consumer.read(&part, 1), -1);
  }
}

// A producer that waits has found the ring full: the consumer looks at its flag before the second half is gone.
TEST(Ring, ConsumerLooksForAProducerThatWaits) {
  for (std::size_t step : {1u, 100u, 2048u, 4096u}) {
    Ring ring;
    bool may_wait = false;
    ASSERT_EQ(put(ring.producer, 0, kBytes, false), kBytes);
    ASSERT_FALSE(ring.producer.has_room());
    take(ring.consumer, 0, step, true, &may_wait);
    EXPECT_TRUE(may_wait) << step;
  }
  // What it has seen of the ring is old: it looks all the same.
  Ring ring;
  ASSERT_EQ(put(ring.producer, 0, 10, false), 10u);
  std::size_t there;
  ring.consumer.peek(&there);
  ASSERT_EQ(there, 10u);
  ASSERT_EQ(put(ring.producer, 10, kBytes - 10, false), kBytes - 10);
  ring.consumer.consume(5);
  EXPECT_TRUE(ring.consumer.consume(5));
}

// Two threads, each of which sleeps when it finds nothing to do. A wake-up that is lost ends the test.
class Sleeper {
 public:
  Sleeper() { ::sem_init(&semaphore_, 0, 0); }
  ~Sleeper() { ::sem_destroy(&semaphore_); }
  // As ShmStream rings.
  void ring_if(std::atomic<std::uint32_t>& flag) {
    if (flag.load(std::memory_order_seq_cst) == 0) return;
    flag.store(0, std::memory_order_relaxed);
    ::sem_post(&semaphore_);
  }
  bool sleep() {
    timespec end{};
    ::clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 20;
    int rc;
    while ((rc = ::sem_timedwait(&semaphore_, &end)) != 0 && errno == EINTR) continue;
    return rc == 0;
  }

 private:
  sem_t semaphore_;
};

void run_threads(bool in_place, std::size_t most) {
  constexpr std::uint64_t kAll = 3 << 20;
  Ring ring;
  Sleeper room, data;
  std::atomic<bool> lost{false};
  std::thread writer([&] {
    std::mt19937 random(7);
    for (std::uint64_t in = 0; in < kAll && !lost;) {
      const std::size_t n = put(ring.producer, in, std::min<std::uint64_t>(1 + random() % most, kAll - in),
                                in_place && random() % 4 != 0);
      in += n;
      if (n > 0) {
        data.ring_if(ring.control.consumer_sleeps);
      } else if (!ring.producer.has_room()) {
        ring.control.producer_waits.store(1, std::memory_order_seq_cst);
        if (!ring.producer.has_room() && !room.sleep()) lost = true;
        ring.control.producer_waits.store(0, std::memory_order_relaxed);
      }
    }
  });
  std::mt19937 random(9);
  for (std::uint64_t out = 0; out < kAll && !lost && !::testing::Test::HasFailure();) {
    bool may_wait = false;
    const std::size_t n = take(ring.consumer, out, 1 + random() % most, in_place && random() % 4 != 0, &may_wait);
    out += n;
    if (may_wait) room.ring_if(ring.control.producer_waits);
    if (n > 0) continue;
    ring.control.consumer_sleeps.store(1, std::memory_order_seq_cst);
    if (!ring.consumer.readable() && !data.sleep()) lost = true;
    ring.control.consumer_sleeps.store(0, std::memory_order_relaxed);
  }
  writer.join();
  EXPECT_FALSE(lost) << "a wake-up";
}

TEST(Ring, SleepersAreWokenByBytesInPlace) { run_threads(true, 600); }
TEST(Ring, SleepersAreWokenByBytesInPlaceOneByOne) { run_threads(true, 16); }
TEST(Ring, SleepersAreWokenByCopies) { run_threads(false, 3000); }

}  // namespace
}  // namespace shadowib::ib2tcp
