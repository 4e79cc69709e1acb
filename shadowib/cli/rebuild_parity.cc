// Making a set with parity whole again: each host of a group has its images and parities, in a domain of its own.
#include <map>
#include <optional>
#include <set>

#include "hooks/job/job_directory.h"
#include "hooks/job/phase.h"
#include "hooks/store/keeper_client.h"
#include "shadowib/base/lock.h"
#include "shadowib/cli/decode.h"
#include "shadowib/cli/piece_progress.h"
#include "shadowib/cli/rebuild.h"

namespace shadowib::cli {
namespace {

constexpr std::int64_t kMakeNs = 3600'000'000'000;

class Rebuild {
 public:
  Rebuild(const std::string& directory, SetManifest* manifest) : directory_(directory), manifest_(*manifest) {}

  Status run(Rebuilt* rebuilt) {
    // Each try but the last has found a host that is lost.
    for (;;) {
      look();
      Status status = make_all(rebuilt);
      if (status.ok()) break;
      if (failed_.empty()) return status;
      progress_.reset();
      std::fprintf(stderr, "shadowib: %s; trying without that host\n", status.text());
      excluded_.insert(failed_);
    }
    return open_store_of(manifest_.path)->replace(manifest_.path, kPlacementFile, encode_placement(placement_));
  }

 private:
  void look() {
    std::vector<KeeperInfo> keepers;
    keepers_.clear();
    loads_.clear();
    failed_.clear();
    placement_ = manifest_.placement;
    for (const KeeperInfo& keeper : live_keepers(directory_, manifest_.job))
      if (!excluded_.contains(keeper.host)) keepers.push_back(keepers_[keeper.host] = keeper);
    holders_ = ask_holders(directory_, manifest_, keepers);
    for (const auto& [file, hosts] : holders_)
      for (const std::string& host : hosts) ++loads_[host];
  }

  bool has(const std::string& host, const std::string& file) const {
    const auto at = holders_.find(file);
    return at != holders_.end() && at->second.contains(host);
  }

  static std::vector<Piece> pieces_of(const ParityGroup::Host& row) {
    std::vector<Piece> pieces = row.images;
    pieces.push_back(row.parity);
    return pieces;
  }

  Status make_all(Rebuilt* rebuilt) {
    std::vector<std::vector<std::string>> homes;
    *rebuilt = {};
    // Refused before anything is made.
    for (const ParityGroup& group : placement_.groups) {
      for (const Piece& piece : group.pieces())
        if (const Status status = check_available(group, piece.file, holders_); !status.ok())
          return Status::of(status.code(), status.error(), "set %.70s: %.30s is lost: %.150s; restart an older set",
                            set_name(manifest_.job, manifest_.number).c_str(), piece.file.c_str(), status.text());
      SHADOWIB_TRY(find_homes(group, &homes.emplace_back()));
    }
    SHADOWIB_TRY(fault_point(Phase::kSurveyed));
    std::size_t lacking = 0;
    std::uint64_t bytes = 0;
    for (std::size_t g = 0; g < homes.size(); ++g)
      for (std::size_t row = 0; row < homes[g].size(); ++row)
        for (const Piece& piece : pieces_of(placement_.groups[g].hosts[row]))
          if (!has(homes[g][row], piece.file)) ++lacking, bytes += piece.bytes;
    progress_.reset();
    if (lacking > 0)
      progress_.emplace("making " + std::to_string(lacking) + " images and parities of " + name_of(manifest_), bytes);
    for (std::size_t g = 0; g < homes.size(); ++g)
      for (std::size_t row = 0; row < homes[g].size(); ++row)
        SHADOWIB_TRY(make_row(&placement_.groups[g], row, keepers_.at(homes[g][row]), rebuilt));
    return {};
  }

  // A host for each row, of different domains: the one that has all of it, else most of it, else an empty one.
  Status find_homes(const ParityGroup& group, std::vector<std::string>* homes) {
    std::set<std::string> taken;  // domains
    homes->assign(group.hosts.size(), "");
    for (const bool whole : {true, false})
      for (std::size_t row = 0; row < homes->size(); ++row) {
        std::string& home = (*homes)[row];
        if (home.empty()) home = holder_of(group.hosts[row], whole, taken);
        if (!home.empty()) taken.insert(keepers_.at(home).domain);
      }
    for (std::size_t row = 0; row < homes->size(); ++row) {
      std::string& home = (*homes)[row];
      if (home.empty()) home = emptiest(taken);
      if (home.empty())
        return Status::of(Code::kNotFound, 0,
                          "the images and parities of host %.60s need a host of another failure domain than the "
                          "group's others, and no keeper runs on one; start one there with `shadowib keeper %.64s`",
                          group.hosts[row].host.name.c_str(), manifest_.job.c_str());
      taken.insert(keepers_.at(home).domain);
    }
    return {};
  }

  // `whole`: it must have every piece. "" if there is none outside of the domains that are taken.
  std::string holder_of(const ParityGroup::Host& row, bool whole, const std::set<std::string>& taken) const {
    std::string best;
    std::size_t most = 0;
    const std::vector<Piece> pieces = pieces_of(row);
    for (const auto& [host, keeper] : keepers_) {
      std::size_t there = 0;
      if (taken.contains(keeper.domain)) continue;
      for (const Piece& piece : pieces) there += has(host, piece.file);
      if (there > most || (there == most && there > 0 && host == row.host.id)) best = host, most = there;
    }
    return whole && most < pieces.size() ? "" : best;
  }

  std::string emptiest(const std::set<std::string>& taken) {
    std::string best;
    for (const auto& [host, keeper] : keepers_)
      if (!taken.contains(keeper.domain) && (best.empty() || loads_[host] < loads_[best])) best = host;
    if (!best.empty()) ++loads_[best];
    return best;
  }

  Status make_row(ParityGroup* group, std::size_t number, const KeeperInfo& home, Rebuilt* rebuilt) {
    ParityGroup::Host& row = group->hosts[number];
    for (Piece piece : pieces_of(row)) {
      if (!has(home.host, piece.file)) {
        SHADOWIB_TRY(make(*group, home, &piece));
        holders_[piece.file].insert(home.host);
        ++rebuilt->copied;
        progress_->next(piece.bytes);
      }
      ++rebuilt->whole;
      for (PlacedPiece& placed : placement_.pieces)
        if (placed.file == piece.file) placed.hosts = {{home.host, home.name}};
    }
    row.host = {home.host, home.name};
    return {};
  }

  Status make(const ParityGroup& group, const KeeperInfo& home, Piece* piece) {
    const std::int64_t deadline_ns = monotonic_ns() + kMakeNs;
    const std::set<std::string>& have = holders_[piece->file];
    if (have.empty())
      return ask_to_make(directory_, home, near_id(manifest_), group, choose_hosts(holders_), {}, deadline_ns, piece,
                         &failed_);
    const Status status = ask_to_pull(directory_, home, *have.begin(), near_id(manifest_), {*piece}, deadline_ns);
    // Either may be lost. A host that only has a copy can be done without.
    if (!status.ok()) failed_ = keepers_.size() > 1 ? *have.begin() : "";
    return status;
  }

  const std::string& directory_;
  const SetManifest& manifest_;
  SetPlacement placement_;
  std::map<std::string, KeeperInfo> keepers_;
  std::map<std::string, int> loads_;
  std::set<std::string> excluded_;
  FileHolders holders_;
  std::string failed_;
  std::optional<PieceProgress> progress_;
};

}  // namespace

Status rebuild_parity(const std::string& directory, SetManifest* manifest, Rebuilt* rebuilt) {
  return Rebuild(directory, manifest).run(rebuilt);
}

}  // namespace shadowib::cli
