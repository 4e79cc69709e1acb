// Pieces of a parity group as files: what a host's own images hold, and pieces made from those of other hosts. For
// keepers and commands.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hooks/store/parity_group.h"
#include "hooks/store/piece_maker.h"
#include "hooks/store/pieces.h"
#include "shadowib/base/status.h"

namespace shadowib {

// Reads a host's images once. Each must have its hash; *hashes are of the segments they make. kNotFound, kCorrupt.
Status hash_segments(const NearSetId& set, const ParityGroup& group, int row, SegmentHashes* hashes);

// The host that each piece is read from; a piece that is not named is on no host.
using PieceHosts = std::map<std::string, std::string>;  // by file, base/this_host.h
// "file:host" with blanks between, as messages have it.
std::string encode_piece_hosts(const PieceHosts& hosts);
// kVersion: no such list, or a name that leads elsewhere.
Status decode_piece_hosts(const std::string& text, PieceHosts* hosts);

// Makes a piece on this host from pieces that keepers of `hosts` give. Checks it, syncs it and gives it its name. A
// piece that is here and right is left alone. A piece with kNoHash is a parity that nobody has made yet. `hashes` of
// all hosts then tell what the segments must hold. *failed is the host whose keeper failed, "" if none did.
// kNotFound: too little is left to make it. `moved`, which may be empty, is told of bytes of the piece.
Status make_piece(const std::string& directory, const NearSetId& set, const ParityGroup& group,
                  const PieceHosts& hosts, const std::vector<SegmentHashes>& hashes, std::int64_t deadline_ns,
                  Piece* piece, std::string* failed, const Moved& moved = {});

}  // namespace shadowib
