// Questions to many hosts at the same time, each of which may take long.
#pragma once

#include <system_error>
#include <thread>
#include <vector>

namespace shadowib::cli {

// Calls ask(item) for each, in threads of their own. Returns when all have returned. Where a limit of processes
// allows no more threads, the rest is asked one after the other. `make` makes a thread, or throws std::system_error.
template <typename Item, typename Ask, typename Make>
void ask_at_once(const std::vector<Item>& items, const Ask& ask, const Make& make) {
  std::vector<std::thread> threads;
  threads.reserve(items.size());
  for (const Item& item : items) {
    const auto question = [&ask, &item] { ask(item); };
    try {
      threads.push_back(make(question));
    } catch (const std::system_error&) {
      question();
    }
  }
  for (std::thread& thread : threads) thread.join();
}

template <typename Item, typename Ask>
void ask_at_once(const std::vector<Item>& items, const Ask& ask) {
  ask_at_once(items, ask, [](const auto& question) { return std::thread(question); });
}

}  // namespace shadowib::cli
