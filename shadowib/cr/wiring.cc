#include "shadowib/cr/wiring.h"

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "hooks/agent/agent.h"
#include "hooks/agent/own_cluster.h"
#include "hooks/job/protocol.h"
#include "shadowib/base/lasting.h"
#include "shadowib/base/lock.h"
#include "shadowib/cr/published_ids.h"

namespace shadowib {
namespace {

// Addresses that lead to members that were looked at, for the epoch: an address stays a process's own.
struct Known {
  SpinLock lock;
  std::string epoch SHADOWIB_GUARDED_BY(lock);
  std::set<std::string> addresses SHADOWIB_GUARDED_BY(lock);
};
Known& known() { return Lasting<Known>::get(); }

bool is_known(const std::string& address) {
  Known& k = known();
  SpinGuard guard(k.lock);
  if (k.epoch != job_info().epoch) k.addresses.clear(), k.epoch = job_info().epoch;
  return k.addresses.contains(address);
}

void note_known(const std::string& address) {
  Known& k = known();
  SpinGuard guard(k.lock);
  k.addresses.insert(address);
}

Status note_member(const std::string& member) {
  std::string text;
  bool found = false;
  Fields fields;
  const auto index = static_cast<std::uint32_t>(std::strtoul(member.c_str(), nullptr, 10));
  SHADOWIB_TRY(job_exchange()->get(member_key(job_info().epoch, index), &text, &found));
  if (!found || !decode_fields(text, &fields) || field_text(fields, "cluster").empty()) return {};
  return note_wired(static_cast<unsigned>(field_number(fields, "cluster_index")));
}

}  // namespace

Status note_wiring(const RemoteEnd& remote) {
  if (!is_in_cluster()) return {};
  const std::string address = remote.lid.value != 0 ? address_key(remote.lid) : address_key(remote.gid);
  if (is_known(address)) return {};
  std::vector<std::string> members;
  SHADOWIB_TRY(job_exchange()->list(address, &members));
  for (const std::string& member : members) SHADOWIB_TRY(note_member(member));
  if (!members.empty()) note_known(address);
  return {};
}

}  // namespace shadowib
