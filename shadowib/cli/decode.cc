#include "shadowib/cli/decode.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "hooks/job/job_directory.h"
#include "hooks/job/phase.h"
#include "hooks/store/keeper_client.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/this_host.h"
#include "shadowib/cli/ask_at_once.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/piece_progress.h"

namespace shadowib::cli {
namespace {

constexpr std::int64_t kKeepersNs = 10'000'000'000, kPieceNs = 3600'000'000'000;
constexpr int kLookAgainUs = 20000;

// Asks keepers until all that is wanted can be had, or nobody is left to ask.
class Survey {
 public:
  Survey(const std::string& directory, const SetManifest& manifest) : directory_(directory), manifest_(manifest) {}

  Status look_for(const std::vector<SetMember>& wanted) {
    for (const std::int64_t end = monotonic_ns() + kKeepersNs;;) {
      ask_new();
      const Status status = check(wanted);
      if (status.ok() || monotonic_ns() >= end) return status;
      if (absent().empty()) return status;
      ::usleep(kLookAgainUs);
    }
  }

  FileHolders& holders() { return holders_; }

 private:
  void ask_new() {
    std::vector<KeeperInfo> fresh;
    for (const KeeperInfo& keeper : live_keepers(directory_, manifest_.job))
      if (asked_.insert(keeper.host).second) fresh.push_back(keeper);
    for (const auto& [file, hosts] : ask_holders(directory_, manifest_, fresh))
      holders_[file].insert(hosts.begin(), hosts.end());
  }

  // Names of hosts that the set was placed on, and that have not answered.
  std::string absent() const {
    std::set<std::string> names;
    for (const PlacedPiece& piece : manifest_.placement.pieces)
      for (const PieceHost& host : piece.hosts)
        if (!asked_.contains(host.id)) names.insert(host.name);
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
  }

  Status check(const std::vector<SetMember>& wanted) const {
    for (const SetMember& member : wanted) {
      const ParityGroup* group = manifest_.placement.group_of(member.file);
      const Status status = group != nullptr
                                ? check_available(*group, member.file, holders_)
                                : Status(Code::kCorrupt, 0, "it is in no group of hosts; the set was altered");
      if (status.ok()) continue;
      const std::string hosts = absent();
      return Status::of(status.code(), status.error(), "set %.70s: %.30s is lost: %.130s%s%.60s%s",
                        set_name(manifest_.job, manifest_.number).c_str(), member.file.c_str(), status.text(),
                        hosts.empty() ? "" : " (no keeper on ", hosts.c_str(), hosts.empty() ? "" : ")");
    }
    return {};
  }

  const std::string& directory_;
  const SetManifest& manifest_;
  std::set<std::string> asked_;
  FileHolders holders_;
};

// *failed: the host whose fault it is.
Status bring(const std::string& directory, const SetManifest& manifest, const SetMember& member,
             const FileHolders& holders, PieceProgress* progress, std::string* failed) {
  const std::int64_t deadline_ns = monotonic_ns() + kPieceNs;
  const auto at = holders.find(member.file);
  Piece piece = piece_of(member);
  progress->again();
  if (at == holders.end() || at->second.empty()) {
    SHADOWIB_TRY(make_piece(directory, near_id(manifest), *manifest.placement.group_of(member.file),
                            choose_hosts(holders), {}, deadline_ns, &piece, failed, progress->moved()));
    progress->clear();
    std::fprintf(stderr, "shadowib: decoded %s from what is left on other hosts\n", member.file.c_str());
    return {};
  }
  KeeperInfo keeper;
  *failed = *at->second.begin();
  SHADOWIB_TRY(find_keeper(directory, manifest.job, *failed, &keeper));
  SHADOWIB_TRY(fetch_pieces(directory, keeper, near_id(manifest), {piece}, deadline_ns, progress->moved()));
  progress->clear();
  std::fprintf(stderr, "shadowib: fetched %s from host %s\n", member.file.c_str(), keeper.name.c_str());
  return {};
}

}  // namespace

FileHolders ask_holders(const std::string& directory, const SetManifest& manifest,
                        const std::vector<KeeperInfo>& keepers) {
  FileHolders holders;
  std::vector<Piece> pieces;
  std::mutex mutex;
  for (const SetMember& member : manifest.members) pieces.push_back(piece_of(member));
  for (const ParityGroup& group : manifest.placement.groups)
    for (const ParityGroup::Host& host : group.hosts) pieces.push_back(host.parity);
  if (keepers.empty()) return holders;
  std::size_t answered = 0;
  Progress progress;  // they read every byte
  progress.step("asking hosts what they have of " + name_of(manifest));
  progress.count(0, keepers.size());
  ask_at_once(keepers, [&](const KeeperInfo& keeper) {
    std::set<std::string> good;
    const Status status =
        ask_what_is_good(directory, keeper, near_id(manifest), pieces, monotonic_ns() + kPieceNs, &good);
    const std::lock_guard guard(mutex);
    if (!status.ok()) {
      progress.clear();
      std::fprintf(stderr, "shadowib: left out: %s\n", status.text());
    }
    progress.count(++answered, keepers.size());
    for (const std::string& file : good) holders[file].insert(keeper.host);
  });
  return holders;
}

PieceHosts choose_hosts(const FileHolders& holders) {
  PieceHosts hosts;
  for (const auto& [file, of_file] : holders)
    if (!of_file.empty()) hosts[file] = *of_file.begin();
  return hosts;
}

Status check_available(const ParityGroup& group, const std::string& file, const FileHolders& holders) {
  std::vector<Stretch> stretches;
  const Present present = [&holders](const std::string& piece) {
    const auto at = holders.find(piece);
    return at != holders.end() && !at->second.empty();
  };
  return present(file) ? Status() : plan_piece(group, file, present, &stretches);
}

void forget_host(const std::string& host, FileHolders* holders) {
  for (auto& [file, hosts] : *holders) hosts.erase(host);
}

Status decode_images(const std::string& directory, const SetManifest& manifest,
                     const std::vector<SetMember>& wanted) {
  if (wanted.empty()) return {};
  Survey survey(directory, manifest);
  SHADOWIB_TRY(survey.look_for(wanted));
  SHADOWIB_TRY(fault_point(Phase::kSurveyed));
  PieceProgress progress("fetching and decoding " + images_text(manifest, wanted), bytes_of(wanted));
  for (const SetMember& member : wanted) {
    for (;;) {
      std::string failed;
      const Status status = bring(directory, manifest, member, survey.holders(), &progress, &failed);
      if (status.ok()) break;
      if (failed.empty()) return status;
      progress.clear();
      std::fprintf(stderr, "shadowib: %s: %s; trying without that host\n", member.file.c_str(), status.text());
      forget_host(failed, &survey.holders());
      SHADOWIB_TRY(survey.look_for(wanted));
    }
    progress.next(member.bytes);
  }
  return {};
}

}  // namespace shadowib::cli
