// Semaphores on a machine that has many of them.
#include <gtest/gtest.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/table.h"
#include "hooks/imager/descriptors/tests/test_job.h"

namespace shadowib::test {
namespace {

using descriptors::SemaphoreSet;
using descriptors::Table;

// Removed at the end.
class Sets {
 public:
  ~Sets() {
    for (const int id : ids_) ::semctl(id, 0, IPC_RMID);
  }
  int make(int count) {
    const int id = ::semget(IPC_PRIVATE, count, 0600);
    if (id >= 0) ids_.push_back(id);
    return id;
  }

 private:
  std::vector<int> ids_;
};

bool operate(int id, int number, int by, int flags) {
  sembuf operation{static_cast<unsigned short>(number), static_cast<short>(by), static_cast<short>(flags)};
  return ::semop(id, &operation, 1) == 0;
}

const SemaphoreSet* find(const Table& table, int id) {
  for (const SemaphoreSet& s : table.semaphores)
    if (s.id == id) return &s;
  return nullptr;
}

TEST(SystemV, LooksAtEverySemaphoreOfTheMachine) {
  constexpr int kMany = 32000, kLast = kMany - 1;  // SEMMSL
  Sets sets;
  std::vector<int> many;
  for (int i = 0; i < 3; ++i) {
    many.push_back(sets.make(kMany));
    ASSERT_TRUE(many.back() >= 0 && operate(many.back(), 0, 1, 0)) << errno;
  }
  const int small = sets.make(2);
  ASSERT_TRUE(small >= 0 && operate(small, 0, 1, 0)) << errno;
  Job job;
  job.members = 1;
  job.before = [&](int) -> std::string {
    EXPECT_STEP(operate(small, 1, 5, SEM_UNDO));
    EXPECT_STEP(operate(many[2], 99, 3, SEM_UNDO) && operate(many[2], 100, 2, 0) &&
                operate(many[2], 100, -2, SEM_UNDO));
    EXPECT_STEP(operate(many[2], kLast, 32767, SEM_UNDO));
    return "";
  };
  job.resumed = [&](int) -> std::string {
    EXPECT_STEP(::semctl(many[2], 99, GETVAL) == 3 && ::semctl(many[2], 100, GETVAL) == 0);
    EXPECT_STEP(::semctl(many[2], kLast, GETVAL) == 32767 && ::semctl(small, 1, GETVAL) == 5);
    return "";
  };
  const Capture capture = checkpoint(job);
  ASSERT_EQ(capture.failure, "");
  ASSERT_EQ(capture.refusals.size(), 0u);
  Table table;
  ASSERT_TRUE(descriptors::decode_table(capture.tables.at(0), &table).ok());
  EXPECT_EQ(find(table, many[0]), nullptr);
  const SemaphoreSet *big = find(table, many[2]), *own = find(table, small);
  ASSERT_NE(big, nullptr);
  ASSERT_NE(own, nullptr);
  EXPECT_EQ(own->semaphores[1].adjustment, -5);
  for (int n = 0; n < kMany; ++n) {
    const int expected = n == 99 ? -3 : n == 100 ? 2 : n == kLast ? -32767 : 0;
    EXPECT_EQ(big->semaphores[static_cast<std::size_t>(n)].adjustment, expected) << n;
  }
}

}  // namespace
}  // namespace shadowib::test
