#include "hooks/job/members.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "hooks/job/collection.h"
#include "hooks/job/protocol.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/shared_names.h"
#include "shadowib/exchange/remove_below.h"

namespace shadowib {
namespace {

constexpr int kStepMs = 20;

std::uint32_t index_of(const std::string& name) {
  return static_cast<std::uint32_t>(std::strtoul(name.c_str(), nullptr, 10));
}

// A lock without a member key: somebody between the two steps of joining.
Status anybody_joining(const JobView& view, bool* joining) {
  std::error_code error;
  const std::string prefix = view.epoch + ".";
  *joining = is_alive(job_paths(view.directory, view.job).joining);
  std::vector<std::string> names;
  SHADOWIB_TRY(view.exchange->list(view.key("member"), &names));
  const std::set<std::string> members(names.begin(), names.end());
  for (const auto& entry : std::filesystem::directory_iterator(job_paths(view.directory, view.job).alive, error)) {
    const std::string name = entry.path().filename();
    if (name.rfind(prefix, 0) != 0) continue;
    const std::string who = name.substr(prefix.size());
    if (who.empty() || who.find_first_not_of("0123456789") != std::string::npos || members.contains(who)) continue;
    *joining = *joining || is_alive(entry.path());
  }
  return {};
}

// A restart reserves its members' places in the epoch: until all are taken, whoever is there is not the whole job.
Status anybody_coming_back(const JobView& view, bool* coming) {
  *coming = false;
  std::string reserved, text;
  bool found = false, aborted = false;
  SHADOWIB_TRY(view.exchange->get(reserved_members_key(view.epoch), &reserved, &found));
  if (!found) return {};
  std::set<std::uint32_t> missing = decode_reserved_members(reserved);
  std::vector<std::string> there;
  SHADOWIB_TRY(view.exchange->list(view.key("member"), &there));
  for (const std::string& name : there) missing.erase(index_of(name));
  if (missing.empty()) return {};
  SHADOWIB_TRY(view.exchange->get(view.key("restart/abort"), &text, &aborted));
  // A restart that ended before, or was killed, brings nobody back any more.
  *coming = !aborted && is_alive(job_paths(view.directory, view.job).restart);
  return {};
}

// What a process says of itself when it joins.
MemberStatus as_described(std::uint32_t index, const Fields& fields) {
  MemberStatus member;
  member.index = index;
  member.pid = static_cast<int>(field_number(fields, "pid"));
  member.start_time = field_number(fields, "starttime");
  member.host = field_text(fields, "host");
  member.comm = field_text(fields, "comm");
  member.exe = field_text(fields, "exe");
  member.version = field_text(fields, "version");
  if (fields.contains("meets")) member.meets = field_number(fields, "meets");
  member.expects = field_number(fields, "expects");
  member.cluster = field_text(fields, "cluster");
  member.cluster_index = static_cast<unsigned>(field_number(fields, "cluster_index"));
  return member;
}

std::uint64_t latest_status_number(const JobView& view) {
  Fields fields;
  bool found = false;
  return view.fields("control/status", &fields, &found).ok() && found ? field_number(fields, "n") : 0;
}

}  // namespace

Status JobView::fields(const std::string& rest, Fields* fields, bool* found) const {
  std::string text;
  SHADOWIB_TRY(exchange->get(key(rest), &text, found));
  return *found ? decode(rest, text, fields) : Status();
}

Status JobView::decode(const std::string& rest, const std::string& text, Fields* fields) const {
  if (!decode_fields(text, fields))
    return Status::of(Code::kVersion, 0,
                      "job %.80s: %.80s has another protocol than %d; was the member started by another "
                      "version of shadowib?",
                      job.c_str(), rest.c_str(), kProtocolVersion);
  return {};
}

namespace {

// "": there is none.
std::string epoch_of(const std::string& directory, const std::string& job) {
  const std::string path = job_paths(directory, job).epoch;
  revalidate_parent(path);
  std::string epoch;
  std::ifstream(path) >> epoch;
  return epoch;
}

}  // namespace

bool JobView::is_outdated() const { return epoch_of(directory, job) != epoch; }

Status open_job(const std::string& directory, const std::string& job, const std::string& exchange, JobView* view) {
  view->directory = std::filesystem::absolute(directory).lexically_normal();
  view->job = job;
  view->epoch = epoch_of(view->directory, job);
  if (view->epoch.empty())
    return Status::of(Code::kNotFound, 0, "no job %.100s in %.200s; `shadowib status --dir DIR` lists the jobs",
                      job.c_str(), view->directory.c_str());
  const std::string uri = exchange.empty() ? default_exchange(view->directory, job) : exchange;
  return Exchange::open(uri, false, &view->exchange);
}

Status list_members(const JobView& view, std::vector<MemberStatus>* members) {
  std::vector<std::string> names;
  SHADOWIB_TRY(view.exchange->list(view.key("member"), &names));
  members->clear();
  std::vector<std::string> keys, values;
  std::vector<bool> found;
  for (const char* what : {"member/", "gone/"})
    for (const std::string& name : names) keys.push_back(view.key(what + name));
  SHADOWIB_TRY(view.exchange->lookup(keys, &values, &found));
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names[i];
    Fields fields;
    if (!found[i]) continue;
    SHADOWIB_TRY(view.decode("member/" + name, values[i], &fields));
    MemberStatus member = as_described(index_of(name), fields);
    member.alive = is_alive(view.alive(name));
    member.gone = found[names.size() + i];
    Fields left;
    if (member.gone && decode_fields(values[names.size() + i], &left))
      (void)decode_numbers(field_text(left, "depends"), &member.left_depends);
    members->push_back(member);
  }
  std::sort(members->begin(), members->end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  return {};
}

Status list_guests(const JobView& view, std::vector<MemberStatus>* guests, std::size_t* ended) {
  std::vector<std::string> names, keys, values;
  std::vector<bool> found;
  SHADOWIB_TRY(view.exchange->list(view.key("guest"), &names));
  guests->clear();
  for (const std::string& name : names)
    if (const std::uint32_t number = index_of(name); is_alive(view.alive(lock_name(kFirstGuest + number))))
      keys.push_back(guest_key(view.epoch, number));
  *ended = names.size() - keys.size();
  if (keys.empty()) return {};
  SHADOWIB_TRY(view.exchange->lookup(keys, &values, &found));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::string name = keys[i].substr(view.epoch.size() + 1);
    Fields fields;
    if (!found[i]) continue;
    SHADOWIB_TRY(view.decode(name, values[i], &fields));
    guests->push_back(as_described(kFirstGuest + index_of(name.substr(name.find('/') + 1)), fields));
    guests->back().alive = true;
  }
  std::sort(guests->begin(), guests->end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  return {};
}

Status wait_for_joining(const JobView& view, int timeout_ms) {
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  std::uint64_t token = 0;
  for (;;) {
    bool joining = false, coming = false;
    SHADOWIB_TRY(anybody_coming_back(view, &coming));
    SHADOWIB_TRY(anybody_joining(view, &joining));
    if (!joining && !coming) return {};
    // The epoch of a restart that was killed, while another makes its own: nobody comes to this one.
    if (view.is_outdated())
      return Status::of(Code::kBusy, ESTALE, "job %.100s was restarted meanwhile; try again", view.job.c_str());
    if (deadline.has_passed() && coming)
      return Status::of(Code::kBusy, 0,
                        "a restart of job %.100s has not brought all its members back after %d ms; try again",
                        view.job.c_str(), timeout_ms);
    if (deadline.has_passed())
      return Status::of(Code::kBusy, 0, "a process was still joining job %.100s after %d ms; try again",
                        view.job.c_str(), timeout_ms);
    Status status = view.exchange->watch(view.key("member"), &token, kStepMs, -1);
    if (!status.ok() && status.code() != Code::kTimeout) return status;
  }
}

std::string describe(const MemberStatus& member) {
  return "member " + std::to_string(member.index) + " (pid " + std::to_string(member.pid) + ", " + member.comm +
         " on " + member.host + ")";
}

Status query_status(const std::string& directory, const std::string& job, const std::string& exchange, int timeout_ms,
                    std::vector<MemberStatus>* members, std::string* epoch) {
  JobView view;
  SHADOWIB_TRY(open_job(directory, job, exchange, &view));
  if (epoch != nullptr) *epoch = view.epoch;
  SHADOWIB_TRY(list_members(view, members));
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  std::uint64_t n = latest_status_number(view) + 1;
  SHADOWIB_TRY(view.exchange->publish(view.key("control/status"), encode_fields({{"n", std::to_string(n)}})));
  const std::string answers = view.key("status/" + std::to_string(n));
  std::vector<std::uint32_t> asked;
  for (const MemberStatus& member : *members)
    if (member.alive) asked.push_back(member.index);
  Collection answered(*view.exchange, answers, asked);
  for (;;) {
    SHADOWIB_TRY(answered.look());
    for (MemberStatus& member : *members) {
      if (!answered.missing().contains(member.index)) continue;
      member.alive = is_alive(view.alive(std::to_string(member.index)));
      if (!member.alive) answered.drop(member.index);
    }
    const int left_ms = deadline.left_ms();
    if (answered.complete() || left_ms == 0) break;
    SHADOWIB_TRY(answered.wait(std::min(left_ms, 100)));
  }
  for (MemberStatus& member : *members) {
    const auto json = answered.values().find(member.index);
    member.answered = json != answered.values().end();
    if (member.answered) member.json = std::move(json->second);
  }
  if (!answered.values().empty()) (void)remove_below(view.exchange->uri(), answers).ok();
  return {};
}

Status failure_of_restart(const std::string& exchange, const std::string& epoch, std::uint64_t recovery,
                          const std::vector<std::uint32_t>& members) {
  JobView view;
  view.epoch = epoch;
  if (!Exchange::open(exchange, false, &view.exchange).ok()) return {};
  Status echo;
  for (std::uint32_t member : members) {
    Fields fields;
    bool found = false;
    const std::string key = restart_prefix(epoch, recovery) + "fail/" + std::to_string(member);
    if (!view.fields(key.substr(epoch.size() + 1), &fields, &found).ok() || !found) continue;
    const Status said = status_from_fields(fields);
    const Status named = Status::of(said.code(), said.error(), "member %u cannot go on after the restart: %.300s",
                                    member, said.text());
    if (said.code() != Code::kAborted) return named;
    echo = named;
  }
  return echo;
}

std::string saved_before_end(const std::string& exchange, const std::string& epoch) {
  JobView view;
  view.epoch = epoch;
  Fields request, outcome;
  bool found = false;
  if (!Exchange::open(exchange, false, &view.exchange).ok()) return {};
  if (!view.fields("control/checkpoint", &request, &found).ok() || !found) return {};
  const std::string key = "ckpt/" + field_text(request, "n") + "/outcome";
  if (!view.fields(key, &outcome, &found).ok() || !found || field_number(outcome, "kill") == 0) return {};
  return field_text(outcome, "committed");
}

}  // namespace shadowib
