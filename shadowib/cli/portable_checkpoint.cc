#include "shadowib/cli/portable_checkpoint.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <sstream>

#include "hooks/command/ending_signals.h"
#include "hooks/imager/set/manifest.h"
#include "hooks/job/job_directory.h"
#include "hooks/job/protocol.h"
#include "hooks/store/files.h"
#include "hooks/store/store.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/processes.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/portable_job.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr int kStepUs = 2000;

std::string now_utc() {
  const std::time_t now = ::time(nullptr);
  tm parts{};
  char text[32];
  ::gmtime_r(&now, &parts);
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// "g<generation>-<random hex>".
std::uint32_t generation_of(const std::string& epoch) {
  return epoch.size() > 1 ? static_cast<std::uint32_t>(std::strtoul(epoch.c_str() + 1, nullptr, 10)) : 0;
}

// A process's answer, as its lines.
struct Answer {
  std::string word;  // saved, or refused
  std::string reason;
  std::map<std::string, std::string> facts;
};

std::uint64_t number(const Answer& answer, const char* name) {
  const auto found = answer.facts.find(name);
  return found == answer.facts.end() ? 0 : std::strtoull(found->second.c_str(), nullptr, 10);
}

bool read_answer(const std::string& path, Answer* answer) {
  std::string text;
  if (!read_file(path, &text).ok()) return false;
  *answer = {};
  std::istringstream lines(text);
  std::getline(lines, answer->word);
  if (answer->word == "refused") return std::getline(lines, answer->reason), true;
  for (std::string name, value; lines >> name && std::getline(lines >> std::ws, value);) answer->facts[name] = value;
  return answer->word == "saved";
}

// "0-3,7". A process that begins from now on is not meant.
std::string ranges_of(const std::vector<PortableMember>& members) {
  std::string text;
  for (std::size_t i = 0, first = 0; i < members.size(); ++i) {
    if (i + 1 < members.size() && members[i + 1].index == members[i].index + 1) continue;
    text += (text.empty() ? "" : ",") + std::to_string(members[first].index);
    if (first != i) text += "-" + std::to_string(members[i].index);
    first = i + 1;
  }
  return text;
}

class Checkpoint {
 public:
  Checkpoint(const PortableCheckpoint& options, CheckpointReport* report) : options_(options), report_(*report) {}
  ~Checkpoint() {
    if (asked_ && !committed_) request_.decide(false);
    for (const PortableMember& member : members_) ::unlink(answer_path(member).c_str());
    if (!staging_.empty()) (void)store_->discard(staging_).ok();
    if (lock_ >= 0) release_alive_lock(lock_);
  }
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  Status run() {
    SHADOWIB_TRY(take_lock());
    members_ = portable_members(options_.directory, options_.job);
    if (members_.empty()) return nobody();
    SHADOWIB_TRY(judge_count());
    SHADOWIB_TRY(request_.open(options_.directory, options_.job));
    SHADOWIB_TRY(store_->stage(options_.job, &staging_, &report_.number));
    SHADOWIB_TRY(request_.ask(staging_, lock_path_,
                              sets_path(options_.directory) + "/" + set_name(options_.job, report_.number),
                              options_.kill, ranges_of(members_), &id_));
    asked_ = true;
    SHADOWIB_TRY(await_answers());
    SHADOWIB_TRY(commit());
    if (options_.committed) options_.committed(report_);
    decide();
    if (options_.kill) await_ends();
    return {};
  }

 private:
  Status nobody() const {
    return Status::of(Code::kNotFound, ESRCH, "no process of job %.64s is alive", options_.job.c_str());
  }

  // The first process to come says how many there will be.
  Status judge_count() const {
    Json facts;
    const bool told = portable_facts(options_.directory, options_.job, members_.front().index, &facts).ok();
    const auto wanted = static_cast<std::size_t>(told ? std::max(facts.value("processes", 0), 0) : 0);
    if (told && members_.size() >= wanted) return {};
    return Status::of(Code::kBusy, 0, "%zu of %s processes of job %.64s have begun", members_.size(),
                      told ? std::to_string(wanted).c_str() : "the", options_.job.c_str());
  }

  Status take_lock() {
    const std::string epoch = present_epoch(options_.directory, options_.job);
    if (epoch.empty()) return nobody();  // its first process starts
    lock_path_ = alive_path(options_.directory, options_.job, epoch, "ckpt0");
    lock_ = hold_alive_lock(lock_path_);
    if (lock_ >= 0) return {};
    return errno == EAGAIN
               ? Status::of(Code::kBusy, 0, "a checkpoint of job %.64s is under way", options_.job.c_str())
               : Status::of(Code::kIo, errno, "cannot lock %.200s: %.60s", lock_path_.c_str(), std::strerror(errno));
  }

  std::string answer_path(const PortableMember& member) const {
    return portable_path(options_.directory, options_.job) + "/answer-" + id_ + "." + std::to_string(member.index);
  }

  // Of a program whose processes save at one superstep: a process may have to save again until all have done so.
  bool all_agree() const {
    if (answers_.size() < members_.size()) return false;
    const Answer& first = answers_.begin()->second;
    for (const auto& [member, answer] : answers_)
      if (number(answer, "step") != number(first, "step")) return false;
    return true;
  }

  std::uint64_t bytes_written() const {
    std::uint64_t bytes = 0;
    std::error_code error;
    for (const auto& file : fs::directory_iterator(staging_, error))
      if (const std::uint64_t size = file.file_size(error); !error) bytes += size;
    return bytes;
  }

  Status await_answers() {
    Deadline deadline = Deadline::in_ms(options_.timeout_ms);
    std::uint64_t written = 0;
    while (!all_agree()) {
      for (const PortableMember& member : members_) {
        // Before the answer is looked for: one that has ended may have answered before.
        const bool lives = is_alive(member.lock);
        Answer answer;
        if (read_answer(answer_path(member), &answer)) {
          if (answer.word == "refused")
            return Status::of(Code::kRefused, 0, "member %u: %.300s", member.index, answer.reason.c_str());
          answers_[member.index] = answer;
        } else if (!lives) {
          return Status::of(Code::kAborted, 0, "member %u ended before it came to a site", member.index);
        }
      }
      if (all_agree()) break;
      // Processes that write have come to a site: they have their time as long as images grow.
      const std::uint64_t before = written;
      if (deadline.has_passed() && (written = bytes_written()) > before)
        deadline = Deadline::in_ms(options_.timeout_ms);
      if (deadline.has_passed())
        return Status::of(Code::kTimeout, ETIMEDOUT,
                          "%zu of %zu processes of job %.64s have saved at a site in time; give a longer --timeout",
                          answers_.size(), members_.size(), options_.job.c_str());
      ::usleep(kStepUs);
    }
    const std::uint64_t processes = number(answers_.begin()->second, "processes");
    if (processes != 0 && processes != members_.size())
      return Status::of(Code::kBusy, 0, "%zu of %llu processes of job %.64s have begun", members_.size(),
                        static_cast<unsigned long long>(processes), options_.job.c_str());
    return {};
  }

  Status describe(SetManifest* manifest, Json* members, Json* portable) {
    for (const PortableMember& member : members_) {
      const Answer& answer = answers_.at(member.index);
      Json facts;
      SHADOWIB_TRY(portable_facts(options_.directory, options_.job, member.index, &facts));
      if (facts.contains("interval")) (*portable)["interval"] = facts["interval"];
      if (facts.contains("keep")) (*portable)["keep"] = std::atoi(facts.value("keep", "").c_str());
      for (const char* list : {"programs", "runners"})
        if (facts.contains(list)) (*portable)[list] = facts[list];
      SetMember image{.index = member.index,
                      .pid = static_cast<int>(facts.value("pid", 0)),
                      .file = "member-" + std::to_string(member.index) + ".psi",
                      .bytes = 0,
                      .xxh3 = "",
                      .comm = facts.value("comm", ""),
                      .host = facts.value("host", ""),
                      .settle_ns = 0,
                      .save_ns = 0,
                      .objects = {}};
      std::error_code error;
      image.bytes = fs::file_size(staging_ + "/" + image.file, error);
      if (error) return file_error(error.value(), "read", staging_ + "/" + image.file);
      SHADOWIB_TRY(sum_of_file(staging_ + "/" + image.file, &image.xxh3));
      MemberReport told;
      told.index = image.index, told.pid = image.pid, told.host = image.host, told.comm = image.comm;
      told.bytes = image.bytes;
      report_.members.push_back(told);
      manifest->members.push_back(image);
      members->push_back({{"index", member.index},
                          {"target", answer.facts.count("target") != 0 ? answer.facts.at("target") : ""},
                          {"visits", number(answer, "visits")},
                          {"directory", facts.value("directory", "")},
                          {"command", facts["command"]}});
    }
    return {};
  }

  Status commit() {
    const std::int64_t began_ns = monotonic_ns();
    const Answer& first = answers_.begin()->second;
    SetManifest manifest;
    manifest.set_id = random_hex(16);
    manifest.job = options_.job;
    manifest.number = report_.number;
    manifest.generation = generation_of(present_epoch(options_.directory, options_.job));
    manifest.shadowib_version = SHADOWIB_VERSION;
    manifest.created = now_utc();
    manifest.backend = kPortableBackend;
    Json members = Json::array(), json;
    Json portable{{"kind", number(first, "processes") != 0 ? "bsp" : "processes"},
                  {"superstep", number(first, "step")}};
    SHADOWIB_TRY(describe(&manifest, &members, &portable));
    portable["members"] = members;
    Json::parse(encode_manifest(manifest), &json);
    json["portable"] = portable;
    const std::string text = json.dump(2) + "\n";
    for (const SetMember& member : manifest.members) SHADOWIB_TRY(store_->sync(staging_, member.file, member.bytes));
    SHADOWIB_TRY(store_->write(staging_, kManifestFile, text));
    SHADOWIB_TRY(store_->write(staging_, kManifestSumFile, manifest_sum(text)));
    SHADOWIB_TRY(store_->commit(staging_, options_.job, manifest.number, &report_.set_path));
    staging_.clear();
    report_.job = options_.job;
    report_.set_id = manifest.set_id;
    report_.generation = manifest.generation;
    report_.commit_ns = monotonic_ns() - began_ns;
    return {};
  }

  void decide() {
    const EndingSignalsWait wait;
    if (options_.kill && options_.at_kill) options_.at_kill(report_);
    committed_ = true;
    request_.decide(true);
  }

  // They end by themselves. One that hangs is left to the caller, who sees the job alive.
  void await_ends() const {
    const Deadline deadline = Deadline::in_ms(options_.timeout_ms);
    for (const PortableMember& member : members_)
      while (is_alive(member.lock) && !deadline.has_passed()) ::usleep(kStepUs);
  }

  const PortableCheckpoint& options_;
  CheckpointReport& report_;
  const std::unique_ptr<Store> store_ = open_directory_store(options_.directory);
  std::vector<PortableMember> members_;
  std::map<std::uint32_t, Answer> answers_;
  PortableRequest request_;
  std::string staging_, lock_path_, id_;
  int lock_ = -1;
  bool asked_ = false, committed_ = false;
};

}  // namespace

Status save_portable(const PortableCheckpoint& options, CheckpointReport* report) {
  return Checkpoint(options, report).run();
}

}  // namespace shadowib::cli
