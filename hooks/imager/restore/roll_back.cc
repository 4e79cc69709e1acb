#include "hooks/imager/restore/roll_back.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "hooks/imager/save/restart_mailbox.h"
#include "hooks/job/phase.h"
#include "hooks/job/protocol.h"
#include "hooks/raw/proc.h"

namespace shadowib {
namespace {

using FileId = std::pair<dev_t, ino_t>;

bool identify(const std::string& path, FileId* id) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return false;
  *id = {st.st_dev, st.st_ino};
  return true;
}

std::string restart_key(const JobInfo& job, const std::string& rest) {
  return restart_prefix(job.epoch, job.recovery) + rest;
}

// Processes of a restart that have its files open: the command's own, and members that other commands of this machine
// have restored.
class RestartProcesses {
 public:
  RestartProcesses(const JobInfo& job, const std::set<std::uint32_t>& members, const std::vector<pid_t>& starters)
      : starters_(starters) {
    FileId id;
    for (const pid_t pid : starters)
      if (identify("/proc/" + std::to_string(pid) + "/ns/pid_for_children", &id)) namespaces_.insert(id);
    for (const std::uint32_t member : members)
      if (identify(alive_path(job.directory, job.job, job.epoch, std::to_string(member)), &id)) locks_.insert(id);
  }

  bool contains(int pid) const {
    const std::string process = "/proc/" + std::to_string(pid);
    FileId id;
    if (std::find(starters_.begin(), starters_.end(), pid) != starters_.end() ||
        (identify(process + "/ns/pid", &id) && namespaces_.contains(id)))
      return true;
    std::vector<int> numbers;
    return descriptors::list_numbers((process + "/fd").c_str(), &numbers) == 0 &&
           std::any_of(numbers.begin(), numbers.end(), [&](int number) {
             return identify(process + "/fd/" + std::to_string(number), &id) && locks_.contains(id);
           });
  }

 private:
  const std::vector<pid_t>& starters_;
  std::set<FileId> namespaces_, locks_;
};

}  // namespace

bool members_await_cut(const OpenedSet& set) {
  return std::any_of(set.members.begin(), set.members.end(),
                     [](const MemberImage& m) { return waits_for_cut(m.image.process.mailbox_layout); });
}

RollBack::RollBack(const OpenedSet& set, const RestartOptions& options)
    : set_(set), options_(options), pending_((!options.cut.empty() || options.others_cut) && members_await_cut(set)) {
  for (const MemberImage& m : set.members) members_.insert(m.image.header.member);
  for (const MemberElsewhere& m : set.elsewhere) members_.insert(m.member);
  awaited_ = members_;
}

Status RollBack::step(const std::vector<pid_t>& starters) {
  const Status status = look(starters);
  if (!status.ok() && exchange_ != nullptr)
    (void)exchange_->claim(restart_key(options_.job, "abort"), status.text()).ok();
  return status;
}

Status RollBack::look(const std::vector<pid_t>& starters) {
  if (exchange_ == nullptr) SHADOWIB_TRY(Exchange::open(options_.job.exchange, false, &exchange_));
  bool all = false;
  SHADOWIB_TRY(find_ready(&all));
  if (!all) return {};
  SHADOWIB_TRY(cut(starters));
  pending_ = false;
  return let_go();
}

Status RollBack::find_ready(bool* all) {
  const std::vector<std::uint32_t> members(awaited_.begin(), awaited_.end());
  std::vector<std::string> keys, values;
  std::vector<bool> found;
  for (const std::uint32_t member : members)
    keys.push_back(restart_key(options_.job, "phase/" + std::to_string(member)));
  if (!keys.empty()) SHADOWIB_TRY(exchange_->lookup(keys, &values, &found));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    Fields fields;
    if (found[i] && decode_fields(values[i], &fields) &&
        field_number(fields, "phase") >= static_cast<std::uint64_t>(number_of(Phase::kGo)))
      awaited_.erase(members[i]);
  }
  *all = awaited_.empty();
  return {};
}

Status RollBack::cut(const std::vector<pid_t>& starters) {
  const RestartProcesses own(options_.job, members_, starters);
  SHADOWIB_TRY(judge_cut(options_.cut, [&own](int pid) { return own.contains(pid); }));
  for (const ChangedFile& file : options_.cut) SHADOWIB_TRY(cut_file(file));
  return {};
}

Status RollBack::let_go() {
  for (const MemberImage& m : set_.members)
    SHADOWIB_TRY(exchange_->publish(restart_key(options_.job, "cut/" + std::to_string(m.image.header.member)), "1"));
  return {};
}

}  // namespace shadowib
