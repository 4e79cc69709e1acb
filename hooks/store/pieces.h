// Near pieces as files: checked by hash when they come and when they are asked for. For keepers and commands.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hooks/store/piece.h"
#include "shadowib/base/status.h"

namespace shadowib {

// A set's directory on a host.
struct NearSetId {
  std::string place, job, set_id;
};

// Opens a piece for reading; the descriptor is the caller's. kNotFound: it is not on this host. kPermission as
// check_near_root() has it.
Status open_piece(const NearSetId& set, const std::string& file, int* fd, std::uint64_t* bytes);
// Whether a piece is here with its size. Reads no byte of it.
bool has_piece(const NearSetId& set, const Piece& piece);
// Reads a piece whole. kNotFound; kCorrupt: it has another size or hash.
Status check_piece(const NearSetId& set, const Piece& piece);

// Told of bytes as they come.
using Moved = std::function<void(std::uint64_t bytes)>;
// Gives the next `bytes` of a piece.
using PieceSource = std::function<Status(char* to, std::size_t bytes)>;
// Writes a piece under another name, checks its hash, syncs it, and gives it its name: it is there whole and right,
// or as it was. `directory`: the checkpoint directory that the set belongs to. kCorrupt: another hash.
Status write_piece(const NearSetId& set, const std::string& directory, const Piece& piece, const PieceSource& source);
// Does as write_piece(). A hash that is kNoHash is set to the content's.
Status write_new_piece(const NearSetId& set, const std::string& directory, const PieceSource& source, Piece* piece);

// Reads bytes of a piece that is open, from `offset` on. kCorrupt: it has become shorter.
Status read_range(int fd, std::uint64_t offset, char* to, std::size_t bytes);

}  // namespace shadowib
