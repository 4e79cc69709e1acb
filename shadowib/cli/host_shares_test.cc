// Which members fall to which host.
#include "shadowib/cli/host_shares.h"

#include <gtest/gtest.h>

namespace shadowib::cli {
namespace {

std::string text_of(const std::vector<HostShare>& shares) {
  std::string text;
  for (const HostShare& share : shares)
    text += (text.empty() ? "" : " ") + share.host + "=" + members_text(share.members);
  return text;
}

TEST(ShareOut, FillsHostsBySlots) {
  const Companies four{{0}, {1}, {2}, {3}};
  EXPECT_EQ(text_of(share_out(four, {{"a", 2}, {"b", 2}})), "a=0,1 b=2,3");
  EXPECT_EQ(text_of(share_out(four, {{"a", 3}, {"b", 1}})), "a=0,1,2 b=3");
  EXPECT_EQ(text_of(share_out(four, {{"a", 8}, {"b", 8}})), "a=0,1,2,3") << "the first has room for all";
  EXPECT_EQ(text_of(share_out({{0}, {1}}, {{"a", 1}, {"b", 1}, {"c", 1}})), "a=0 b=1");
  EXPECT_EQ(text_of(share_out(four, {{"a", 1}, {"b", 1}})), "a=0,1 b=2,3") << "hosts were lost: more than slots";
  EXPECT_EQ(text_of(share_out(four, {{"a", 1}})), "a=0,1,2,3");
}

TEST(ShareOut, LeavesCompaniesTogether) {
  EXPECT_EQ(text_of(share_out({{0, 3}, {1}, {2}}, {{"a", 2}, {"b", 2}})), "a=0,3 b=1,2");
  EXPECT_EQ(text_of(share_out({{0, 1, 2}, {3}}, {{"a", 2}, {"b", 2}})), "a=0,1,2 b=3");
}

TEST(NextSlots, BeginWhereTheLastOnesEnded) {
  const std::vector<command_line::Host> hosts{{"a", 2}, {"b", 1}, {"c", 2}};
  std::size_t used = 0;
  EXPECT_EQ(command_line::hosts_text(next_slots(hosts, 3, &used)), "a:2,b:1");
  EXPECT_EQ(command_line::hosts_text(next_slots(hosts, 1, &used)), "c:1");
  EXPECT_EQ(command_line::hosts_text(next_slots(hosts, 2, &used)), "a:1,c:1") << "from the first one on again";
  EXPECT_EQ(used, 6u);
  EXPECT_EQ(command_line::hosts_text(next_slots(hosts, 10, &used)), "a:4,b:2,c:4") << "more than there are";
  EXPECT_TRUE(next_slots({}, 2, &used).empty());
}

TEST(LostHost, IsOneWhoseShellFails) {
  for (const int code : {255, 126, 127}) EXPECT_TRUE(is_lost_host(code << 8)) << code;
  EXPECT_TRUE(is_lost_host(9)) << "SIGKILL";
  for (const int code : {0, 4, 20}) EXPECT_FALSE(is_lost_host(code << 8)) << code;
}

}  // namespace
}  // namespace shadowib::cli
