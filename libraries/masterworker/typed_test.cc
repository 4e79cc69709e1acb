// The typed interface over a master, whose workers run in this process: a worker has one task at a time, and leaves
// behind the end of its farm.
#include <gtest/gtest.h>
#include <shadowib/masterworker.h>

#include <climits>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "libraries/masterworker/master.h"
#include "libraries/masterworker/runtime.h"

namespace shadowib::masterworker {
namespace {

class FarmInside : public Runtime, public Courier {
 public:
  static inline bool answering = true;  // else workers are stuck in their tasks
  static inline bool master = true;     // else this process is a worker
  static inline int given = 0;          // tasks that it gets before the farm's end

  void run(Callbacks callbacks) override {
    if (!master) {
      for (int input = 0; input < given; ++input) {
        std::string message = mw::detail::bytes_of(input);
        callbacks.work(message.data());
      }
      return;
    }
    raw_begin(std::move(callbacks));
    raw_end();
  }
  void raw_begin(Callbacks callbacks) override {
    callbacks_ = callbacks;
    master_.begin(std::move(callbacks));
    while (workers_.size() < 3) {
      workers_[++next_].phase = master_.phase();
      master_.joined(next_, master_.updates().count(), master_.phase());
    }
  }
  void submit(Payload input) override {
    master_.submit(std::move(input));
    drive([this] { return master_.all_handed_out(); });
  }
  bool wait_for_result() override {
    if (master_.unfinished() == 0) return false;
    const std::uint64_t before = master_.counts().checks;
    drive([&] { return master_.counts().checks != before; });
    return true;
  }
  void raw_end() override {
    drive([this] { return master_.done(); });
    master_.end();
    if (answering)
      while (turn()) {
      }
    for (const auto& [id, worker] : workers_) master_.gone(id, true);
    workers_.clear();
  }
  void finalize() override {}
  bool is_master() const override { return master; }
  int rank() const override { return 0; }
  int workers() const override { return 3; }
  int idle_workers() const override { return 0; }
  bool up_to_date() const override { return master_.up_to_date(); }
  Round round() const override { return master_.checked_round(); }
  void abort_tasks() override {}
  bool abort_pending() const override { return false; }
  void abandon() override { master_.abandon(); }
  Counts counts() const override { return master_.counts(); }

  void send_task(WorkerId to, const Handout& handout, std::uint64_t, const Payload& input) override {
    ASSERT_EQ(workers_[to].phase, master_.phase()) << "the worker computes for another farm";
    const Payload own = Payload::copy(input.data(), input.size());
    workers_[to].results.emplace_back(handout.id, callbacks_.work(own.data()));
  }
  void send_update(WorkerId, std::uint64_t, const Payload&, const Payload&) override {}
  void send_end(WorkerId, std::uint64_t) override {}
  void abort_all(WorkerId, std::uint64_t) override {}
  void abort_one(WorkerId, std::uint64_t) override {}
  bool answers(WorkerId) override { return true; }
  std::int64_t time_ns() override { return 1; }

 private:
  struct Worker {
    std::uint64_t phase = 0;
    std::deque<std::pair<std::uint64_t, Payload>> results;
  };
  // A worker's next result arrives.
  bool turn() {
    for (auto& [id, worker] : workers_) {
      if (worker.results.empty()) continue;
      master_.arrived(id, worker.results.front().first, worker.results.front().second);
      worker.results.pop_front();
      return true;
    }
    return false;
  }
  template <typename Ready>
  void drive(Ready ready) {
    while (!ready())
      if (!master_.step(1) && !ready() && !(answering && turn())) throw std::logic_error("the farm waits for ever");
  }

  Master master_{*this, 1};
  Callbacks callbacks_;
  std::map<WorkerId, Worker> workers_;
  WorkerId next_ = 0;
};

// What a program gets from a farm of twenty elements behind another one that has gone wrong.
void expect_a_good_farm() {
  std::vector<int> elements(20);
  for (int i = 0; i < 20; ++i) elements[static_cast<std::size_t>(i)] = 100 + i;
  int checks = 0;
  mw::for_each(
      elements, [](const int& element) { return element * 1000; },
      [&checks](const int& element, const int& output) {
        ++checks;
        EXPECT_GE(element, 100);
        EXPECT_EQ(output, element * 1000);
      });
  EXPECT_EQ(checks, 20);
}

int same(const int& element) { return element; }
const auto kSame = [](const int& element) { return same(element); };

TEST(Typed, AnExceptionOfCheckComesOutOfForEach) {
  const std::vector<int> elements(20, 1);
  int checks = 0;
  try {
    mw::for_each(elements, kSame, [&checks](const int&, const int&) {
      if (++checks == 5) throw std::runtime_error("check throws");
    });
    ADD_FAILURE() << "nothing came out";
  } catch (const std::runtime_error& thrown) {
    EXPECT_STREQ(thrown.what(), "check throws");
  }
  EXPECT_EQ(checks, 5) << "as out of a loop";
  expect_a_good_farm();
}

struct Application {
  std::string bad;
  int made = 0;
  std::optional<int> next(const int&) {
    if (bad == "next" && made == 7) throw 7;
    if (made == 10) return std::nullopt;
    return ++made;
  }
  int work(const int& input, const int&, mw::Task&) { return input; }
  mw::Action<int> check(const int&, const int&, const int&, const mw::Result&) {
    if (bad == "check") throw 7;
    return mw::update();
  }
  void update(int& sum, const int& input, const int&) {
    if (bad == "update") throw 7;
    sum += input;
  }
};

TEST(Typed, ExceptionsOfAllCallbacksComeOutOfRun) {
  for (const char* bad : {"next", "check", "update"}) {
    SCOPED_TRACE(bad);
    Application application{bad};
    int sum = 0;
    EXPECT_THROW(mw::run(application, sum), int);
    expect_a_good_farm();
  }
  Application good;
  int sum = 0;
  mw::run(good, sum);
  EXPECT_EQ(sum, 55);
}

TEST(Typed, AnExceptionOfCheckEndsItsSession) {
  int checks = 0;
  mw::Session session(kSame, [&checks](const int&, const int&) {
    if (++checks == 2) throw 7;
  });
  EXPECT_THROW(
      {
        for (int i = 0; i < 10; ++i) session.submit(i);
        session.finish();
      },
      int);
  EXPECT_EQ(checks, 2);
  EXPECT_THROW(session.submit(1), std::logic_error);
  EXPECT_FALSE(session.wait());
  session.finish();
  expect_a_good_farm();
}

TEST(Typed, ASessionThatAnExceptionLeavesWaitsForNothing) {
  int checks = 0;
  FarmInside::answering = false;
  EXPECT_THROW(
      {
        mw::Session session(kSame, [&checks](const int&, const int&) { ++checks; });
        for (int i = 0; i < 3; ++i) session.submit(i);
        throw 7;
      },
      int);
  FarmInside::answering = true;
  EXPECT_EQ(checks, 0);
  expect_a_good_farm();
}

// It ended with 0 and without a word, in every farm but the first.
TEST(TypedDeathTest, AGuestWithoutATaskSaysSo) {
  const auto run = [] {
    FarmInside::master = false;
    mw::for_each(std::vector<int>(), kSame, [](const int&, const int&) {});
  };
  ::setenv("SHADOWIB_GUEST", "1", 1);
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(3), "guests work for the first farm only");
  FarmInside::given = 2;
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "^$");
  FarmInside::given = 0;
  ::unsetenv("SHADOWIB_GUEST");
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "^$") << "a fork";
}

// Lengths of topc.h are int: a message of 4 GiB and more was cut.
TEST(Typed, AMessageThatIsTooLongIsAnError) {
  EXPECT_EQ(mw::detail::most_bytes, static_cast<std::size_t>(INT_MAX));
  mw::detail::most_bytes = 150;
  const std::string large(150, 'x'), small(100, 'x');
  const auto length = [](const std::string& text) { return static_cast<int>(text.size()); };
  const auto text = [](const int& bytes) { return std::string(static_cast<std::size_t>(bytes), 'x'); };
  int checks = 0;
  EXPECT_THROW(mw::for_each(std::vector{large}, length, [&](const std::string&, const int&) { ++checks; }),
               std::length_error);
  EXPECT_EQ(checks, 0);
  try {
    mw::for_each(std::vector{100, 150, 100}, text, [&](const int&, const std::string&) { ++checks; });
    ADD_FAILURE() << "nothing came out";
  } catch (const std::runtime_error& thrown) {
    EXPECT_STREQ(thrown.what(), "a task's input or output has 167 bytes; 150 are the limit");
  }
  EXPECT_EQ(checks, 2) << "of the others";
  mw::Session session(length, [&](const std::string&, const int&) { ++checks; });
  EXPECT_THROW(session.submit(large), std::length_error);
  session.submit(small);
  session.finish();
  EXPECT_EQ(checks, 3);
  mw::detail::most_bytes = INT_MAX;
}

TEST(Typed, ASessionWaitsForAllResults) {
  int checks = 0;
  {
    mw::Session session(kSame, [&checks](const int&, const int&) { ++checks; });
    for (int i = 0; i < 10; ++i) session.submit(i);
  }
  EXPECT_EQ(checks, 10);
}

}  // namespace

std::unique_ptr<Runtime> make_runtime(const Settings&) { return std::make_unique<FarmInside>(); }

}  // namespace shadowib::masterworker
