// The room that images are expected to take.
#include "hooks/command/room.h"

#include <gtest/gtest.h>

namespace shadowib {
namespace {

TEST(ExpectedPart, IsThatOfTheNewestSetAndATenthMore) {
  const StoreRates rates{.lz4 = 0.5, .zstd = 0.99};
  EXPECT_DOUBLE_EQ(expected_part(rates, Compression::kNone), 1);
  EXPECT_DOUBLE_EQ(expected_part(rates, Compression::kLz4), 0.55);
  EXPECT_DOUBLE_EQ(expected_part(rates, Compression::kZstd), 1) << "an image is never taken for larger than memory";
  EXPECT_DOUBLE_EQ(expected_part({}, Compression::kLz4), 1) << "nothing is known";
}

TEST(Room, CountsWhatIsExpectedOfEachMember) {
  const StoreChoice choice{};
  MemberStatus member{};
  member.host = "a";
  std::vector<MemberStatus> members(2, member);
  members[1].index = 1;
  NearHosts hosts;
  std::map<std::uint32_t, Fields> rooms;
  for (std::uint32_t i = 0; i < 2; ++i) {
    hosts.host_of[i] = "id";
    rooms[i] = {{"bytes", "1000"}, {"mem", std::to_string(4000 + i)}, {"disk", "8000"}};
  }
  hosts.domains["id"] = "id";
  const StoreQuestion question = describe_room(choice, "/", members, rooms, hosts, 0.25);
  ASSERT_EQ(question.hosts.size(), 1u);
  EXPECT_EQ(question.hosts[0].image_bytes, 500u);
  EXPECT_EQ(question.hosts[0].mem_bytes, 3800u) << "the least that any member tells, but for a twentieth";
}

TEST(MembersThatStand, AreThoseWhoseHostHasTooLittleMemoryForAllOfThem) {
  constexpr std::uint64_t kMib = 1 << 20;
  using Needs = std::map<std::uint32_t, SaverNeed>;
  const auto standing = [](const Needs& needs) { return members_that_stand(needs); };
  using Members = std::vector<std::uint32_t>;
  EXPECT_EQ(standing({}), Members{});
  EXPECT_EQ(standing({{3, {"a", 100 * kMib, 165 * kMib}}}), Members{});
  EXPECT_EQ(standing({{3, {"a", 100 * kMib, 164 * kMib}}}), Members{3}) << "64 MiB are for others";
  EXPECT_EQ(standing({{3, {"a", 0, 63 * kMib}}}), Members{3});
  EXPECT_EQ(standing({{0, {"a", 100 * kMib, 200 * kMib}}, {1, {"a", 100 * kMib, 200 * kMib}}}), (Members{0, 1}));
  EXPECT_EQ(standing({{0, {"a", 100 * kMib, 200 * kMib}}, {1, {"b", 100 * kMib, 200 * kMib}}}), Members{});
  // Member 1 is in a group that has less.
  EXPECT_EQ(standing({{0, {"a", 100 * kMib, 900 * kMib}}, {1, {"a", 100 * kMib, 120 * kMib, "1:7"}}}), Members{1});
  // Two in one group share what it has, however much the host of the third has.
  const std::uint64_t plenty = 9000 * kMib;
  const SaverNeed in_group{"a", 100 * kMib, 200 * kMib, "1:7"};
  EXPECT_EQ(standing({{0, in_group}, {1, in_group}, {2, {"a", 100 * kMib, plenty}}}), (Members{0, 1}));
  EXPECT_EQ(standing({{0, in_group}, {1, {"a", 100 * kMib, 200 * kMib, "1:8"}}, {2, {"a", 100 * kMib, plenty}}}),
            Members{});
  // A member that did not tell, of another version: nothing is known to be free.
  EXPECT_EQ(standing({{0, {"", 0, 0}}}), Members{0});
}

}  // namespace
}  // namespace shadowib
