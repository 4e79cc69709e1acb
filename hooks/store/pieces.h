// Near pieces as files: checked by hash when they come and when they are asked for. For keepers and commands.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shadowib/base/status.h"

namespace shadowib {

// A set's directory on a host.
struct NearSetId {
  std::string place, job, set_id;
};

struct Piece {
  std::string file;  // a plain name
  std::uint64_t bytes = 0;
  std::string xxh3;  // 32 hex digits, XXH3-128 of the content
};

// Opens a piece for reading; the descriptor is the caller's. kNotFound: it is not on this host. kPermission as
// check_near_root() has it.
Status open_piece(const NearSetId& set, const std::string& file, int* fd, std::uint64_t* bytes);
// Reads a piece whole. kNotFound; kCorrupt: it has another size or hash.
Status check_piece(const NearSetId& set, const Piece& piece);

// Gives the next `bytes` of a piece.
using PieceSource = std::function<Status(char* to, std::size_t bytes)>;
// Writes a piece under another name, checks its hash, syncs it, and gives it its name: it is there whole and right,
// or as it was. `directory`: the checkpoint directory that the set belongs to. kCorrupt: another hash.
Status write_piece(const NearSetId& set, const std::string& directory, const Piece& piece, const PieceSource& source);

// "name:bytes:xxh3" with blanks between, as messages have it.
std::string encode_pieces(const std::vector<Piece>& pieces);
// kVersion: no such list, or a name that leads elsewhere.
Status decode_pieces(const std::string& text, std::vector<Piece>* pieces);
// A file of a set: no path, nothing hidden, and not the link to its home.
bool valid_piece_name(const std::string& name);
bool valid_set_id(const std::string& set_id);

}  // namespace shadowib
