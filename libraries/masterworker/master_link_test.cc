#include "libraries/masterworker/master_link.h"

#include <gtest/gtest.h>

#include <string>

#include "libraries/masterworker/tests/wired_master.h"

namespace shadowib::masterworker {
namespace {

TEST_F(WiredMaster, HandsOutTasksAndChecksResults) {
  tasks.push_back(text("one"));
  const std::uint32_t worker = this->worker();
  const Header task = take(worker);
  EXPECT_EQ(task.kind, Kind::kTask);
  say(worker, Kind::kResult, task.number, "done");
  go_on();
  EXPECT_EQ(checked, std::vector<std::string>{"done"});
  EXPECT_TRUE(master->done());
}

// The program may call exit() without TOPC_finalize(). Then the order in which objects go is another.
TEST_F(WiredMaster, EndsBehindItsMaster) {
  worker();
  auto* memory = static_cast<char*>(::operator new(sizeof(Master)));
  auto* own = new (memory) Master(*link, 1);
  link->attach(*own);
  own->~Master();
  std::memset(memory, 0xff, sizeof(Master));
  link.reset();
  ::operator delete(memory);
}

}  // namespace
}  // namespace shadowib::masterworker
