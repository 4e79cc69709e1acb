#include "shadowib/cli/doctor_store.h"

#include <pwd.h>
#include <unistd.h>

#include <filesystem>

#include "hooks/raw/room.h"

namespace shadowib::cli {
namespace {

void add(Findings part, Findings* findings) { findings->insert(findings->end(), part.begin(), part.end()); }

std::string user_name() {
  const passwd* entry = ::getpwuid(::geteuid());
  return entry == nullptr ? "" : entry->pw_name;
}

void examine_tier(const StoreSpec& spec, const std::string& place, bool automatic, Findings* findings) {
  std::error_code error;
  findings->push_back(examine_near_place(spec, place, automatic));
  if (spec.tier != Tier::kMem) return;
  findings->push_back(judge_near_memory({host_memory(), free_memory(), memory_limit()}));
  const std::string real = std::filesystem::weakly_canonical(place, error);
  add(examine_remove_ipc("", real, ::geteuid(), user_name()), findings);
}

}  // namespace

Status examine_store(const StoreOptions& options, const Common& common, Findings* findings) {
  ChosenStore chosen;
  SHADOWIB_TRY(choose_store(options, common.directory, "", &chosen));
  if (chosen.is_central()) {
    findings->push_back({"place", Verdict::kOk, common.directory + ", the checkpoint directory: see above", ""});
    return {};
  }
  if (!chosen.automatic) {
    examine_tier(chosen.spec, chosen.place, false, findings);
    add(judge_hosts_for(chosen.spec), findings);
    return {};
  }
  std::string mem, disk;
  if (const Status status = places_of(chosen, &mem, &disk); !status.ok()) {
    findings->push_back({"place", Verdict::kRefused, status.text(), "the same directory must be on each host"});
    return {};
  }
  examine_tier({.tier = Tier::kMem}, mem, true, findings);
  examine_tier({.tier = Tier::kDisk}, disk, true, findings);
  findings->push_back({"hosts", Verdict::kNote,
                       "on one host auto means central, and stores that survive a host need several; doctor sees "
                       "this host only",
                       "run it on each host; SHADOWIB_DOMAIN names the failure domain of one, such as its rack"});
  return {};
}

}  // namespace shadowib::cli
