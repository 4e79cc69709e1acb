// Each kind of what two members have in common is a bond that holds them together.
#include "hooks/imager/restore/companies.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "hooks/imager/descriptors/table.h"

namespace shadowib {
namespace {

using descriptors::Kind;
using descriptors::Table;
using Pairs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

// Of three members of one machine, of which the third has nothing to do with the others, once `change` has been made
// to the first two.
Pairs bonds_of(const std::function<void(Table& one, Table& other)>& change, std::int32_t group = 0) {
  std::vector<Table> tables(3);
  for (std::uint32_t m = 0; m < 3; ++m) {
    tables[m].member = m;
    tables[m].pid = static_cast<std::int32_t>(100 + m);
    tables[m].kernel = "one";
    tables[m].processes = 7;
    tables[m].working_directory = "/";
    tables[m].group = tables[m].session = 90;
  }
  change(tables[0], tables[1]);
  OpenedSet set;
  for (const Table& table : tables) encode_table(table, &set.tables[table.member]);
  for (std::int32_t m = 0; m < 3; ++m)
    set.elsewhere.push_back({static_cast<std::uint32_t>(m), 100 + m, m < 2 && group != 0 ? group : 90});
  Pairs found;
  const Status status = find_bonds(set, [&found](const Bond& bond) {
    found.emplace_back(std::minmax(bond.one, bond.other));
    EXPECT_EQ(bond.refusal().code(), Code::kRefused);
  });
  EXPECT_TRUE(status.ok()) << status.text();
  return found;
}

TEST(Bonds, AreOfEveryKind) {
  const Pairs first_two{{0, 1}};
  EXPECT_EQ(bonds_of([](Table&, Table&) {}), Pairs{});
  EXPECT_EQ(bonds_of([](Table& one, Table& other) {
              for (Table* table : {&one, &other}) {
                auto& segment = table->segments.emplace_back();
                segment.kind = descriptors::SegmentKind::kSystemV;
                segment.id = 3, segment.inode = 3, segment.space = 5, segment.bytes = 4096, segment.exact = 1;
              }
            }),
            first_two)
      << "memory";
  EXPECT_EQ(bonds_of([](Table& one, Table& other) {
              for (Table* table : {&one, &other}) {
                descriptors::Object event;
                event.kind = Kind::kEventfd;
                event.identity = 12;
                table->objects.push_back(event);
                table->descriptors.push_back({5, 0, false});
              }
            }),
            first_two)
      << "a descriptor";
  EXPECT_EQ(bonds_of([](Table& one, Table& other) {
              for (Table* table : {&one, &other}) {
                descriptors::Object file;
                file.flags = O_WRONLY;
                table->objects.push_back(file);
                table->descriptors.push_back({5, 0, false});
                one.shared_files.push_back({table->member, 0, 0});
              }
            }),
            first_two)
      << "the offset of a file";
  EXPECT_EQ(bonds_of([](Table&, Table&) {}, 100), first_two) << "a process group of the first's";
  EXPECT_EQ(bonds_of([](Table& one, Table&) {
              one.children.push_back({101, 90, 90, 0, 0, "child"});
            }),
            first_two)
      << "parent and child";
}

}  // namespace
}  // namespace shadowib
