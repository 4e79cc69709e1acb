// Stands between a member and a Redis server on the loopback, and can be cut.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace shadowib {

class Relay {
 public:
  // Fails the test if it cannot listen.
  explicit Relay(std::uint16_t to);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // redis://127.0.0.1:PORT/0/test
  std::string uri() const;
  // Connections end, and each new one does at once.
  void cut();
  void mend();
  // New ones that have ended so.
  int refused() const { return refused_.load(); }
  // The next request that has this text is not passed on, and its connection ends.
  void drop_request(const char* with) { drops_ = with; }
  // It has.
  bool dropped() const { return dropped_; }

 private:
  void run();
  void wake() const;
  void accept_one();
  void end_all();
  bool pass_on(int from, int to, bool asks);

  const std::uint16_t to_;
  std::uint16_t port_ = 0;
  int listener_ = -1, wake_ = -1;
  std::vector<std::pair<int, int>> pairs_;  // of the thread
  std::atomic<bool> cut_{false}, dropped_{false}, ends_{false};
  std::atomic<const char*> drops_{nullptr};
  std::atomic<int> refused_{0};
  std::thread thread_;
};

}  // namespace shadowib
