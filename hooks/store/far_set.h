// Sets in a far place: <job>/<set id>/<piece>, the manifest last. A set without its manifest is none.
//
// <job>/sets.json lists the job's sets, so that they are found by their numbers: an object store lists nothing.
// Format: docs/reference/formats.md. For commands.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hooks/store/far_place.h"

namespace shadowib {

// An object that a flush sends. `open` gives its bytes from the first on, and may be called again.
struct FarPiece {
  Piece piece;
  std::function<Status(PieceSource*)> open;
};
FarPiece far_text(const std::string& file, const std::string& text);

struct FlushOptions {
  std::uint64_t bytes_per_s = 0;                   // 0: no limit
  int tries = 3;                                   // of each object
  int pause_ms = 1000;                             // before another try; twice as long before the next
  std::function<void(std::uint64_t bytes)> moved;  // told of each part; may be empty
  std::function<void(const Status&)> again;        // a failure that is tried again; may be empty
};

// Does `work` again while it fails in a way that may pass, and tries are left.
Status try_again(const FlushOptions& options, const std::function<Status()>& work);

struct FlushReport {
  std::size_t sent = 0, present = 0;  // objects
  std::uint64_t bytes = 0;            // sent
};

// Brings objects to the place, in this order; the last one makes the set. Each is checked by its hash, and objects
// that are there and right are not sent. Any failure leaves a set that is whole or absent.
// Names are `prefix` and the pieces' files.
Status flush_pieces(FarPlace& place, const std::string& prefix, const std::vector<FarPiece>& pieces,
                    const FlushOptions& options, FlushReport* report);

// Gets an object and checks it. kCorrupt: it has another size or hash.
Status get_piece(FarPlace& place, const std::string& name, const Piece& piece, const PieceSink& sink);
// A small object, whole. kNotFound: there is none.
Status get_text(FarPlace& place, const std::string& name, std::string* text);

// A line of sets.json.
struct FarSet {
  std::uint32_t number = 0;
  std::string set_id, created;
  std::uint64_t bytes = 0, members = 0;
  std::string far;  // the place; only in the list of a checkpoint directory
  bool operator==(const FarSet&) const = default;
};
inline constexpr char kFarList[] = "sets.json";
std::string far_prefix(const std::string& job, const std::string& set_id);
std::string encode_far_list(const std::vector<FarSet>& sets);
// kCorrupt, kVersion.
Status decode_far_list(const std::string& json, const std::string& name, std::vector<FarSet>* sets);
// Adds a set at the end; replaces the line of the same set id.
void add_far_set(const FarSet& set, std::vector<FarSet>* sets);
// A job that begins again, where its earlier sets are not, counts from 1: numbers of two lives say nothing of age.
bool is_older_far_set(const FarSet& a, const FarSet& b);
// The newest line of that number, of any if 0. nullptr: none.
const FarSet* find_far_set(const std::vector<FarSet>& sets, std::uint32_t number);

}  // namespace shadowib
