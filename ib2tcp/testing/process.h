// Several "processes" of ib2tcp inside one test program: each Process loads a private copy of the backend library
// with its own state, a fake shim behind it and, if wanted, a helper thread. They meet in an exchange in memory.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shadowib/abi/backend.h"

namespace shadowib::ib2tcp::testing {

// Every transport between two processes, as SHADOWIB_IB2TCP_TRANSPORT names it; and as a part of a test's name.
inline const std::string kTransports[] = {"shm", "tcp", "ofi:tcp", "ofi:tcp;ofi_rxm"};
std::string name_in_test(const std::string& transport);

// A TCP socket that listens on a free port of 127.0.0.1, given back in host byte order. The caller closes it.
int listen_on_loopback(std::uint16_t* port);

// The shim's log of border requests, by the number of the queue pair. A copy is what an image holds: entries do not
// change any more.
struct FakeLog {
  std::map<std::uint32_t, std::vector<std::shared_ptr<char[]>>> entries;
  std::size_t bytes = 0, limit = std::size_t{1} << 30;
};

struct FakeExchange {
  std::mutex mutex;
  std::map<std::string, std::string> values;
};

struct ProcessOptions {
  std::string transport = "auto";
  bool helper = true;
  std::uint8_t key_byte = 7;  // processes with different keys belong to different jobs
  std::map<std::string, std::string> config;
  bool traces = true;                                                                           // HostServices::trace
  BorderLogEntry* (*log_add)(ibv_qp* qp, std::uint32_t number, std::uint32_t bytes) = nullptr;  // else FakeLog has it
};

class Process {
 public:
  Process(std::shared_ptr<FakeExchange> exchange, const ProcessOptions& options);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  const BackendOps& ops() const { return ops_; }
  int last_errno() const { return errno_; }
  int entry_result() const { return entry_result_; }

  // As SIGKILL would: descriptors close, nothing is called any more.
  void kill();
  void stop_helper();
  void start_helper();

  struct State;

 private:
  friend struct State;
  void* library_ = nullptr;
  int slot_ = -1;
  HostServices services_{};
  BackendOps ops_{};
  int entry_result_ = 0;
  int errno_ = 0;
  bool dead_ = false;
  std::atomic<bool> stop_{false};
  std::thread helper_;

 public:  // for the fake shim's functions
  std::shared_ptr<FakeExchange> exchange_;
  ProcessOptions options_;
  std::mutex mutex_;
  std::set<int> descriptors_;
  std::atomic<long> mapped_bytes_{0};
  std::string log_;
  // Its claims and look-ups fail, a look-up after some time. Look-ups are counted.
  std::atomic<bool> exchange_broken_{false};
  std::atomic<int> exchange_takes_ms_{0}, lookups_{0};
  std::atomic<bool> descriptors_short_{false};
  FakeLog fake_log_;  // under log_mutex_
  std::mutex log_mutex_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> wanted_clcs_;  // HostServices::needs_clc, under mutex_
  std::vector<BorderEvent> traced_;                                   // HostServices::trace, likewise; no vectors
  // HostServices::cluster_lost: what the agent answers, and how often each has been asked about.
  std::atomic<bool> others_fail_{false};
  std::map<std::uint32_t, int> lost_clusters_;  // under mutex_
  // HostServices::gate_moved, by cluster, under mutex_.
  struct GateMoves {
    std::uint64_t earliest = kGateNothing, awaits = kGateNothing;
  };
  std::map<std::uint32_t, GateMoves> gates_;
  std::atomic<std::uint32_t> unanswered_{0};  // a bit for each
  void set_errno(int value) { errno_ = value; }
  std::string log() {
    std::lock_guard<std::mutex> guard(mutex_);
    return log_;
  }
};

}  // namespace shadowib::ib2tcp::testing
