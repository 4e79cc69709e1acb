// shadowib rebuild: makes the copies and parities of a set again that were lost with a host.
#include "shadowib/cli/rebuild.h"

#include <map>
#include <memory>
#include <optional>
#include <set>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/job/job_directory.h"
#include "hooks/store/keeper_client.h"
#include "hooks/store/mirror.h"
#include "shadowib/base/lock.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/far_turns.h"
#include "shadowib/cli/keepers.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/piece_progress.h"
#include "shadowib/cli/sets.h"
#include "shadowib/cli/survival.h"

namespace shadowib::cli {
namespace {

constexpr std::int64_t kCopyNs = 3600'000'000'000;

struct RebuildArguments {
  Common common;
  std::string set;
};

constexpr char kRebuildExamples[] =
    "Examples:\n"
    "  shadowib rebuild demo                the newest set of job demo\n"
    "  shadowib rebuild demo.0003\n\n"
    "Asks the job's keepers which images they have. Each image that is on one host only is copied; with xor and "
    "rs:M\n"
    "lost images and parities are made from what is left. Start `shadowib keeper J` on a host that is to take part "
    "and\n"
    "runs nothing of the job. Nothing is removed or replaced.\n";

std::string hosts_text(int hosts) { return hosts == 1 ? "a host" : "any " + std::to_string(hosts) + " hosts"; }

// Hosts of a piece as the placement has them, with names.
std::vector<PieceHost> named(const std::set<std::string>& holders, const std::map<std::string, KeeperInfo>& keepers) {
  std::vector<PieceHost> hosts;
  for (const std::string& holder : holders) hosts.push_back({holder, keepers.at(holder).name});
  return hosts;
}

std::size_t count_domains(const std::set<std::string>& hosts, const Domains& domains) {
  std::set<std::string> apart;
  for (const std::string& host : hosts) apart.insert(domains.at(host));
  return apart.size();
}

Status rebuild_set(const std::string& directory, SetManifest* manifest, Rebuilt* rebuilt) {
  if (!manifest->placement.store.is_redundant())
    return Status::of(Code::kUsage, EINVAL, "set %.200s has store %s, which has no copies and no parities",
                      manifest->path.c_str(), manifest->placement.store.text().c_str());
  SHADOWIB_TRY(ensure_keeper(directory, manifest->job));
  if (manifest->placement.store.has_parity()) return rebuild_parity(directory, manifest, rebuilt);
  FileHolders holders = find_holders(directory, *manifest);
  std::map<std::string, KeeperInfo> keepers;
  Domains domains;
  std::map<std::string, int> loads;
  for (const KeeperInfo& keeper : live_keepers(directory, manifest->job)) {
    keepers[keeper.host] = keeper;
    domains[keeper.host] = keeper.domain;
  }
  for (const auto& [file, hosts] : holders)
    for (const std::string& host : hosts) ++loads[host];
  const NearSetId set{manifest->placement.place, manifest->job, manifest->set_id};
  SetPlacement placement = manifest->placement;
  std::vector<SetMember> lone;
  for (const SetMember& member : manifest->members) {
    std::set<std::string>& have = holders[member.file];
    std::erase_if(have, [&keepers](const std::string& host) { return !keepers.contains(host); });
    if (count_domains(have, domains) < kMirrorCopies) lone.push_back(member);
  }
  std::optional<PieceProgress> progress;
  if (!lone.empty()) progress.emplace("copying " + images_text(*manifest, lone), bytes_of(lone));
  for (const SetMember& member : manifest->members) {
    std::set<std::string>& have = holders[member.file];
    if (have.empty())
      return Status::of(Code::kNotFound, ENOENT, "set %.70s: %.30s is on no host that answers; restart an older set",
                        set_name(manifest->job, manifest->number).c_str(), member.file.c_str());
    if (count_domains(have, domains) < kMirrorCopies) {
      const std::string to = find_partner(domains, have, loads);
      if (to.empty())
        return Status::of(
            Code::kNotFound, 0,
            "%.30s is on host %.60s only, and no keeper runs in another failure domain; start one there "
            "with `shadowib keeper %.64s`",
            member.file.c_str(), keepers.at(*have.begin()).name.c_str(), manifest->job.c_str());
      SHADOWIB_TRY(ask_to_pull(directory, keepers.at(to), *have.begin(), set,
                               {{member.file, member.bytes, member.xxh3}}, monotonic_ns() + kCopyNs));
      have.insert(to);
      ++loads[to];
      ++rebuilt->copied;
      progress->next(member.bytes);
    }
    ++rebuilt->whole;
    for (PlacedPiece& piece : placement.pieces)
      if (piece.file == member.file) piece.hosts = named(have, keepers);
  }
  return open_store_of(manifest->path)->replace(manifest->path, kPlacementFile, encode_placement(placement));
}

int rebuild(RebuildArguments& arguments) {
  Common& common = arguments.common;
  std::string path;
  SetLease lease;  // a flush has images for a moment only: they are no copies
  SetManifest manifest;
  Rebuilt rebuilt;
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  if (Status s = choose_set(&common, arguments.set, &path); !s.ok()) return fail(common, s);
  if (Status s = lease.take(path); !s.ok()) return fail(common, s);
  if (Status s = read_manifest(path, &manifest); !s.ok()) return fail(common, s);
  if (Status s = rebuild_set(common.directory, &manifest, &rebuilt); !s.ok()) return fail(common, s);
  if (common.json)
    print_json({{"set", manifest.path}, {"copied", rebuilt.copied}, {"images", rebuilt.whole}});
  else
    std::printf("%s: %zu of %zu %s; it survives the loss of %s\n", manifest.path.c_str(), rebuilt.copied,
                rebuilt.whole,
                manifest.placement.store.has_parity() ? "images and parities made again" : "images copied",
                hosts_text(survival_of(manifest.placement.store).hosts).c_str());
  return 0;
}

}  // namespace

void add_rebuild(Command& program) {
  auto arguments = std::make_shared<RebuildArguments>();
  Command* command = program.add_subcommand("rebuild", "Make lost copies and parities of a set again");
  command
      ->add_option("SET", arguments->set,
                   "The set: its path, its name as `shadowib list` shows it, or a\njob, which stands for its newest "
                   "set")
      ->required()
      ->completed_by(kSetNames)
      ->not_empty("a set");
  add_common(command, &arguments->common);
  command->footer(kRebuildExamples);
  command->callback([arguments] { return rebuild(*arguments); });
}

}  // namespace shadowib::cli
