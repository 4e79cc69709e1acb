#include "shadowib/cli/supervise/lives.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <tuple>
#include <vector>

#include "hooks/job/protocol.h"
#include "hooks/store/files.h"
#include "shadowib/base/processes.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/supervise/processes.h"

namespace shadowib::cli {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() && text.size() <= 9 && text.find_first_not_of("0123456789") == std::string::npos;
}

bool is_here(const MemberRecord& record) { return record.host == host_name(); }

// The process of a member whose lock is free: it has executed another program, which is no member.
bool goes_on_elsewhere(const MemberRecord& record) {
  return is_here(record) && record.start_time != 0 && process_start_time(record.pid) == record.start_time;
}

// `members` in the order of their indices: a process has several if it has executed another program.
void note_later_members(std::vector<MemberLife>* members) {
  std::set<std::tuple<std::uint64_t, std::uint64_t, std::string>> later;
  for (auto member = members->rbegin(); member != members->rend(); ++member) {
    const MemberRecord& record = member->record;
    if (!record.joined || record.start_time == 0) continue;
    member->is_later_member = !later.emplace(record.pid, record.start_time, record.host).second;
    if (member->is_later_member && member->state == MemberLife::kDied) member->state = MemberLife::kLeft;
  }
}

int list_locks(const JobPaths& paths, std::vector<std::string>* names) {
  names->clear();
  const int error = system_files().list(paths.alive, names);
  std::sort(names->begin(), names->end());
  return error;
}

Status look_once(const std::string& directory, const std::string& job, std::vector<std::string>* names,
                 Lives* lives) {
  *lives = {};
  lives->epoch = present_epoch(directory, job);
  const JobPaths paths = job_paths(directory, job);
  const int error = list_locks(paths, names);
  if (error == ENOENT) return {};
  if (error != 0) return file_error(error, "read", paths.alive);
  for (const std::string& name : *names) {
    if (is_guest_lock(name)) continue;  // guests come and go as they like
    const std::string path = paths.alive + "/" + name;
    const bool ours = !lives->epoch.empty() && name.starts_with(lives->epoch + ".");
    const std::string who = ours ? name.substr(lives->epoch.size() + 1) : "";
    const bool held = is_alive(path);
    if (!is_number(who)) {
      if (held) lives->other = name;
      continue;
    }
    MemberLife member{static_cast<std::uint32_t>(std::strtoul(who.c_str(), nullptr, 10)), MemberLife::kAlive,
                      read_member_record(path)};
    if (!held && !member.record.joined) continue;  // nobody's: who came so far was no member yet
    if (!held)
      member.state = member.record.left || goes_on_elsewhere(member.record) ? MemberLife::kLeft : MemberLife::kDied;
    lives->members.push_back(member);
  }
  std::sort(lives->members.begin(), lives->members.end(), [](auto& a, auto& b) { return a.index < b.index; });
  note_later_members(&lives->members);
  return {};
}

}  // namespace

std::string Lives::name_of(const MemberLife& member) const {
  return epoch + "." + std::to_string(member.index) + "." + std::to_string(member.record.pid) + "." +
         std::to_string(member.record.start_time);
}

bool Lives::any_alive() const {
  return std::any_of(members.begin(), members.end(), [](const auto& m) { return m.state == MemberLife::kAlive; });
}

const MemberLife* Lives::first_dead(const std::set<std::string>& known) const {
  for (const MemberLife& member : members)
    if (member.state == MemberLife::kDied && !known.contains(name_of(member))) return &member;
  return nullptr;
}

int Lives::exit_status() const {
  int status = 0;
  for (const MemberLife& member : members) {
    if (member.is_later_member) continue;
    if (member.state != MemberLife::kLeft || member.record.status < 0) return -1;
    if (status == 0) status = member.record.status;
  }
  return members.empty() ? -1 : status;
}

std::set<std::string> Lives::dead() const {
  std::set<std::string> names;
  for (const MemberLife& member : members)
    if (member.state == MemberLife::kDied) names.insert(name_of(member));
  return names;
}

std::set<std::string> Lives::elsewhere() const {
  std::set<std::string> names;
  for (const MemberLife& member : members)
    if (member.state == MemberLife::kLeft && !member.record.left) names.insert(name_of(member));
  return names;
}

Status look_who_lives(const std::string& directory, const std::string& job, Lives* lives) {
  constexpr int kMostLooks = 10;
  std::vector<std::string> names, now;
  for (int look = 0; look < kMostLooks; ++look) {
    SHADOWIB_TRY(look_once(directory, job, &names, lives));
    if (lives->dead().empty()) break;
    // Who is dead may have joined again, after the list was made and before it ended: as what it had executed.
    if (list_locks(job_paths(directory, job), &now) != 0 || now == names) break;
  }
  return {};
}

std::string describe_life(const MemberLife& member) {
  std::string text = "member " + std::to_string(member.index);
  if (member.record.joined) text += " (pid " + std::to_string(member.record.pid) + " on " + member.record.host + ")";
  return text;
}

std::string describe_standing(const MemberLife& member) {
  if (!is_here(member.record) || process_start_time(member.record.pid) != member.record.start_time) return {};
  return describe_state(process_stat(member.record.pid).state);
}

}  // namespace shadowib::cli
