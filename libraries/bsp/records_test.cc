// Streams of records, the queue of messages, and what bsprun tells a process.
#include "libraries/bsp/records.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "libraries/bsp/environment.h"
#include "libraries/bsp/inbox.h"
#include "libraries/bsp/outbox.h"
#include "libraries/bsp/word.h"

namespace shadowib::bsp {
namespace {

struct Filled {
  alignas(64) std::byte memory[kSlotBytes];
  Outbox box;
  Filled() { box.begin_in(memory, sizeof(memory)); }
};

std::vector<std::string> told(const Outbox& box) {
  std::vector<std::string> texts;
  for_each_record(box.data(), box.size(), [&texts](const Record& record, const std::byte* behind) {
    const auto* payload = reinterpret_cast<const char*>(behind);
    if (record.kind == RecordKind::kPut)
      texts.push_back("put " + std::to_string(record.slot) + "+" + std::to_string(record.offset) + " " +
                      std::string(payload, record.bytes));
    if (record.kind == RecordKind::kMessage)
      texts.push_back("message " + std::string(payload, record.slot) + " " +
                      std::string(payload + padded(record.slot), record.bytes));
    if (record.kind == RecordKind::kRegister)
      texts.push_back("register " + std::to_string(record.offset) + " " + std::to_string(record.bytes));
  });
  return texts;
}

TEST(Outbox, TellsWhatWasPutIn) {
  Filled filled;
  filled.box.put(3, 40, "abcde", 5);
  filled.box.message("tag", 3, "payload", 7);
  filled.box.message("", 0, "", 0);
  filled.box.registration(4096, 77, 5);
  filled.box.put(0, 0, "z", 1);
  EXPECT_EQ(told(filled.box), (std::vector<std::string>{"put 3+40 abcde", "message tag payload", "message  ",
                                                        "register 4096 77", "put 0+0 z"}));
  EXPECT_FALSE(filled.box.has_grown());
  filled.box.clear();
  EXPECT_EQ(told(filled.box), std::vector<std::string>{});
}

TEST(Outbox, GrowsAndKeepsWhatItHas) {
  Filled filled;
  std::vector<std::string> expected;
  for (int i = 0; i < 5000; ++i) {
    const std::string text(static_cast<std::size_t>(i % 41 + 1), static_cast<char>('a' + i % 26));
    filled.box.put(static_cast<std::uint32_t>(i), 0, text.data(), text.size());
    expected.push_back("put " + std::to_string(i) + "+0 " + text);
  }
  EXPECT_TRUE(filled.box.has_grown());
  EXPECT_EQ(told(filled.box), expected);
  const std::string large(1 << 20, 'x');
  filled.box.message("t", 1, large.data(), large.size());
  EXPECT_EQ(told(filled.box).back().size(), large.size() + std::strlen("message t "));
}

TEST(Inbox, CountsWhatIsLeft) {
  Inbox inbox;
  inbox.begin(4);
  EXPECT_EQ(inbox.first(), nullptr);
  const std::byte bytes[8] = {};
  inbox.add({bytes, bytes + 4, 3});
  inbox.add({bytes, bytes + 4, 4});
  EXPECT_EQ(inbox.count(), 2u);
  EXPECT_EQ(inbox.bytes(), 7u);
  EXPECT_EQ(inbox.first()->bytes, 3u);
  inbox.remove_first();
  EXPECT_EQ(inbox.count(), 1u);
  EXPECT_EQ(inbox.bytes(), 4u);
  inbox.begin(0);  // messages that were not moved are gone
  EXPECT_EQ(inbox.count(), 0u);
  EXPECT_EQ(inbox.bytes(), 0u);
}

TEST(Environment, WithoutBsprunThereIsOneProcess) {
  ::unsetenv("SHADOWIB_BSP_PROCESSES");
  const Environment alone = read_environment();
  EXPECT_FALSE(alone.is_started);
  EXPECT_EQ(alone.processes, 1);
}

TEST(Environment, IsWhatBsprunHasSet) {
  ::setenv("SHADOWIB_BSP_PROCESSES", "4", 1);
  ::setenv("SHADOWIB_BSP_PROCESS", "3", 1);
  ::setenv("SHADOWIB_BSP_HERE", "2", 1);
  ::setenv("SHADOWIB_BSP_EPOCH", "ff00", 1);
  ::setenv("SHADOWIB_BSP_INTERVAL", "0.5", 1);
  const Environment environment = read_environment();
  EXPECT_EQ(environment.process, 3);
  EXPECT_EQ(environment.processes, 4);
  EXPECT_EQ(environment.here, 2);
  EXPECT_EQ(environment.epoch, 0xff00u);
  EXPECT_EQ(environment.interval_s, 0.5);
  ::setenv("SHADOWIB_BSP_PROCESS", "4", 1);
  EXPECT_EXIT(read_environment(), testing::ExitedWithCode(124), "SHADOWIB_BSP_PROCESS=4 is no number from 0 to 3");
  ::setenv("SHADOWIB_BSP_PROCESS", "0", 1);
  ::setenv("SHADOWIB_BSP_EPOCH", "no", 1);
  EXPECT_EXIT(read_environment(), testing::ExitedWithCode(124), "SHADOWIB_BSP_EPOCH");
  for (const char* name : {"PROCESSES", "PROCESS", "HERE", "EPOCH", "INTERVAL"})
    ::unsetenv((std::string("SHADOWIB_BSP_") + name).c_str());
}

TEST(Spins, NoneWithMoreProcessesThanProcessors) {
  EXPECT_GT(spins_for(2, 2), 0);
  EXPECT_EQ(spins_for(3, 2), 0);
}

}  // namespace
}  // namespace shadowib::bsp
