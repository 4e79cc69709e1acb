// Two processes in clusters of their own, connected, and each of them may go back to a saved state.
#pragma once

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>

#include "ib2tcp/testing/going_back.h"

namespace shadowib::ib2tcp::testing {

// Places in the memory of each.
inline constexpr std::size_t kNumbers = 0, kReceived = 64 << 10, kCounter = 128 << 10, kResults = 129 << 10,
                             kBlock = 256 << 10, kBlockBytes = 64 << 10;

// A of cluster 0 sends to B of cluster 1, which has receives for as much as it likes.
class TwoClusters : public ::testing::TestWithParam<std::string> {
 protected:
  TwoClusters() : TwoClusters(std::size_t{1} << 30, 7) {}
  TwoClusters(std::size_t log_limit, std::uint8_t rnr_retry, bool b_sends = true, int completions = 1024)
      : exchange_(std::make_shared<FakeExchange>()) {
    for (unsigned i : {0, 1}) {
      ClusterState state = state_of(i, 1);
      state.depends[1 - i] = 1000;  // nothing is held: that is another test's
      sides_[i] = std::make_unique<Side>(exchange_, GetParam(), state, log_limit, completions);
      sides_[i]->rnr_retry = rnr_retry;
      sides_[i]->sends = i == 0 || b_sends;
    }
    a().connect_to(b().lid(), b().qp_num());
    b().connect_to(a().lid(), a().qp_num());
  }
  Side& a() { return *sides_[0]; }
  Side& b() { return *sides_[1]; }

  // The number `next_number_` to the place of that number.
  void send() {
    const std::uint64_t number = next_number_++;
    std::memcpy(a().at(kNumbers + 8 * (number % 1024)), &number, 8);
    a().post_send(number, IBV_WR_SEND, kNumbers + 8 * (number % 1024), 8);
  }
  void post_receive(std::uint64_t number) { b().post_receive(number, kReceived + 8 * (number % 1024), 8); }
  void expect_received(std::uint64_t number) {
    const ibv_wc wc = b().wait();
    ASSERT_EQ(describe(wc), describe(number, IBV_WC_SUCCESS));
    ASSERT_EQ(b().number_at(kReceived + 8 * (number % 1024)), number);
  }
  void expect_sent(std::uint64_t number) { ASSERT_EQ(describe(a().wait()), describe(number, IBV_WC_SUCCESS)); }

  // Cluster `index` goes back alone, if `other_lives`; the other one hears of it.
  void go_back(unsigned index, const Image& image, bool other_lives = true) {
    sides_[index]->end();
    ++incarnations_[index];
    if (other_lives) {
      Side& other = *sides_[1 - index];
      EXPECT_EQ(other.ops().cluster_gone(index, incarnations_[index] - 1), 0);
    }
    sides_[index]->restart(image, incarnations_);
    if (!other_lives) return;
    Side& other = *sides_[1 - index];
    std::copy(std::begin(incarnations_), std::end(incarnations_), other.member().state.incarnations);
    other.member().tell();
  }

  std::shared_ptr<FakeExchange> exchange_;
  std::unique_ptr<Side> sides_[2];
  std::uint32_t incarnations_[kMaxBackendClusters] = {};
  std::uint64_t next_number_ = 0, received_ = 0;
};

}  // namespace shadowib::ib2tcp::testing
