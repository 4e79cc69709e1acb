#include "shadowib/cli/keepers.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "hooks/job/job_directory.h"
#include "hooks/store/keeper.h"
#include "hooks/store/keeper_client.h"
#include "hooks/store/near_place.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/this_host.h"
#include "shadowib/cli/decode.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/near_sets.h"
#include "shadowib/cli/network.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/piece_progress.h"
#include "shadowib/cli/store_options.h"

namespace shadowib::cli {
namespace {

constexpr std::int64_t kStartNs = 10'000'000'000, kLookNs = 10'000'000'000, kTransferNs = 3600'000'000'000;
constexpr int kStepUs = 20000;

struct KeeperArguments {
  Common common;
  std::string job, network;
};

constexpr char kKeeperExamples[] =
    "Examples:\n"
    "  shadowib keeper demo                 on a host whose images others are to fetch\n\n"
    "checkpoint and restart start keepers where they need them. By hand one is started on a host that has images "
    "and\n"
    "runs nothing of the job, or is to take some by rebuild. It ends when the job has ended and there is no near set "
    "of\nit any more.\n";

// A process that is nobody's child, with no descriptor of this one's.
void become_keeper(const std::string& directory, const std::string& job, const std::string& network) {
  ::setsid();
  if (::fork() != 0) ::_exit(0);
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  ::close_range(3, ~0u, 0);
  if (!network.empty()) ::setenv("SHADOWIB_IB2TCP_NETWORK", network.c_str(), 1);
  ::execl("/proc/self/exe", "shadowib", "keeper", job.c_str(), "--dir", directory.c_str(), nullptr);
  ::_exit(127);
}

// Whether every host that a piece was placed on has answered.
bool all_answered(const PlacedPiece& placed, const std::map<std::string, std::string>& said) {
  return std::all_of(placed.hosts.begin(), placed.hosts.end(),
                     [&said](const PieceHost& host) { return said.contains(host.id); });
}

Status gather_image(const std::string& directory, const SetManifest& manifest, const SetMember& member,
                    PieceProgress* progress) {
  const std::int64_t end = monotonic_ns() + kLookNs;
  const PlacedPiece& placed = *manifest.placement.find(member.file);
  std::map<std::string, std::string> said;  // by host
  for (;;) {
    for (const KeeperInfo& keeper : live_keepers(directory, manifest.job)) {
      if (keeper.host == shadowib::this_host() || said.contains(keeper.host)) continue;
      progress->again();
      const Status status = fetch_pieces(directory, keeper, near_id(manifest), {piece_of(member)},
                                         monotonic_ns() + kTransferNs, progress->moved());
      if (status.ok()) {
        progress->clear();
        std::fprintf(stderr, "shadowib: fetched %s from host %s\n", member.file.c_str(), keeper.name.c_str());
        return {};
      }
      said[keeper.host] = status.text();
    }
    if (all_answered(placed, said) || monotonic_ns() >= end) break;
    ::usleep(kStepUs);
  }
  std::string hosts, words;
  for (const PieceHost& host : placed.hosts)
    if (!said.contains(host.id) && host.id != shadowib::this_host()) hosts += (hosts.empty() ? "" : ", ") + host.name;
  for (const auto& [host, text] : said) words += "; " + text;
  return Status::of(Code::kNotFound, ENOENT, "set %.70s: %.30s is on no host that answers%s%.60s%s%.130s",
                    set_name(manifest.job, manifest.number).c_str(), member.file.c_str(),
                    hosts.empty() ? "" : " (no keeper on ", hosts.c_str(), hosts.empty() ? "" : ")", words.c_str());
}

}  // namespace

Piece piece_of(const SetMember& member) { return {member.file, member.bytes, member.xxh3}; }

std::string images_text(const SetManifest& manifest, const std::vector<SetMember>& members) {
  return std::to_string(members.size()) + (members.size() == 1 ? " image of " : " images of ") + name_of(manifest);
}

std::uint64_t bytes_of(const std::vector<SetMember>& members) {
  std::uint64_t bytes = 0;
  for (const SetMember& member : members) bytes += member.bytes;
  return bytes;
}

NearSetId near_id(const SetManifest& manifest) { return {manifest.placement.place, manifest.job, manifest.set_id}; }

Status ensure_keeper(const std::string& directory, const std::string& job, const std::string& network) {
  KeeperInfo info;
  SHADOWIB_TRY(ensure_job(directory, job));
  if (find_keeper(directory, job, shadowib::this_host(), &info).ok()) return {};
  const pid_t child = ::fork();
  if (child < 0) return Status::of(Code::kIo, errno, "cannot fork: %s", std::strerror(errno));
  if (child == 0) become_keeper(directory, job, network);
  ::waitpid(child, nullptr, 0);
  for (const std::int64_t end = monotonic_ns() + kStartNs; monotonic_ns() < end; ::usleep(kStepUs))
    if (find_keeper(directory, job, shadowib::this_host(), &info).ok()) return {};
  return Status::of(Code::kTimeout, 0, "the keeper of job %.64s does not start here; run `shadowib keeper %.64s`",
                    job.c_str(), job.c_str());
}

Status gather_images(const std::string& directory, const SetManifest& manifest,
                     const std::set<std::uint32_t>& members, bool deep) {
  if (!manifest.placement.store.is_near()) return {};
  std::vector<SetMember> wanted;
  for (const SetMember& member : manifest.members) {
    std::string path;
    const PlacedPiece* placed = manifest.placement.find(member.file);
    if ((!members.empty() && !members.contains(member.index)) || placed == nullptr || placed->hosts.empty()) continue;
    if (deep ? check_piece(near_id(manifest), piece_of(member)).ok() : find_image(manifest, member, &path).ok())
      continue;
    wanted.push_back(member);
  }
  if (manifest.placement.store.has_parity()) return decode_images(directory, manifest, wanted);
  if (wanted.empty()) return {};
  PieceProgress progress("fetching " + images_text(manifest, wanted) + " from other hosts", bytes_of(wanted));
  for (const SetMember& member : wanted) {
    SHADOWIB_TRY(gather_image(directory, manifest, member, &progress));
    progress.next(member.bytes);
  }
  return {};
}

FileHolders find_holders(const std::string& directory, const SetManifest& manifest) {
  return ask_holders(directory, manifest, live_keepers(directory, manifest.job));
}

Domains find_domains(const std::string& directory, const std::string& job) {
  const std::string domain = environment("DOMAIN");
  Domains domains{{shadowib::this_host(), domain.empty() ? shadowib::this_machine() : domain}};
  for (const KeeperInfo& keeper : live_keepers(directory, job)) domains[keeper.host] = keeper.domain;
  return domains;
}

namespace {

int keeper(KeeperArguments& arguments) {
  Common& common = arguments.common;
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  if (Status s = require_directory(common); !s.ok()) return fail(common, s);
  if (arguments.network.empty()) arguments.network = environment("IB2TCP_NETWORK");
  KeeperOptions options{.directory = common.directory, .job = arguments.job, .domain = environment("DOMAIN")};
  if (!valid_job_name(options.job))
    return fail(common, Status::of(Code::kUsage, 0, "'%.100s': %s", options.job.c_str(), kJobNameRule));
  std::string key;
  if (Status s = read_job_key(options.directory, options.job, &key); !s.ok())
    return fail(common, Status::of(Code::kNotFound, ENOENT, "there is no job %.64s in %.200s", options.job.c_str(),
                                   options.directory.c_str()));
  if (Status s = choose_addresses(arguments.network, &options.addresses); !s.ok()) return fail(common, s);
  std::erase_if(options.addresses, [](const HostAddress& address) { return address.loopback; });
  options.wanted = [&options] {
    std::string who;
    if (job_alive(options.directory, options.job, &who)) return true;  // first: it reads no set
    // The job may be lost with a host, and this one be there to take what is made again.
    std::vector<ListedSet> listed;
    (void)list_sets(options.directory, &listed).ok();
    if (std::any_of(listed.begin(), listed.end(), [&options](const ListedSet& set) {
          return set.status.ok() && set.manifest.job == options.job && set.manifest.placement.store.is_near();
        }))
      return true;
    std::vector<NearSet> sets;
    for (const std::string& place : near_places(options.directory))
      (void)list_near_sets(place, options.directory, &sets).ok();
    return std::any_of(sets.begin(), sets.end(), [&options](const NearSet& set) { return set.job == options.job; });
  };
  options.collect = [&options](bool dry_run, std::vector<std::string>* removed) {
    return collect_near_images(options.directory, options.job, dry_run, removed);
  };
  if (Status s = run_keeper(options); !s.ok()) return fail(common, s);
  return 0;
}

}  // namespace

void add_keeper(Command& program) {
  auto arguments = std::make_shared<KeeperArguments>();
  Command* command = program.add_subcommand("keeper", "Give this host's images of a job to others, and take copies");
  command->add_option("J", arguments->job, "The job")->required()->not_empty("a job")->completed_by(kJobNames);
  add_network(command, &arguments->network);
  add_common(command, &arguments->common);
  command->footer(kKeeperExamples);
  command->callback([arguments] { return keeper(*arguments); });
}

}  // namespace shadowib::cli
