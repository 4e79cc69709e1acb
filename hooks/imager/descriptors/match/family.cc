#include "hooks/imager/descriptors/match/family.h"

#include <cerrno>

#include "hooks/imager/bonds.h"
#include "hooks/imager/descriptors/capture/refuse.h"

namespace shadowib::descriptors {
namespace {

bool share_numbers(const Table& one, const Table& other) {
  return one.kernel == other.kernel && one.processes == other.processes;
}

const Table* find_member(const Tables& tables, const Table& of_the_same, std::int32_t pid) {
  for (const auto& [member, table] : tables)
    if (table.pid == pid && share_numbers(table, of_the_same)) return &table;
  return nullptr;
}

Status judge_ended(const Tables& tables, const Table& parent, const Child& child) {
  for (const auto& [member, table] : tables)
    if (share_numbers(table, parent) && table.session == child.pid)
      return refuse_child(parent, child, "it has ended and led the session of members; call wait() for it");
  return find_member(tables, parent, child.pid) == nullptr
             ? Status()
             : Status::of(Code::kCorrupt, 0, "process %d has ended, and is a member", child.pid);
}

Status judge_living(const Tables& tables, const Table& parent, const Child& child) {
  const Table* const table = find_member(tables, parent, child.pid);
  if (table == nullptr)
    return refuse_child(
        parent, child,
        "it is no member of the job; wait for it to end; run --join-children lets programs that it starts join",
        EAGAIN);
  if (parent_of(tables, *table) != &parent)
    return Status::of(Code::kCorrupt, 0, "process %d is the child of two members", child.pid);
  if (table->session != parent.session && table->session != table->pid)
    return refuse_child(parent, child, "it is in a session that is neither its parent's nor its own");
  std::size_t steps = 0;
  for (const Table* at = table; at != nullptr; at = parent_of(tables, *at))
    if (++steps > tables.size())
      return Status::of(Code::kCorrupt, 0, "process %d is a descendant of its own", child.pid);
  return {};
}

// Whether a process of that number was the member's fellow: then nobody can stand in for it.
bool is_of_the_job(const Tables& tables, const Table& like, std::int32_t pid) {
  for (const auto& [member, table] : tables)
    for (const Child& child : table.children)
      if (child.ended != 0 && child.pid == pid && share_numbers(table, like)) return true;
  return find_member(tables, like, pid) != nullptr;
}

// Whether it is there to make the member's process group again, in the member's session.
bool leads_group_of(const Tables& tables, const Table& member) {
  for (const auto& [number, table] : tables) {
    if (!share_numbers(table, member) || table.session != member.session) continue;
    if (table.pid == member.group && table.group == member.group) return true;
    for (const Child& child : table.children)
      if (child.ended != 0 && child.pid == member.group && child.group == child.pid &&
          child.session == member.session)
        return true;
  }
  return false;
}

Status refuse_member(const Table& table, const char* why) {
  return Status::of(Code::kRefused, 0,
                    "pid %d, member %u, cannot be checkpointed: the leader of its process group %d %s", table.pid,
                    table.member, table.group, why);
}

// Groups, and what is in sessions that children have made: they make it again, so those in there have to be theirs.
Status judge_place(const Tables& tables, const Table& table) {
  if (table.group <= 1) return {};
  const bool led = leads_group_of(tables, table);
  if (!led && is_of_the_job(tables, table, table.group))
    return refuse_member(table, "is in another group or session by now");
  const Table* const leader = find_member(tables, table, table.session);
  if (leader == nullptr || leader->session != leader->pid || parent_of(tables, *leader) == nullptr) return {};
  if (!led) return refuse_member(table, "is no member of the job, in a session that a child of a member has made");
  if (parent_of(tables, table) != nullptr) return {};
  return Status::of(
      Code::kRefused, 0,
      "pid %d, member %u, cannot be checkpointed: it is in the session that pid %d, a member's child, has "
      "made, and its own parent is no member of the job",
      table.pid, table.member, leader->pid);
}

}  // namespace

const Table* parent_of(const Tables& tables, const Table& table) {
  for (const auto& [member, other] : tables) {
    if (!share_numbers(other, table)) continue;
    for (const Child& child : other.children)
      if (child.pid == table.pid && child.ended == 0) return &other;
  }
  return nullptr;
}

Status judge_families(const Tables& tables) {
  for (const auto& [member, table] : tables)
    for (const Child& child : table.children)
      SHADOWIB_TRY(child.ended != 0 ? judge_ended(tables, table, child) : judge_living(tables, table, child));
  for (const auto& [member, table] : tables) SHADOWIB_TRY(judge_place(tables, table));
  return {};
}

}  // namespace shadowib::descriptors

namespace shadowib {

Status find_family_bonds(const std::map<std::uint32_t, std::string>& encoded, const BondSink& sink) {
  using descriptors::Table;
  descriptors::Tables tables;
  SHADOWIB_TRY(descriptors::decode_tables(encoded, &tables));
  for (const auto& [member, child] : tables) {
    const Table* const parent = descriptors::parent_of(tables, child);
    if (parent == nullptr) continue;
    sink({child.member, parent->member, [&child = child, parent] {
            return Status::of(
                Code::kRefused, 0,
                "member %u (pid %d) is a child of member %u (pid %d): they have to be restarted together, on one "
                "machine",
                child.member, child.pid, parent->member, parent->pid);
          }});
  }
  return {};
}

}  // namespace shadowib
