// Which process groups may be parted by a restart on several machines.
#include "hooks/imager/restore/process_groups.h"

#include <gtest/gtest.h>

#include <string>

#include "hooks/imager/descriptors/table.h"

namespace shadowib {
namespace {

using descriptors::Kind;

std::string table_of(std::uint32_t member, bool rank) {
  descriptors::Table table;
  table.member = member;
  table.pid = static_cast<std::int32_t>(100 + member);
  table.kernel = "one";
  table.processes = 7;
  table.working_directory = "/";
  table.group = 100, table.session = 90;
  if (rank) {
    descriptors::Object connection;
    connection.kind = Kind::kLauncher;
    table.objects.push_back(connection);
    table.descriptors.push_back({4, 0, false});
  }
  std::string bytes;
  encode_table(table, &bytes);
  return bytes;
}

// Members 0 and 1 with the pids 100 and 101, both in the group 100; which of them are ranks; the second is elsewhere.
Status judged(bool first, bool second) {
  OpenedSet set;
  set.tables = {{0, table_of(0, first)}, {1, table_of(1, second)}};
  MemberImage here{};
  here.image.header.member = 0;
  here.image.process.pid = here.image.process.process_group = 100;
  set.members.push_back(std::move(here));
  set.elsewhere.push_back({1, 101, 100});
  return judge_parted(set);
}

TEST(ProcessGroups, OfTheProgramStayTogether) {
  for (const bool first : {false, true}) {
    const Status status = judged(first, false);
    EXPECT_EQ(status.code(), Code::kRefused);
    EXPECT_NE(std::string(status.text()).find("is in the process group 100 with member 1"), std::string::npos)
        << status.text();
  }
}

TEST(ProcessGroups, OfALaunchersRanksMayBeParted) {
  const Status status = judged(true, true);
  EXPECT_TRUE(status.ok()) << status.text();
}

}  // namespace
}  // namespace shadowib
