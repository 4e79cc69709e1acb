#include "hooks/command/copies.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "hooks/raw/tasks.h"
#include "hooks/store/keeper_client.h"
#include "hooks/store/parity_layout.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

constexpr int kKeeperStepMs = 20;
constexpr std::int64_t kKeeperNs = 10'000'000'000, kDropNs = 5'000'000'000;

struct Transfer {
  std::string from, to;
  std::vector<Piece> pieces;
  Status status;
  KeeperInfo taker;
};

std::vector<Transfer> plan_transfers(const SetManifest& manifest, const NearHosts& hosts,
                                     const std::map<std::string, std::string>& partners) {
  std::vector<Transfer> transfers;
  for (const auto& [from, to] : partners) {
    Transfer transfer{.from = from, .to = to};
    for (const SetMember& member : manifest.members)
      if (hosts.host_of.at(member.index) == from) transfer.pieces.push_back({member.file, member.bytes, member.xxh3});
    if (!transfer.pieces.empty()) transfers.push_back(std::move(transfer));
  }
  return transfers;
}

}  // namespace

Status await_keeper(const std::string& directory, const std::string& job, const std::string& host,
                    std::int64_t deadline_ns, KeeperInfo* info) {
  const std::int64_t end = std::min(deadline_ns, monotonic_ns() + kKeeperNs);
  for (;;) {
    const Status status = find_keeper(directory, job, host, info);
    if (status.code() != Code::kNotFound) return status;
    if (monotonic_ns() >= end)
      return Status::of(Code::kTimeout, 0,
                        "the keeper of host %.60s does not start; try `shadowib keeper %.64s` there", host.c_str(),
                        job.c_str());
    raw_sleep_ms(kKeeperStepMs);
  }
}

Status check_hosts(const StoreSpec& store, const NearHosts& hosts) {
  std::map<std::string, std::string> partners;
  std::vector<std::vector<std::string>> groups;
  if (store.has_copies()) return plan_mirror(hosts.domains, &partners);
  return store.has_parity() ? plan_groups(hosts.domains, store.parities, &groups) : Status();
}

Status make_copies(const std::string& directory, const NearHosts& hosts, std::int64_t deadline_ns,
                   SetManifest* manifest) {
  std::map<std::string, std::string> partners;
  SHADOWIB_TRY(plan_mirror(hosts.domains, &partners));
  std::vector<Transfer> transfers = plan_transfers(*manifest, hosts, partners);
  const NearSetId set{manifest->placement.place, manifest->job, manifest->set_id};
  std::vector<std::thread> threads;
  for (Transfer& transfer : transfers)
    threads.emplace_back([&, deadline_ns] {
      KeeperInfo giver;
      transfer.status = await_keeper(directory, set.job, transfer.from, deadline_ns, &giver);
      if (transfer.status.ok())
        transfer.status = await_keeper(directory, set.job, transfer.to, deadline_ns, &transfer.taker);
      if (transfer.status.ok())
        transfer.status = ask_to_pull(directory, transfer.taker, transfer.from, set, transfer.pieces, deadline_ns);
    });
  for (std::thread& thread : threads) thread.join();
  std::map<std::string, const Transfer*> by_file;
  for (const Transfer& transfer : transfers) {
    if (!transfer.status.ok())
      return Status::of(transfer.status.code(), transfer.status.error(), "no copy of %.60s: %.280s",
                        transfer.pieces.front().file.c_str(), transfer.status.text());
    for (const Piece& piece : transfer.pieces) by_file[piece.file] = &transfer;
  }
  for (PlacedPiece& placed : manifest->placement.pieces)
    if (const auto at = by_file.find(placed.file); at != by_file.end())
      placed.hosts.push_back({at->second->to, at->second->taker.name});
  return {};
}

void drop_copies(const std::string& directory, const std::string& job, const std::string& place,
                 const std::string& set_id) {
  for (const KeeperInfo& keeper : live_keepers(directory, job))
    (void)ask_to_drop(directory, keeper, {place, job, set_id}, monotonic_ns() + kDropNs).ok();
}

}  // namespace shadowib
