// Every byte of every piece comes back from any hosts that are enough, whatever the sizes.
#include "hooks/store/piece_maker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "hooks/store/hex_hash.h"

namespace shadowib {
namespace {

class MemoryRanges : public RangeSource {
 public:
  std::map<std::string, std::string> pieces;
  Status open(int stream, const FileRange& range) override {
    const auto at = pieces.find(range.file);
    if (at == pieces.end() || range.offset + range.bytes > at->second.size())
      return Status::of(Code::kNotFound, 0, "%s is not there", range.file.c_str());
    streams_[stream] = std::string_view(at->second).substr(range.offset, range.bytes);
    return {};
  }
  Status read(int stream, char* to, std::size_t bytes) override {
    std::string_view& left = streams_[stream];
    EXPECT_GE(left.size(), bytes) << "reads behind the range";
    left.copy(to, bytes);
    left.remove_prefix(bytes);
    return {};
  }

 private:
  std::map<int, std::string_view> streams_;
};

struct Example {
  ParityGroup group;
  MemoryRanges all;

  Example(int losses, const std::vector<std::vector<std::size_t>>& blobs) {
    std::mt19937 random(7);
    group.losses = losses;
    for (std::size_t h = 0; h < blobs.size(); ++h) {
      ParityGroup::Host& host = group.hosts.emplace_back();
      host.host.name = "h" + std::to_string(h);
      for (const std::size_t bytes : blobs[h]) {
        const std::string file = "image-" + std::to_string(all.pieces.size());
        std::string& content = all.pieces[file];
        content.resize(bytes);
        for (std::size_t at = 0; at < bytes; at += 4) {
          const std::uint32_t word = random();
          std::memcpy(content.data() + at, &word, std::min<std::size_t>(4, bytes - at));
        }
        host.images.push_back({file, bytes, hex_hash(content)});
      }
      host.parity = {"parity-" + std::to_string(h), 0, kNoHash};
    }
    group.set_sizes();
    for (const ParityGroup::Host& host : group.hosts) all.pieces[host.parity.file] = make(host.parity, all);
  }

  std::string make(const Piece& piece, MemoryRanges& from) {
    std::vector<Stretch> stretches;
    const Status planned = plan_piece(
        group, piece.file, [&](const std::string& file) { return from.pieces.contains(file); }, &stretches);
    EXPECT_TRUE(planned.ok()) << piece.file << ": " << planned.text();
    PieceMaker maker(group, stretches, from);
    std::string content(piece.bytes, '?');
    const Status made = maker.next(content.data(), content.size());
    EXPECT_TRUE(made.ok()) << piece.file << ": " << made.text();
    char more = 0;
    EXPECT_EQ(maker.next(&more, 1).code(), Code::kCorrupt) << "there is no more";
    return content;
  }

  MemoryRanges without(int lost) const {
    MemoryRanges left = all;
    for (const Piece& piece : group.pieces())
      if ((lost >> group.row_of(piece.file) & 1) != 0) left.pieces.erase(piece.file);
    return left;
  }
};

void expect_all_back(int losses, const std::vector<std::vector<std::size_t>>& blobs) {
  Example example(losses, blobs);
  for (int lost = 0; lost < 1 << blobs.size(); ++lost) {
    if (__builtin_popcount(static_cast<unsigned>(lost)) > losses) continue;
    MemoryRanges left = example.without(lost);
    for (const Piece& piece : example.group.pieces())
      if (!left.pieces.contains(piece.file)) {
        EXPECT_EQ(example.make(piece, left), example.all.pieces[piece.file]) << piece.file << " of " << lost;
      }
  }
}

TEST(PieceMaker, UnequalBlobs) {
  expect_all_back(1, {{1000, 3, 500}, {999}, {20, 20}, {1}, {}});
  expect_all_back(2, {{1000, 3, 500}, {999}, {20, 20}, {1}, {}});
  expect_all_back(3, {{1000, 3, 500}, {999}, {20, 20}, {1}, {}});
}

TEST(PieceMaker, FewHosts) {
  expect_all_back(1, {{100}, {70, 1}});
  expect_all_back(2, {{100}, {70, 1}, {333}});
}

TEST(PieceMaker, AsManyHostsAsAGroupHas) {
  for (int losses = 1; losses < kMostGroupHosts; ++losses)
    expect_all_back(losses, {{100}, {70, 1}, {333}, {}, {12}, {13}, {400}, {64, 64}});
}

TEST(PieceMaker, NothingButEmptyBlobs) { expect_all_back(1, {{}, {0}, {}}); }

TEST(PieceMaker, StretchesOfMoreThanAMebibyte) {
  expect_all_back(2, {{3'000'001, 5}, {5'000'000}, {1, 2'500'000}, {}});
}

// Damage in the ranges of one stripe that differ: sources are chosen range by range.
TEST(PieceMaker, SourcesChangeWithinAStripe) {
  Example example(2, {{100, 200, 300}, {400, 200}, {50, 550}, {600}, {10, 590}});
  std::mt19937 random(3);
  int made = 0;
  for (int round = 0; round < 300; ++round) {
    MemoryRanges left = example.all;
    for (const Piece& piece : example.group.pieces())
      if (random() % 4 == 0) left.pieces.erase(piece.file);
    for (const Piece& piece : example.group.pieces()) {
      std::vector<Stretch> stretches;
      if (left.pieces.contains(piece.file) ||
          !plan_piece(
               example.group, piece.file, [&](const std::string& file) { return left.pieces.contains(file); },
               &stretches)
               .ok())
        continue;
      EXPECT_EQ(example.make(piece, left), example.all.pieces[piece.file]);
      ++made;
    }
  }
  EXPECT_GT(made, 100);
}

TEST(PieceMaker, ASegmentThatIsNotWhatItsHostHasToldIsNamed) {
  Example example(1, {{1000}, {900}, {800, 1}});
  std::vector<SegmentHashes> hashes;
  for (const ParityGroup::Host& host : example.group.hosts) {
    std::string blob;
    SegmentHashes& told = hashes.emplace_back();
    for (const Piece& image : host.images) blob += example.all.pieces[image.file];
    for (int s = 0; s < example.group.shape().segments(); ++s) {
      const std::size_t at = static_cast<std::size_t>(s) * example.group.segment;
      told.push_back(hex_hash(at < blob.size() ? blob.substr(at, example.group.segment) : ""));
    }
  }
  const Piece& parity = example.group.hosts[0].parity;
  const auto make = [&](MemoryRanges& from) {
    std::vector<Stretch> stretches;
    EXPECT_TRUE(plan_piece(
                    example.group, parity.file, [](const std::string&) { return true; }, &stretches)
                    .ok());
    PieceMaker maker(example.group, stretches, from);
    maker.expect(hashes);
    std::string content(parity.bytes, '?');
    return maker.next(content.data(), content.size());
  };
  MemoryRanges right = example.all;
  EXPECT_TRUE(make(right).ok());
  // Host 0 has its parity in a stripe with one segment of each other host.
  const int segment = example.group.shape().segment_in(1, example.group.shape().stripe_of_parity(0, 0));
  MemoryRanges wrong = example.all;
  wrong.pieces["image-1"][static_cast<std::size_t>(segment) * example.group.segment + 7] ^= 1;
  const Status status = make(wrong);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_NE(std::string(status.text()).find("host h1"), std::string::npos) << status.text();
}

}  // namespace
}  // namespace shadowib
