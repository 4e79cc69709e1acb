#include "libraries/masterworker/worker_link.h"

#include <gtest/gtest.h>

#include <cerrno>
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

}  // namespace
}  // namespace shadowib::masterworker
