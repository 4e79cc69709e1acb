// A process of a cluster in a test, with its device: what it is told of the clusters, and what it asks for.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ib2tcp/testing/endpoint.h"
#include "ib2tcp/testing/process.h"

namespace shadowib::ib2tcp::testing {

class Member {
 public:
  // `identity`, if not empty: of its earlier life. Its border is frozen then.
  Member(const std::shared_ptr<FakeExchange>& exchange, const std::string& transport, const ClusterState& its_state,
         const std::string& identity = {}, const FakeLog& log = {})
      : state(its_state), process(exchange, options(transport)) {
    process.fake_log_ = log;
    tell();
    if (!identity.empty()) {
      freeze(true);
      EXPECT_EQ(process.ops().restore_identity(identity.data(), identity.size()), 0);
    }
    device = std::make_unique<Device>(process);
  }

  void tell() { EXPECT_EQ(process.ops().set_cluster(&state), 0); }
  // Its cluster's CLC of that number has committed, and messages up to `depends` of another one may be delivered.
  void commit(std::uint32_t sn, unsigned other, std::uint32_t depends) {
    state.sn = sn;
    state.depends[other] = depends;
    tell();
  }
  void freeze(bool frozen) { process.ops().freeze_border(frozen ? kBorderFrozen : kBorderOpen); }
  std::vector<HeldStamp> held() {
    std::vector<HeldStamp> stamps(8);
    stamps.resize(process.ops().held_stamps(stamps.data(), stamps.size()));
    return stamps;
  }
  bool wants_clc(std::uint32_t cluster, std::uint32_t sn) {
    std::lock_guard<std::mutex> guard(process.mutex_);
    return std::find(process.wanted_clcs_.begin(), process.wanted_clcs_.end(), std::pair{cluster, sn}) !=
           process.wanted_clcs_.end();
  }
  BorderFacts facts() {
    BorderFacts facts{};
    process.ops().border_facts(&facts);
    return facts;
  }
  std::vector<BorderEvent> traced() {
    std::lock_guard<std::mutex> guard(process.mutex_);
    return process.traced_;
  }
  // One of the numbers in `shadowib status`.
  long figure(const std::string& name) {
    char text[2048] = {};
    process.ops().describe(text, sizeof(text));
    const std::string all = text;
    const std::size_t at = all.find("\"" + name + "\": ");
    return at == std::string::npos ? -1 : std::atol(all.c_str() + at + name.size() + 4);
  }

  ClusterState state;
  Process process;
  std::unique_ptr<Device> device;

 private:
  static ProcessOptions options(const std::string& transport) {
    ProcessOptions made;
    made.transport = transport;
    return made;
  }
};

inline ClusterState state_of(unsigned index, std::uint32_t sn) {
  ClusterState state{};
  state.index = index;
  state.sn = sn;
  return state;
}

// True once `condition` is; false after a time that only tells a hang.
inline bool eventually(const std::function<bool()>& condition, int timeout_ms = 60000) {
  for (int waited = 0; waited < timeout_ms; ++waited) {
    if (condition()) return true;
    ::usleep(1000);
  }
  return condition();
}

}  // namespace shadowib::ib2tcp::testing
