// A file of a near set, by its content, and the hosts that have it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowib/base/status.h"

namespace shadowib {

struct Piece {
  std::string file;  // a plain name
  std::uint64_t bytes = 0;
  std::string xxh3;  // 32 hex digits, XXH3-128 of the content
};
inline constexpr char kNoHash[] = "00000000000000000000000000000000";  // of a piece that is still to be made

// A host that has a piece.
struct PieceHost {
  std::string id;    // base/this_host.h, at the time of the checkpoint
  std::string name;  // for people
};

// "name:bytes:xxh3" with blanks between, as messages have it.
std::string encode_pieces(const std::vector<Piece>& pieces);
// kVersion: no such list, or a name that leads elsewhere.
Status decode_pieces(const std::string& text, std::vector<Piece>* pieces);
// A file of a set: no path, nothing hidden, and not the link to its home.
bool valid_piece_name(const std::string& name);
bool valid_set_id(const std::string& set_id);

}  // namespace shadowib
