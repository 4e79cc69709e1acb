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
  // The connections that there are end; new ones do not.
  void drop();

 private:
  void run();
  void wake() const;
  void accept_one();
  void end_all();

  const std::uint16_t to_;
  std::uint16_t port_ = 0;
  int listener_ = -1, wake_ = -1;
  std::vector<std::pair<int, int>> pairs_;  // of the thread
  std::atomic<bool> cut_{false}, drops_{false}, ends_{false};
  std::atomic<int> refused_{0};
  std::thread thread_;
};

}  // namespace shadowib
