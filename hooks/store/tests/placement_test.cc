// placement.json is read as it was written, and every altered byte is noticed.
#include "hooks/store/placement.h"

#include <gtest/gtest.h>

#include "hooks/store/hex_hash.h"

namespace shadowib {
namespace {

SetPlacement example() {
  return {.store = {Tier::kDisk},
          .place = "/var/tmp",
          .pieces = {{"member-0.img", {{"0123-4", "node1"}}}, {"member-1.img", {}}}};
}

TEST(Placement, IsReadAsWritten) {
  SetPlacement back;
  const Status status = decode_placement(encode_placement(example()), "set", &back);
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(back.store, example().store);
  EXPECT_EQ(back.place, "/var/tmp");
  ASSERT_EQ(back.pieces.size(), 2u);
  EXPECT_EQ(back.find("member-0.img")->hosts.at(0).name, "node1");
  EXPECT_TRUE(back.find("member-1.img")->hosts.empty());
  EXPECT_EQ(back.find("member-2.img"), nullptr);
}

SetPlacement with_parities() {
  SetPlacement placement = example();
  EXPECT_TRUE(parse_store("disk:xor", &placement.store).ok());
  ParityGroup& group = placement.groups.emplace_back();
  group.losses = 1;
  group.hosts = {{{"0123-4", "node1"},
                  {{"member-0.img", 10, std::string(32, 'a')}},
                  {"parity-0-0.par", 0, std::string(32, 'b')}},
                 {{"4567-8", "node2"}, {}, {"parity-0-1.par", 0, std::string(32, 'c')}}};
  group.set_sizes();
  return placement;
}

TEST(Placement, ParitiesAreReadAsWritten) {
  SetPlacement back;
  const SetPlacement placement = with_parities();
  const Status status = decode_placement(encode_placement(placement), "set", &back);
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(back.store.text(), "disk:xor");
  ASSERT_EQ(back.groups.size(), 1u);
  EXPECT_EQ(encode_pieces(back.groups[0].pieces()), encode_pieces(placement.groups[0].pieces()));
  EXPECT_EQ(back.groups[0].segment, 10u);
  EXPECT_EQ(back.groups[0].hosts[1].host.name, "node2");
  EXPECT_EQ(back.group_of("parity-0-1.par"), &back.groups[0]);
  EXPECT_EQ(back.group_of("member-1.img"), nullptr);
}

// An older shadowib reads what it knows.
TEST(Placement, OnlyParitiesNeedTheNewFormat) {
  EXPECT_NE(encode_placement(example()).find("\"format\": 1"), std::string::npos);
  EXPECT_NE(encode_placement(with_parities()).find("\"format\": 2"), std::string::npos);
}

TEST(Placement, AGroupThatIsNoneIsRefused) {
  SetPlacement placement = with_parities(), back;
  placement.groups[0].hosts[1].parity.bytes = 11;
  EXPECT_EQ(decode_placement(encode_placement(placement), "set", &back).code(), Code::kCorrupt);
  placement = with_parities();
  placement.groups[0].hosts[1].parity.file = "../parity";
  EXPECT_EQ(decode_placement(encode_placement(placement), "set", &back).code(), Code::kCorrupt);
}

TEST(Placement, EveryAlteredByteIsNoticed) {
  const std::string good = encode_placement(with_parities());
  SetPlacement back;
  for (std::size_t i = 0; i < good.size(); ++i) {
    if (good[i] == ' ' || good[i] == '\n') continue;  // no meaning
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    EXPECT_FALSE(decode_placement(bad, "set", &back).ok()) << "byte " << i << ": " << bad;
  }
  for (std::size_t length = 0; length + 2 < good.size(); ++length)
    EXPECT_EQ(decode_placement(good.substr(0, length), "set", &back).code(), Code::kCorrupt) << length;
}

// As xxhsum -H2 prints it, in parts or at once.
TEST(HexHash, IsXxh3) {
  EXPECT_EQ(hex_hash(""), "99aa06d3014798d86001c324468d497f");
  HexHash hash;
  hash.add("pie");
  hash.add("ce");
  EXPECT_EQ(hash.hex(), hex_hash("piece"));
  EXPECT_NE(hash.hex(), hex_hash("peice"));
}

TEST(Placement, AnotherFormatIsNamed) {
  std::string other = encode_placement(example());
  other.replace(other.find("\"format\": 1"), 11, "\"format\": 9");
  SetPlacement back;
  EXPECT_EQ(decode_placement(other, "set", &back).code(), Code::kVersion);
}

}  // namespace
}  // namespace shadowib
