// Keys that peers have made since a restart, as the exchange has them.
#include "shadowib/cr/peers.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "hooks/job/current_job.h"
#include "shadowib/cr/published_ids.h"
#include "shadowib/cr/tests/member_fixture.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/objects/registry.h"

namespace shadowib {

// Beside what is tested.
BackendOps g_backend{};
bool goes_back() { return false; }
Registry& registry() {
  static Registry& made = *new Registry;
  return made;
}

namespace {

// A queue pair to a member that has made keys since the restart.
class LateKeys : public MemberTest {
 protected:
  void SetUp() override {
    MemberTest::SetUp();
    qp_.remote_keys = std::make_shared<RemoteKeys>();
    qp_.remote_keys->member = 3;
    qp_.remote_keys->pd = 5;
    qp_.remote_keys->keys.insert({0x1100}, {0x2200});
    qp_.remote_keys->windows.insert({0x33}, {0x44});
  }
  void publish(const char* kind, std::uint32_t id, std::uint32_t real) {
    const std::string_view value(reinterpret_cast<const char*>(&real), sizeof(real));
    ASSERT_TRUE(exchange_->publish(late_key(kind, 3, 5, id), value).ok());
  }
  std::uint32_t resolve(std::uint32_t key) {
    RealKey real;
    EXPECT_EQ(resolve_remote_key(qp_, {key}, &real), 0);
    return real.value;
  }

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

// Answers from a map, and fails once when told to.
class FailingExchange final : public Exchange {
 public:
  bool fails_list = false, fails_lookup = false;
  std::string fails_key;  // part of a key whose look-up fails
  std::map<std::string, std::string> values;
  const std::string& uri() const override { return uri_; }

 private:
  static Status failed() { return Status(Code::kIo, ECONNRESET, "the exchange is gone"); }
  Status do_publish(std::string_view, std::string_view) override { return failed(); }
  Status do_lookup(const std::vector<std::string>& keys, std::vector<std::string>* out,
                   std::vector<bool>* found) override {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::string& key = keys[i];
      if (!fails_key.empty() && key.find(fails_key) != std::string::npos) return fails_key.clear(), failed();
      const auto it = values.find(key);
      (*found)[i] = it != values.end();
      if ((*found)[i]) (*out)[i] = it->second;
    }
    return {};
  }
  Status do_claim(std::string_view, std::string_view) override { return failed(); }
  Status do_remove(std::string_view) override { return failed(); }
  Status do_list(std::string_view prefix, std::vector<std::string>* names) override {
    if (fails_list) return fails_list = false, failed();
    for (const auto& [key, value] : values)
      if (key.rfind(std::string(prefix) + "/", 0) == 0) names->push_back(key.substr(prefix.size() + 1));
    return {};
  }
  Status do_barrier(std::string_view, std::string_view, int, int, std::string_view) override { return failed(); }
  Status do_entered(std::string_view, std::vector<std::string>*) override { return failed(); }
  Status do_watch(std::string_view, std::uint64_t*, int, int) override { return failed(); }
  std::string uri_ = "failing:";
};

// A member of two queue pairs, one made before the restart and one since, at an address that it publishes.
class UnansweredQuestions : public testing::Test {
 protected:
  static constexpr std::uint32_t kLid = 0x21, kRealLid = 0x31;
  void SetUp() override {
    g_job.exchange = &exchange_;
    g_job.info.generation = 1;
    std::strcpy(g_job.info.epoch, "g1-test");
    forget_peers();
    Directory directory;
    DirectoryPort port{};
    port.virtual_lid = kLid;
    port.real_lid = kRealLid;
    directory.ports.push_back(port);
    directory.qps.push_back({7, 1007, 5, 0});
    exchange_.values[address_key(VirtualLid{kLid}) + "/3"] = "";
    exchange_.values[job_key("rebuild/3")] = encode_directory(directory);
    const DirectoryNumber late{8, 1008, 5, 0};
    exchange_.values[late_number_key("qp", 3, 0, 8)] = {reinterpret_cast<const char*>(&late), sizeof(late)};
    ah_.real = &real_;
    ah_.remote.lid = {kLid};
    ah_.real_attr.dlid = kRealLid;
    ah_.ah.context = &context_->program();
  }
  void TearDown() override {
    g_job.exchange = nullptr;
    forget_peers();
  }
  int resolve(std::uint32_t number) {
    to_ = resolve_destination(ah_, {number});
    return to_.ah == nullptr ? EIO : 0;
  }

  FailingExchange exchange_;
  std::unique_ptr<ShadowContext> context_ = std::make_unique<ShadowContext>();
  ibv_ah real_{};
  ShadowAh ah_;
  RealDestination to_;
};

// Each adapter of a member numbers its queue pairs by itself.
TEST_F(UnansweredQuestions, NumbersAreOfTheAdapterAtTheAddress) {
  Directory directory;
  for (const std::uint32_t adapter : {0u, 1u}) {
    DirectoryPort port{};
    port.virtual_lid = kLid + adapter;
    port.real_lid = kRealLid + adapter;
    port.adapter = adapter;
    directory.ports.push_back(port);
    directory.qps.push_back({7, 1007 + adapter, 5, adapter});
    exchange_.values[address_key(VirtualLid{kLid + adapter}) + "/3"] = "";
    const DirectoryNumber late{8, 2008 + adapter, 5, adapter};
    exchange_.values[late_number_key("qp", 3, adapter, 8)] = {reinterpret_cast<const char*>(&late), sizeof(late)};
  }
  exchange_.values[job_key("rebuild/3")] = encode_directory(directory);
  for (const std::uint32_t adapter : {0u, 1u}) {
    ShadowAh handle;
    handle.real = &real_;
    handle.remote.lid = {kLid + adapter};
    handle.real_attr.dlid = static_cast<std::uint16_t>(kRealLid + adapter);
    handle.ah.context = &context_->program();
    EXPECT_EQ(resolve_destination(handle, {7}).number.value, 1007 + adapter);
    EXPECT_EQ(resolve_destination(handle, {8}).number.value, 2008 + adapter);
  }
}

TEST_F(UnansweredQuestions, AboutMembersRefuseARequest) {
  exchange_.fails_list = true;
  EXPECT_EQ(resolve(7), EIO);
  EXPECT_EQ(resolve(7), 0);
  EXPECT_EQ(to_.number.value, 1007u) << "as soon as the exchange answers";
}

TEST_F(UnansweredQuestions, AboutADirectoryRefuseARequest) {
  exchange_.fails_key = "rebuild/3";
  EXPECT_EQ(resolve(7), EIO);
  EXPECT_EQ(resolve(7), 0);
  EXPECT_EQ(to_.number.value, 1007u);
}

TEST_F(UnansweredQuestions, AboutALateNumberRefuseARequest) {
  exchange_.fails_key = "late/3/qp/0/8";
  EXPECT_EQ(resolve(8), EIO);
  EXPECT_EQ(resolve(8), 0);
  EXPECT_EQ(to_.number.value, 1008u);
}

TEST_F(UnansweredQuestions, AboutALateKeyRefuseARequest) {
  const std::uint32_t key = kLateKeys | 0x600, real_key = 0x700;
  exchange_.values[late_key("mr", 3, 5, key)] = {reinterpret_cast<const char*>(&real_key), sizeof(real_key)};
  ShadowQp qp;
  qp.remote_keys = std::make_shared<RemoteKeys>();
  qp.remote_keys->member = 3;
  qp.remote_keys->pd = 5;
  for (const char* kind : {"mw", "mr"}) {
    RealKey real;
    exchange_.fails_key = std::string("late/3/") + kind;
    EXPECT_EQ(resolve_remote_key(qp, {key}, &real), EIO) << kind;
  }
  RealKey real;
  EXPECT_EQ(resolve_remote_key(qp, {key}, &real), 0);
  EXPECT_EQ(real.value, real_key);
}

TEST_F(UnansweredQuestions, AboutMembersFailAConnection) {
  ShadowQp qp;
  qp.context = context_.get();
  ibv_qp_attr attr{};
  attr.dest_qp_num = 7;
  attr.ah_attr.dlid = kLid;
  exchange_.fails_list = true;
  EXPECT_EQ(turn_address(qp, &attr, IBV_QP_AV | IBV_QP_DEST_QPN).code(), Code::kIo);
  EXPECT_TRUE(turn_address(qp, &attr, IBV_QP_AV | IBV_QP_DEST_QPN).ok());
  EXPECT_EQ(attr.dest_qp_num, 1007u);
}

}  // namespace
}  // namespace shadowib
