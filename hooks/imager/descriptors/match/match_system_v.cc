// System V semaphores and queues: whose they are, over all members of a set.
#include <algorithm>

#include "hooks/imager/descriptors/match/match.h"

namespace shadowib::descriptors {
namespace {

std::string key_of(const Table& table, const char* what, std::uint64_t space, std::int32_t id) {
  return table.kernel + what + std::to_string(space) + " " + std::to_string(id);
}

// A process that uses what a member uses has to be in the set, too.
Status judge_user(const Tables& tables, const Table& member, std::int32_t user, const std::string& what) {
  const bool known = user == 0 || std::any_of(tables.begin(), tables.end(), [&](const auto& entry) {
                       return entry.second.kernel == member.kernel && entry.second.processes == member.processes &&
                              entry.second.pid == user;
                     });
  if (known) return {};
  return Status::of(Code::kRefused, 0,
                    "%s of pid %d, member %u, cannot be checkpointed: process %d uses it too and is no member of the "
                    "job; run it in the job, or let it end first",
                    what.c_str(), member.pid, member.member, user);
}

template <typename T>
Status judge_holders(const SystemVHolders<T>& all, std::string (*describe)(const T&)) {
  for (const auto& [key, holders] : all)
    for (const auto& [table, object] : holders)
      SHADOWIB_TRY(judge_id_holders(*holders.front().first, *table, describe(*object)));
  return {};
}

}  // namespace

Status judge_id_holders(const Table& first, const Table& other, const std::string& what) {
  if (first.processes == other.processes) return {};
  return Status::of(
      Code::kRefused, 0,
      "members %u and %u share %s and are in different pid namespaces, where a restart could not give it "
      "to both; run them in one pid namespace, or each with an IPC namespace of its own. If it is not the "
      "job's, remove it (ipcrm)",
      first.member, other.member, what.c_str());
}

Status judge_pid_namespaces(const SystemVObjects& all) {
  SHADOWIB_TRY(judge_holders(all.semaphores, describe_semaphores));
  return judge_holders(all.queues, describe_queue);
}

SystemVObjects collect_system_v(const Tables& tables) {
  SystemVObjects all;
  for (const auto& [member, table] : tables) {
    for (const SemaphoreSet& s : table.semaphores)
      all.semaphores[key_of(table, " sem ", s.space, s.id)].push_back({&table, &s});
    for (const MessageQueue& q : table.queues)
      all.queues[key_of(table, " msg ", q.space, q.id)].push_back({&table, &q});
  }
  return all;
}

Status judge_system_v(const Tables& tables) {
  for (const auto& [member, table] : tables) {
    for (const SemaphoreSet& s : table.semaphores)
      for (const Semaphore& one : s.semaphores)
        SHADOWIB_TRY(judge_user(tables, table, one.user, describe_semaphores(s)));
    for (const MessageQueue& q : table.queues)
      for (const std::int32_t user : {q.sender, q.receiver})
        SHADOWIB_TRY(judge_user(tables, table, user, describe_queue(q)));
  }
  return judge_pid_namespaces(collect_system_v(tables));
}

}  // namespace shadowib::descriptors
