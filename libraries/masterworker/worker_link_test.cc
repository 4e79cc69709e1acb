#include "libraries/masterworker/worker_link.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "libraries/masterworker/tests/wires.h"

// The job's exchange: nobody shows anything.
extern "C" int shadowib_lookup(const char*, void*, size_t, int) { return -ENOENT; }

namespace shadowib::masterworker {
namespace {

class WiredWorker : public ::testing::Test {
 protected:
  void SetUp() override {
    wires.reset();
    facts.token = 17;
    facts.elsewhere = true;
  }
  // Each hello is answered so, by its number from 1. kNone: not at all.
  static constexpr Answer kNone{};
  void answer(std::function<Answer(int)> answers) {
    wires.on_hello = [this, answers](const Hello& hello) {
      if (++hellos == 30) throw std::runtime_error("the worker asks for ever");
      Welcome welcome;
      welcome.token = hello.token;
      welcome.answer = answers(hellos);
      if (welcome.answer != kNone) deaf = !wires.welcome(welcome);
    };
  }
  Wires& wires = Wires::get();
  BirthFacts facts;
  int hellos = 0;
  bool deaf = false;
};

// A guest that was a stranger four times, as while its master was being restarted, heard no answer any more.
TEST_F(WiredWorker, HearsTheWelcomeBehindManyRefusals) {
  constexpr int kRefusals = 8;
  answer([](int hello) { return hello <= kRefusals ? Answer::kStranger : Answer::kWelcome; });
  const WorkerLink link(facts);
  EXPECT_EQ(hellos, kRefusals + 1);
  EXPECT_FALSE(deaf);
  EXPECT_EQ(wires.posted(2).size(), 1u) << "it says that it is ready";
}

// It waited for its welcome through SIGTERM, until somebody killed it.
TEST_F(WiredWorker, LeavesWhileItWaitsForItsWelcome) {
  volatile bool leave = false;
  answer([&leave](int hello) {
    leave = hello == 2;
    return kNone;
  });
  EXPECT_EXIT(WorkerLink(facts, &leave), ::testing::ExitedWithCode(0), "");
}

// It ended without a word, and its master, which had made it, waited for it for a minute before it made another one.
TEST_F(WiredWorker, AForkThatIsToldToLeaveJoinsFirst) {
  facts.elsewhere = false;
  facts.master_pid = ::getpid();
  volatile bool leave = true;
  answer([](int hello) { return hello == 3 ? Answer::kWelcome : kNone; });
  const WorkerLink link(facts, &leave);
  EXPECT_EQ(hellos, 3);
  EXPECT_EQ(wires.posted(2).size(), 1u) << "it says that it is ready";
}

TEST_F(WiredWorker, AForkThatIsToldToLeaveIsNotHeldUp) {
  facts.elsewhere = false;
  facts.master_pid = ::getpid();
  volatile bool leave = true;
  answer([](int) { return kNone; });
  EXPECT_EXIT(WorkerLink(facts, &leave), ::testing::ExitedWithCode(0), "");
}

// It asked again for ever.
TEST_F(WiredWorker, EndsWhenThereIsNoRoomForIt) {
  answer([](int) { return Answer::kNoRoom; });
  EXPECT_EXIT(WorkerLink{facts}, ::testing::ExitedWithCode(1), "no room for another worker");
}

// Its master was gone, and could not read its large result any more: it never left.
TEST_F(WiredWorker, LeavesAMasterThatIsGone) {
  answer([](int) { return Answer::kWelcome; });
  WorkerLink link(facts);
  constexpr std::uint32_t kConnection = 2;
  link.send_result(1, Payload::allocate(2 * kSlotBytes));
  wires.complete(kConnection);  // ready
  wires.complete(kConnection);  // the result's header: a message of the master that dies behind it
  wires.dead = kConnection;
  link.send_leave(true, -1);
  EXPECT_TRUE(wires.posted(kConnection).empty());
}

// A master that lives may take its time.
TEST_F(WiredWorker, WaitsUntilItsResultIsRead) {
  answer([](int) { return Answer::kWelcome; });
  WorkerLink link(facts);
  constexpr std::uint32_t kConnection = 2;
  link.send_result(1, Payload::allocate(2 * kSlotBytes));
  wires.complete(kConnection);
  Header result;
  std::memcpy(&result, wires.complete(kConnection).bytes.data(), sizeof(result));
  int signs = 0;
  wires.on_send = [&](std::uint32_t queue_pair) {
    const bool is_sign = wires.posted(queue_pair).back().bytes.empty();
    wires.complete(queue_pair);
    if (!is_sign || ++signs != 3) return;
    Header release;
    release.kind = Kind::kRelease;
    release.number = result.buffer;
    wires.message(queue_pair, release);
  };
  link.send_leave(true, -1);
  EXPECT_EQ(signs, 3);
}

// A task's input lies in the slot that it came in. The slot may be used again when the task is done.
TEST_F(WiredWorker, ATasksInputStaysUntilTheNextMessage) {
  answer([](int) { return Answer::kWelcome; });
  WorkerLink link(facts);
  Header header;
  header.kind = Kind::kTask;
  header.input_bytes = sizeof(header.number);
  std::uint64_t sent = 0;
  const auto all_that_may_come = [&] {
    while (!wires.shared_.empty()) {
      header.number = ++sent;
      wires.message(2, header, {reinterpret_cast<const char*>(&sent), sizeof(sent)});
    }
  };
  for (std::uint64_t task = 1; task <= 1000; ++task) {
    all_that_may_come();
    Message message;
    ASSERT_TRUE(link.next(&message, nullptr));
    all_that_may_come();
    EXPECT_EQ(message.header.number, task);
    ASSERT_EQ(std::memcmp(message.task, &task, sizeof(task)), 0) << task;
  }
}

// Each message asked for a completion: one more for each end to take.
TEST_F(WiredWorker, AsksForFewCompletions) {
  answer([](int) { return Answer::kWelcome; });
  WorkerLink link(facts);
  wires.complete(2);  // ready
  int asked = 0;
  for (std::uint64_t i = 1; i <= 800; ++i) {
    link.send_result(i, Payload::allocate(64));
    if (const Posted result = wires.complete(2); (result.flags & IBV_SEND_SIGNALED) != 0) ++asked;
  }
  EXPECT_EQ(asked, 100);
}

TEST_F(WiredWorker, WorksWhereTheDeviceTakesNothingInline) {
  wires.most_inline = 0;
  answer([](int) { return Answer::kWelcome; });
  WorkerLink link(facts);
  wires.complete(2);
  for (std::uint64_t i = 1; i <= 100; ++i) {
    link.send_result(i, Payload::allocate(64));
    EXPECT_EQ(wires.complete(2).flags, IBV_SEND_SIGNALED);
  }
}

}  // namespace
}  // namespace shadowib::masterworker
