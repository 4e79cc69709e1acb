#include "shadowib/cli/redundancy.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>

#include "hooks/job/job_directory.h"
#include "hooks/store/keeper_client.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/this_host.h"
#include "shadowib/cli/ask_at_once.h"
#include "shadowib/cli/sets.h"
#include "shadowib/cli/survival.h"

namespace shadowib::cli {
namespace {

// What hosts have of a set.
class Look {
 public:
  Look(const std::string& directory, const SetManifest& manifest) : directory_(directory), manifest_(manifest) {
    for (const SetMember& member : manifest.members) pieces_.push_back(piece_of(member));
    for (const ParityGroup& group : manifest.placement.groups)
      for (const ParityGroup::Host& host : group.hosts) pieces_.push_back(host.parity);
    for (const PlacedPiece& piece : manifest.placement.pieces)
      for (const PieceHost& host : piece.hosts) silent_[host.id] = host.name;
  }

  void ask(std::int64_t deadline_ns) {
    std::mutex mutex;
    const std::vector<KeeperInfo> keepers = live_keepers(directory_, manifest_.job);
    for (const KeeperInfo& keeper : keepers) silent_[keeper.host] = keeper.name;
    ask_at_once(keepers, [&](const KeeperInfo& keeper) {
      std::set<std::string> there;
      const Status status = ask_what_is_there(directory_, keeper, near_id(manifest_), pieces_, deadline_ns, &there);
      const std::lock_guard guard(mutex);
      if (status.ok()) silent_.erase(keeper.host);
      for (const std::string& file : there) holders_[file].insert(keeper.host);
    });
    silent_.erase(shadowib::this_host());  // with or without a keeper
    for (const Piece& piece : pieces_)
      if (has_piece(near_id(manifest_), piece)) holders_[piece.file].insert(shadowib::this_host());
  }

  Redundancy judge() const {
    return judge_redundancy(manifest_, holders_, find_domains(directory_, manifest_.job), silent_.empty());
  }
  const std::map<std::string, std::string>& silent() const { return silent_; }

 private:
  const std::string& directory_;
  const SetManifest& manifest_;
  std::vector<Piece> pieces_;
  FileHolders holders_;
  std::map<std::string, std::string> silent_;  // names by host: hosts that have not answered
};

Json to_json(const SetManifest& manifest, const Look& look, const Redundancy& redundancy) {
  Json silent = Json::array();
  for (const auto& [host, name] : look.silent()) silent.push_back(name);
  return {{"set", name_of(manifest)},
          {"store", manifest.placement.store.text()},
          {"state", state_name(redundancy.state)},
          {"promised", survival_of(manifest.placement.store).hosts},
          {"survives", std::max(redundancy.survives, 0)},
          {"per", is_per_group(manifest.placement) ? "group" : "set"},
          {"pieces", redundancy.pieces},
          {"missing", redundancy.missing},
          {"no_answer", silent}};
}

}  // namespace

Json look_at_redundancy(const std::string& directory, const std::string& job, std::int64_t wait_ns) {
  const std::int64_t deadline_ns = monotonic_ns() + wait_ns;
  for (;;) {
    SetManifest manifest;
    const std::string name = newest_set(directory, job);
    if (name.empty()) return {};
    const bool is_there = read_manifest(sets_path(directory) + "/" + name, &manifest).ok();
    if (is_there && !manifest.placement.store.is_redundant()) return {};
    Look look(directory, manifest);
    if (is_there) look.ask(deadline_ns);
    const Redundancy redundancy = look.judge();
    // Of a set that a checkpoint has replaced and removed meanwhile, pieces are missing.
    const bool replaced = redundancy.state != Redundancy::State::kWhole && newest_set(directory, job) != name;
    if (replaced && monotonic_ns() < deadline_ns) continue;
    return is_there && !replaced ? to_json(manifest, look, redundancy) : Json();
  }
}

void print_redundancy(const Json& json) {
  const std::string state = json["state"].get<std::string>();
  const std::string survives = losses_text(json["survives"].get<int>(), json["per"].get<std::string>() == "group");
  std::printf("newest set %s: ", json["set"].get<std::string>().c_str());
  if (state == state_name(Redundancy::State::kWhole)) {
    std::printf("all copies and parities are there; it survives the loss of %s\n", survives.c_str());
    return;
  }
  std::string silent;
  for (const Json& name : json["no_answer"]) silent += (silent.empty() ? "" : ", ") + name.get<std::string>();
  std::printf("%zu of %zu copies and parities are ", json["missing"].get<std::size_t>(),
              json["pieces"].get<std::size_t>());
  if (state == state_name(Redundancy::State::kNotKnown))
    std::printf("not known, since no keeper answers on %s; by the others it survives the loss of %s\n",
                silent.c_str(), survives.c_str());
  else if (state == state_name(Redundancy::State::kLost))
    std::printf("missing, and an image cannot be had; `shadowib verify` names it\n");
  else
    std::printf("missing; it survives the loss of %s, until `shadowib rebuild`\n", survives.c_str());
}

}  // namespace shadowib::cli
