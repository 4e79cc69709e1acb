// Who drives the engine when: the program's own polls, or the helper thread the shim lends.
//
// Two drivers on one socket cost thirty times the latency of one, so a program that polls keeps the
// helper out: it naps and only looks whether there still are polls. The longer there have been some, the longer it
// naps: docs/internals/decisions/helper-naps.md. When there are no polls, or the program arms a completion
// queue (it is going to sleep), the helper takes over and sleeps in epoll until something arrives. A polling program
// that finds it there asks it out once.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "ib2tcp/engine.h"
#include "ib2tcp/link.h"

namespace shadowib::ib2tcp {
namespace {

constexpr std::int64_t kShortestNapNs = 50'000, kLongestNapNs = 8'000'000;
constexpr std::int64_t kLongNapNs = 1'000'000;  // also soon after polls began
constexpr std::int64_t kPartOfPolling = 8;      // a nap takes one such part of the time since then
// Empty polls since a queue was last armed, after which the helper is asked out; a program about to sleep polls only
// once or twice. Those that move something count, too: two programs that answer each other at once have few others.
constexpr std::uint32_t kPollsToYield = 16;
// While a queue is armed: in a row, without anything moved.
constexpr std::uint32_t kPollsToYieldIfArmed = 2000;

}  // namespace

bool Engine::poll_turn(bool armed) {
  std::uint32_t polls = polls_.load(std::memory_order_relaxed) + 1;
  polls_.store(polls, std::memory_order_relaxed);
  // With nothing posted by anybody a poll seldom has a reason to look.
  if (outstanding.load() == 0 && (polls & 15) != 0) return false;
  if (!lock.try_lock()) return false;
  std::uint32_t helper = helper_.load(std::memory_order_relaxed);
  // Nobody else would send the acknowledgements of what this turn executes while the helper sleeps.
  bool moved = turn(helper == kSleeping);
  empty_in_a_row_ = moved ? 0 : empty_in_a_row_ + 1;
  const bool polls_on = armed ? empty_in_a_row_ >= kPollsToYieldIfArmed
                              : polls - polls_at_arm_.load(std::memory_order_relaxed) >= kPollsToYield;
  if (polls_on && helper != kNapping && !yield_.load(std::memory_order_relaxed)) {
    yield_.store(true, std::memory_order_relaxed);
    std::uint32_t sleeping = kSleeping;
    if (helper_.compare_exchange_strong(sleeping, kAwake)) ring();
  }
  unlock_and_wake();
  return moved;
}

void Engine::unlock_and_wake() {
  bool wanted = helper_wanted_;
  lock.unlock();
  if (__builtin_expect(!wanted, 1)) return;
  std::uint32_t sleeping = kSleeping;
  if (helper_.load(std::memory_order_relaxed) == kSleeping && helper_.compare_exchange_strong(sleeping, kAwake))
    ring();
}

void Engine::about_to_sleep() {
  polls_at_arm_.store(polls_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  if (helper_.load() != kNapping) return;
  nap_word_.fetch_add(1);
  futex_wake(&nap_word_, 1);
}

void Engine::wake() {
  wake_.store(true);
  nap_word_.fetch_add(1);
  futex_wake(&nap_word_, 1);
  ring();
}

void Engine::ring() {
  std::uint64_t one = 1;
  [[maybe_unused]] auto n = ::write(bell_, &one, sizeof(one));
}

// Only who sleeps is rung for. A poll that looks at the same descriptors must not take the ring from a helper that
// has been woken and has not run yet: it would find nothing, sleep on, and count as awake.
void Engine::hear_bell() {
  if (!helper_looks_) return;
  std::uint64_t count;
  [[maybe_unused]] auto n = ::read(bell_, &count, sizeof(count));
}

void Engine::nap_while_polled() {
  std::uint32_t word = nap_word_.load();
  helper_.store(kNapping);
  std::int64_t slice = kShortestNapNs;
  for (const std::int64_t began = monotonic_ns(); !wake_.load();) {
    statistics.naps.fetch_add(1, std::memory_order_relaxed);
    std::uint32_t before = polls_.load(std::memory_order_relaxed);
    futex_wait(&nap_word_, word, slice);
    std::uint32_t after = polls_.load(std::memory_order_relaxed);
    if (nap_word_.load() != word || after == before) break;
    // Polls at the start of a long slice say nothing about now.
    futex_wait(&nap_word_, word, kShortestNapNs);
    if (nap_word_.load() != word || polls_.load(std::memory_order_relaxed) == after) break;
    slice = std::min({slice * 2, kLongestNapNs, std::max(kLongNapNs, (monotonic_ns() - began) / kPartOfPolling)});
  }
  helper_.store(kAwake);
  yield_.store(false);
}

void Engine::work_then_sleep(int timeout_ms) {
  for (int idle = 0; idle <= 3;) {
    if (wake_.load() || yield_.load(std::memory_order_relaxed)) return;
    lock.lock();
    idle = turn(idle == 3) ? 0 : idle + 1;
    lock.unlock();
    statistics.helper_turns.fetch_add(1, std::memory_order_relaxed);
  }
  lock.lock();
  turn(true);
  helper_wanted_ = false;
  bool sleep = !wake_.load() && !yield_.load() && prepare_sleep(&timeout_ms);
  if (sleep) helper_.store(kSleeping);
  lock.unlock();
  if (!sleep) return;
  epoll_event events[64];
  int n = wake_.load() ? 0 : ::epoll_wait(data_set_, events, 64, timeout_ms);
  lock.lock();
  helper_.store(kAwake);
  for (Link* link : connected_) link->wake_up();
  helper_looks_ = true;
  dispatch(events, n);
  helper_looks_ = false;
  unlock_and_wake();
}

int Engine::progress(int timeout_ms) {
  if (timeout_ms == 0) {
    lock.lock();
    turn(true);
    unlock_and_wake();
    return 0;
  }
  std::int64_t end = timeout_ms < 0 ? INT64_MAX : monotonic_ns() + std::int64_t{timeout_ms} * 1'000'000;
  helper_.store(kAwake);
  while (!wake_.load()) {
    if (yield_.load()) {
      nap_while_polled();
      continue;
    }
    std::int64_t left = timeout_ms < 0 ? -1 : end - monotonic_ns();
    if (timeout_ms >= 0 && left <= 0) break;
    work_then_sleep(timeout_ms < 0 ? -1 : static_cast<int>(left / 1'000'000 + 1));
  }
  wake_.store(false);
  helper_.store(kAway);
  return 0;
}

}  // namespace shadowib::ib2tcp
