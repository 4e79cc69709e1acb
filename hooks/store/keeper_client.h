// Asking keepers. For commands, and for keepers that take copies from each other. Any thread.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "hooks/store/keeper_info.h"
#include "hooks/store/parity_pieces.h"
#include "hooks/store/pieces.h"
#include "shadowib/base/status.h"

namespace shadowib {

// Takes pieces from a keeper onto this host. Pieces that are here and right are left alone. The text names the piece
// and the keeper's host. `moved` may be empty.
Status fetch_pieces(const std::string& directory, const KeeperInfo& from, const NearSetId& set,
                    const std::vector<Piece>& pieces, std::int64_t deadline_ns, const Moved& moved = {});

// Has the keeper `at` take pieces from the keeper on host `from`.
Status ask_to_pull(const std::string& directory, const KeeperInfo& at, const std::string& from, const NearSetId& set,
                   const std::vector<Piece>& pieces, std::int64_t deadline_ns);
// Which pieces the keeper's host has, by their sizes. Takes no longer for large pieces.
Status ask_what_is_there(const std::string& directory, const KeeperInfo& at, const NearSetId& set,
                         const std::vector<Piece>& pieces, std::int64_t deadline_ns, std::set<std::string>* there);
// Which pieces the keeper's host has, whole and right.
Status ask_what_is_good(const std::string& directory, const KeeperInfo& at, const NearSetId& set,
                        const std::vector<Piece>& pieces, std::int64_t deadline_ns, std::set<std::string>* good);
// Asks for the hashes of a host's segments. The keeper checks each image against its own hash.
Status ask_for_hashes(const std::string& directory, const KeeperInfo& at, const NearSetId& set,
                      const ParityGroup& group, int row, std::int64_t deadline_ns, SegmentHashes* hashes);
// Has the keeper make a piece as make_piece() does, with the same results.
Status ask_to_make(const std::string& directory, const KeeperInfo& at, const NearSetId& set, const ParityGroup& group,
                   const PieceHosts& hosts, const std::vector<SegmentHashes>& hashes, std::int64_t deadline_ns,
                   Piece* piece, std::string* failed);

// A connection for ask_for_range(): the connection's next bytes are the range's.
Status connect_keeper(const std::string& directory, const std::string& job, const KeeperInfo& at,
                      std::int64_t deadline_ns, std::unique_ptr<PeerConnection>* peer);
Status ask_for_range(PeerConnection& peer, const NearSetId& set, const FileRange& range);

// Has the keeper remove what its host has of a set.
Status ask_to_drop(const std::string& directory, const KeeperInfo& at, const NearSetId& set,
                   std::int64_t deadline_ns);

// Has the keeper remove its host's images of the job that belong to no set; *removed are their directories.
Status ask_to_collect(const std::string& directory, const std::string& job, const KeeperInfo& at, bool dry_run,
                      std::int64_t deadline_ns, std::vector<std::string>* removed);

}  // namespace shadowib
