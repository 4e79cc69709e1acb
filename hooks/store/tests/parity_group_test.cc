// Which ranges of which pieces make a lost piece; what is hostile or no group is refused.
#include "hooks/store/parity_group.h"

#include <gtest/gtest.h>

namespace shadowib {
namespace {

const std::string kHash(32, 'a');

ParityGroup group_of(int losses, const std::vector<std::vector<std::uint64_t>>& blobs) {
  ParityGroup group{.losses = losses};
  for (std::size_t h = 0; h < blobs.size(); ++h) {
    ParityGroup::Host& host = group.hosts.emplace_back();
    host.host = {"host" + std::to_string(h), "h" + std::to_string(h)};
    for (std::size_t i = 0; i < blobs[h].size(); ++i)
      host.images.push_back({"image-" + std::to_string(h) + "-" + std::to_string(i), blobs[h][i], kHash});
    host.parity = {"parity-" + std::to_string(h), 0, kHash};
  }
  group.set_sizes();
  return group;
}

std::uint64_t bytes_of(const std::vector<Stretch>& stretches) {
  std::uint64_t bytes = 0;
  for (const Stretch& stretch : stretches) bytes += stretch.bytes;
  return bytes;
}

TEST(ParityGroup, ParitiesAreAsLongAsTheLargestBlobNeeds) {
  const ParityGroup group = group_of(2, {{100, 1}, {}, {50}, {7, 7, 7}, {0}});
  EXPECT_EQ(group.segment, 34u);
  for (const ParityGroup::Host& host : group.hosts) EXPECT_EQ(host.parity.bytes, 68u);
}

TEST(ParityGroup, ABlobsEndIsShort) {
  const ParityGroup group = group_of(1, {{10, 20}, {3}, {}});
  EXPECT_EQ(group.segment, 15u);
  EXPECT_EQ(blob_ranges(group.hosts[0], 5, 10), (std::vector<FileRange>{{"image-0-0", 5, 5}, {"image-0-1", 0, 5}}));
  EXPECT_EQ(blob_ranges(group.hosts[1], 2, 100), (std::vector<FileRange>{{"image-1-0", 2, 1}}));
  EXPECT_TRUE(blob_ranges(group.hosts[2], 0, 100).empty());
}

// Whatever is lost on up to M hosts, each piece is planned whole, and from pieces that are there.
TEST(ParityGroup, EveryPieceComesFromWhatIsLeft) {
  const std::vector<std::vector<std::uint64_t>> blobs{{10, 20, 1}, {33}, {}, {5, 0, 5}, {31}};
  for (int losses = 1; losses <= 4; ++losses) {
    const ParityGroup group = group_of(losses, blobs);
    for (int lost = 0; lost < 32; ++lost) {
      const int count = __builtin_popcount(static_cast<unsigned>(lost));
      const Present present = [&](const std::string& file) { return (lost >> group.row_of(file) & 1) == 0; };
      for (const Piece& piece : group.pieces()) {
        std::vector<Stretch> stretches;
        if ((lost >> group.row_of(piece.file) & 1) == 0) continue;
        const Status status = plan_piece(group, piece.file, present, &stretches);
        if (count > losses) continue;  // may be enough nevertheless: zeros are never lost
        ASSERT_TRUE(status.ok()) << piece.file << " of " << lost << ": " << status.text();
        EXPECT_EQ(bytes_of(stretches), piece.bytes);
        for (const Stretch& stretch : stretches) {
          EXPECT_EQ(stretch.sources.size(), static_cast<std::size_t>(group.shape().segments()));
          for (const int source : stretch.sources)
            for (const FileRange& range :
                 element_ranges(group, source, stretch.stripe, stretch.offset, stretch.bytes))
              EXPECT_TRUE(present(range.file)) << range.file;
        }
      }
    }
  }
}

TEST(ParityGroup, MoreThanThatIsToldAndNotPlanned) {
  const ParityGroup group = group_of(1, {{30}, {30}, {30}});
  std::vector<Stretch> stretches;
  const Status status = plan_piece(
      group, "image-0-0", [&](const std::string& file) { return group.row_of(file) == 2; }, &stretches);
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_EQ(plan_piece(
                group, "image-9-9", [](const std::string&) { return true; }, &stretches)
                .code(),
            Code::kVersion);
}

// Two damaged images that do not lie side by side in a stripe: each comes back.
TEST(ParityGroup, DamageInDifferentRangesIsMended) {
  const ParityGroup group = group_of(1, {{20, 20}, {20, 20}, {40}});
  std::vector<Stretch> stretches;
  // Host 0's first segment and host 1's second are in different stripes, or in different ranges of one.
  const Present present = [](const std::string& file) { return file != "image-0-0" && file != "image-1-1"; };
  const ParityShape shape = group.shape();
  ASSERT_NE(shape.stripe_of_segment(0, 0), shape.stripe_of_segment(1, 1));
  EXPECT_TRUE(plan_piece(group, "image-0-0", present, &stretches).ok());
  EXPECT_TRUE(plan_piece(group, "image-1-1", present, &stretches).ok());
}

TEST(ParityGroup, TellsHowManyLossesItSurvives) {
  const ParityGroup group = group_of(2, {{30, 5}, {30}, {30}, {30}});
  PieceDomains domains;
  for (const Piece& piece : group.pieces()) domains[piece.file] = {"rack" + std::to_string(group.row_of(piece.file))};
  EXPECT_EQ(survived_losses(group, domains), 2);
  domains.erase("image-0-0");
  EXPECT_EQ(survived_losses(group, domains), 1);
  domains["image-0-0"] = {"rack1"};
  EXPECT_EQ(survived_losses(group, domains), 1) << "rack1 takes two pieces along";
  domains["image-0-0"] = {"rack1", "rack4"};
  EXPECT_EQ(survived_losses(group, domains), 2);
  domains.erase("parity-3");
  domains.erase("image-2-0");
  EXPECT_EQ(survived_losses(group, domains), 0);
  domains.erase("image-1-0");
  domains.erase("image-3-0");
  EXPECT_EQ(survived_losses(group, domains), -1);
}

TEST(ParityGroup, FewerDomainsThanLossesAreAllLostAtOnce) {
  const ParityGroup group = group_of(2, {{30, 5}, {30}, {30}, {30}});
  PieceDomains domains;
  EXPECT_EQ(survived_losses(group, domains), -1);
  for (const Piece& piece : group.pieces()) domains[piece.file] = {"rack"};
  EXPECT_EQ(survived_losses(group, domains), 0) << "all lies in one rack";
  domains = {{"image-3-0", {"rack3"}}, {"parity-3", {"rack3"}}};
  EXPECT_EQ(survived_losses(group, domains), -1) << "one host of four is left";
}

TEST(ParityGroup, TravelsInMessages) {
  const ParityGroup group = group_of(2, {{100, 1}, {}, {50}, {7, 7, 7}});
  Fields fields;
  ParityGroup back;
  encode_group(group, &fields);
  ASSERT_TRUE(decode_group(fields, &back).ok());
  EXPECT_EQ(back.segment, group.segment);
  EXPECT_EQ(encode_pieces(back.pieces()), encode_pieces(group.pieces()));
}

TEST(ParityGroup, WhatIsNoGroupIsRefused) {
  const auto refused = [](const char* name, const std::string& value) {
    Fields fields;
    ParityGroup back;
    encode_group(group_of(1, {{100}, {10}, {50}}), &fields);
    fields[name] = value;
    return decode_group(fields, &back).code() == Code::kVersion;
  };
  EXPECT_TRUE(refused("losses", "0"));
  EXPECT_TRUE(refused("losses", "3"));
  EXPECT_TRUE(refused("losses", "2")) << "parities of another size";
  EXPECT_TRUE(refused("losses", "4294967297"));
  EXPECT_TRUE(refused("hosts", "1"));
  EXPECT_TRUE(refused("hosts", "9"));
  EXPECT_TRUE(refused("hosts", "18446744073709551615"));
  EXPECT_TRUE(refused("images0", "../image:100:" + kHash));
  EXPECT_TRUE(refused("images0", "home:100:" + kHash));
  EXPECT_TRUE(refused("images0", "image:100"));
  EXPECT_TRUE(refused("images0", "image:18446744073709551615:" + kHash));
  EXPECT_TRUE(refused("images0", "image-1-0:100:" + kHash)) << "twice";
  EXPECT_TRUE(refused("images0", "image-0-0:101:" + kHash)) << "parities of another size";
  EXPECT_TRUE(refused("parity0", ""));
  EXPECT_TRUE(refused("parity0", "parity-0:49:" + kHash));
}

}  // namespace
}  // namespace shadowib
