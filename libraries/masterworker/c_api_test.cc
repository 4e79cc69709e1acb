#include <gtest/gtest.h>

#include "libraries/masterworker/guard.h"
#include "libraries/masterworker/include/topc.h"

namespace {

using shadowib::masterworker::Guard;
using shadowib::masterworker::switch_guard;

int left = 0, nested = 0, checked = 0, sum = 0;

TOPC_BUF generate() { return left == 0 ? NOTASK : TOPC_MSG(&left, (--left, sizeof(left))); }
TOPC_BUF work(int* input) {
  *input += 1;  // a copy: CheckTaskResult sees what was generated
  return TOPC_MSG(input, sizeof(*input));
}
TOPC_ACTION check(int* input, int* output) {
  ++checked;
  EXPECT_EQ(*output, *input + 1);
  return UPDATE;
}
void update(int* input, int*) { sum += *input; }
TOPC_ACTION farm_in_a_callback(int*, int*) {
  ++nested;
  TOPC_raw_wait_for_task_result();
  return NO_ACTION;
}

void init() {
  static bool done = false;
  if (done) return;
  done = true;
  char name[] = "prog", option[] = "--TOPC-num-slaves=3", other[] = "other";
  char* words[] = {name, option, other, nullptr};
  int count = 3;
  char** argv = words;
  TOPC_init(&count, &argv);
  EXPECT_EQ(count, 2);
  EXPECT_STREQ(argv[1], "other");
  EXPECT_EQ(TOPC_OPT_num_slaves, 3);
}

// It forked until the machine had no more processes.
TEST(CApi, RefusesAMadNumberOfWorkers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // where no farm has begun
  char program[] = "program", option[] = "--TOPC-num-slaves=100001";
  char* words[] = {program, option, nullptr};
  char** argv = words;
  int count = 2;
  EXPECT_EXIT(TOPC_init(&count, &argv), ::testing::ExitedWithCode(1), "--TOPC-num-slaves=100001: 0 to 100000");
  GTEST_FLAG_SET(death_test_style, "fast");
}

TEST(CApi, RunsAFarmInOneProcess) {
  init();
  left = 10;
  checked = sum = 0;
  TOPC_master_slave(generate, work, check, update);
  EXPECT_EQ(checked, 10);
  EXPECT_EQ(sum, 45);
  EXPECT_TRUE(TOPC_is_master());
  EXPECT_EQ(TOPC_rank(), 0);
}

TEST(CApi, GuardM3RefusesAFarmInACallback) {
  init();
  left = 1;
  EXPECT_EXIT(TOPC_master_slave(generate, work, farm_in_a_callback, NULL), ::testing::ExitedWithCode(1),
              "inside a callback");
  left = 1;
  nested = 0;
  switch_guard(Guard::kForkOutside, false);  // the harm: the master would fork in there
  TOPC_master_slave(generate, work, farm_in_a_callback, NULL);
  switch_guard(Guard::kForkOutside, true);
  EXPECT_EQ(nested, 1);
}

TEST(CApi, RefusesWhatIsNoAction) {
  init();
  left = 1;
  EXPECT_EXIT(TOPC_master_slave(
                  generate, work,
                  +[](int*, int*) {
                    return TOPC_ACTION{77, {}};
                  },
                  NULL),
              ::testing::ExitedWithCode(1), "returned 77");
}

TEST(CApi, RefusesAFarmAfterItsEnd) {
  init();
  left = 1;
  EXPECT_EXIT((TOPC_finalize(), TOPC_master_slave(generate, work, check, update)), ::testing::ExitedWithCode(1),
              "after TOPC_finalize");
  EXPECT_EXIT((TOPC_finalize(), TOPC_finalize()), ::testing::ExitedWithCode(1), "after TOPC_finalize");
}

TEST(CApi, EmptyMessagesAreNull) {
  EXPECT_EQ(TOPC_MSG(nullptr, 0).data, nullptr);
  EXPECT_EXIT(TOPC_MSG(nullptr, -1), ::testing::ExitedWithCode(1), "-1 bytes");
}

}  // namespace
