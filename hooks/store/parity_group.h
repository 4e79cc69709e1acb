// A group of hosts that keep parities of each other's images: which ranges of which pieces make a piece that is lost.
// Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/job/protocol.h"
#include "hooks/store/parity_layout.h"
#include "hooks/store/piece.h"
#include "shadowib/base/status.h"

namespace shadowib {

// A part of a piece.
struct FileRange {
  std::string file;
  std::uint64_t offset = 0, bytes = 0;
  bool operator==(const FileRange&) const = default;
};

// A range of an element that is wanted, and the hosts whose elements of the stripe it is computed from.
struct Stretch {
  int stripe = 0, host = 0;
  std::uint64_t offset = 0, bytes = 0;
  std::vector<int> sources;
};

struct ParityGroup {
  struct Host {
    PieceHost host;             // at the time of the checkpoint
    std::vector<Piece> images;  // in a row they are the host's blob; may be none
    Piece parity;               // its M parities in a row; `xxh3` is kNoHash until it is made
  };
  int losses = 0;
  std::vector<Host> hosts;
  std::uint64_t segment = 0;  // bytes, by the largest blob

  ParityShape shape() const { return {static_cast<int>(hosts.size()), losses}; }
  // Sets `segment` and the parities' sizes, by the images.
  void set_sizes();
  // Checks a group that comes from outside, and sets `segment`. kVersion: its numbers, sizes or names cannot be, or a
  // piece is there twice.
  Status settle();
  // Every image and parity.
  std::vector<Piece> pieces() const;
  // The host in whose row a piece is; -1: in none.
  int row_of(std::string_view file) const;
};

// The ranges that hold bytes [offset, offset + bytes) of a host's element in a stripe. Shorter than asked for at the
// end of a blob: the rest is zeros.
std::vector<FileRange> element_ranges(const ParityGroup& group, int host, int stripe, std::uint64_t offset,
                                      std::uint64_t bytes);
// A host's blob between `offset` and `offset + bytes`, as far as it goes.
std::vector<FileRange> blob_ranges(const ParityGroup::Host& host, std::uint64_t offset, std::uint64_t bytes);

// Plans how to compute a piece from pieces that are `present`. The stretches in a row are its content. kNotFound: too
// few elements of a stripe are left.
using Present = std::function<bool(const std::string& file)>;
Status plan_piece(const ParityGroup& group, const std::string& file, const Present& present,
                  std::vector<Stretch>* stretches);

// Failure domains that have each piece, whole and right. A piece that is not named is lost.
using PieceDomains = std::map<std::string, std::set<std::string>>;
// How many domains may be lost at once, whichever they are, so that all images can still be made: at most
// group.losses. -1: an image is lost already.
int survived_losses(const ParityGroup& group, const PieceDomains& domains);

// The fields of a request that tell of a group, without the hosts' names.
void encode_group(const ParityGroup& group, Fields* fields);
Status decode_group(const Fields& fields, ParityGroup* group);

}  // namespace shadowib
