// Keys that peers have made since a restart, as the exchange has them.
#include "shadowib/cr/peers.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "hooks/job/current_job.h"
#include "shadowib/cr/published_ids.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/objects/registry.h"

namespace shadowib {

// Beside what is tested.
BackendOps g_backend{};
bool goes_back() { return false; }
Registry& registry() { std::abort(); }

namespace {

// A queue pair to a member that has made keys since the restart.
class LateKeys : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/shadowib-peers-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
    ASSERT_TRUE(Exchange::open("dir:" + directory_ + "/x", true, &exchange_).ok());
    g_job.exchange = exchange_.get();
    g_job.info.generation = 1;
    std::strcpy(g_job.info.epoch, "g1-test");
    qp_.remote_keys = std::make_shared<RemoteKeys>();
    qp_.remote_keys->member = 3;
    qp_.remote_keys->pd = 5;
    qp_.remote_keys->keys.insert({0x1100}, {0x2200});
    qp_.remote_keys->windows.insert({0x33}, {0x44});
  }
  void TearDown() override {
    g_job.exchange = nullptr;
    exchange_.reset();
    std::filesystem::remove_all(directory_);
  }
  void publish(const char* kind, std::uint32_t id, std::uint32_t real) {
    const std::string_view value(reinterpret_cast<const char*>(&real), sizeof(real));
    ASSERT_TRUE(exchange_->publish(late_key(kind, 3, 5, id), value).ok());
  }
  std::uint32_t resolve(std::uint32_t key) { return resolve_remote_key(qp_, {key}).value; }

  std::string directory_;
  std::unique_ptr<Exchange> exchange_;
  ShadowQp qp_;
};

TEST_F(LateKeys, AreAskedForOnce) {
  publish("mr", kLateKeys | 0x600, 0x700);
  publish("mw", window_block(kLateKeys | 0x800), window_block(0x900));
  EXPECT_EQ(resolve(kLateKeys | 0x600), 0x700u);
  EXPECT_EQ(resolve(kLateKeys | 0x8ab), 0x9abu) << "of a window, with the part of its bind";
  const std::uint64_t before = exchange_->operations();
  EXPECT_EQ(resolve(kLateKeys | 0x600), 0x700u);
  EXPECT_EQ(resolve(kLateKeys | 0x8ab), 0x9abu);
  EXPECT_EQ(exchange_->operations(), before);
}

TEST_F(LateKeys, ThatNobodyHasMadeAreNobodys) { EXPECT_EQ(resolve(kLateKeys | 0x600), kNobodyKey); }

// A key made after the restart is the real one, or a late one.
TEST_F(LateKeys, OthersAreNotAskedFor) {
  const std::uint64_t before = exchange_->operations();
  EXPECT_EQ(resolve(0x1100), 0x2200u);
  EXPECT_EQ(resolve(0x33ab), 0x44abu);
  EXPECT_EQ(resolve(0x5500), 0x5500u);
  EXPECT_EQ(exchange_->operations(), before);
}

}  // namespace
}  // namespace shadowib
