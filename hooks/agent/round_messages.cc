#include "hooks/agent/round_messages.h"

#include <algorithm>

#include "hooks/agent/agent_state.h"
#include "hooks/agent/join.h"
#include "hooks/raw/tasks.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

bool parse_hex(const std::string& text, std::uint8_t* bytes, std::size_t count) {
  if (text.size() != 2 * count) return false;
  for (std::size_t i = 0; i < 2 * count; ++i) {
    char c = text[i];
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    bytes[i / 2] = static_cast<std::uint8_t>(bytes[i / 2] << 4 | digit);
  }
  return true;
}

Status other_protocol() {
  return Status::of(Code::kVersion, 0, "the checkpoint command speaks another protocol than %d", kProtocolVersion);
}

// *compression stays as it is where the command names none, or one that is not known here.
Status read_compression(const Fields& fields, Compression* compression) {
  const std::string how = field_text(fields, "compress");
  if (how.empty()) return {};
  Compression known{};
  if (!parse_compression(how, &known))
    return Status::of(
        Code::kVersion, 0,
        "the checkpoint command wants images compressed by %.40s, which this library does not know; use "
        "--compress none, lz4 or zstd",
        how.c_str());
  *compression = known;
  return {};
}

// "0,1,2"
std::vector<std::uint32_t> parse_members(const std::string& text) {
  std::vector<std::uint32_t> members;
  for (const char* p = text.c_str(); *p != '\0'; ++p) {
    members.push_back(static_cast<std::uint32_t>(parse_number(&p)));
    if (*p != ',') break;
  }
  return members;
}

}  // namespace

std::string to_hex(const std::uint8_t (&bytes)[16]) {
  std::string text;
  for (const std::uint8_t byte : bytes) text += "0123456789abcdef"[byte >> 4], text += "0123456789abcdef"[byte & 15];
  return text;
}

Status RoundRequest::parse(const std::string& text) {
  Fields fields;
  if (!decode_fields(text, &fields)) return other_protocol();
  number = field_number(fields, "n");
  if (fields.contains("cluster")) cluster = static_cast<unsigned>(field_number(fields, "cluster"));
  members = parse_members(field_text(fields, "members"));
  staging = field_text(fields, "staging");
  near = field_text(fields, "near");
  chooses = fields.contains("mem_place");
  mem_place = field_text(fields, "mem_place");
  disk_place = field_text(fields, "disk_place");
  keepers = field_number(fields, "keepers") != 0;
  image = "member-" + std::to_string(g_job.info.member) + ".img";
  if (!parse_hex(field_text(fields, "set"), set_id, sizeof(set_id)))
    return Status::of(Code::kVersion, 0, "the checkpoint request names no set");
  kill = field_number(fields, "kill") != 0;
  forked = field_text(fields, "save") == "forked";
  weighs = forked && field_number(fields, "weighs") != 0;
  incremental = field_number(fields, "incremental") != 0;
  base = field_text(fields, "base");
  SHADOWIB_TRY(read_compression(fields, &compression));
  last = fields.count("last") == 0 || field_number(fields, "last") != 0;
  deadline_ns = monotonic_ns() + static_cast<std::int64_t>(field_number(fields, "timeout_ms")) * 1000000;
  return {};
}

Status RoundRequest::take_choice(const std::string& go) {
  if (!chooses && !is_clc() && !weighs) return {};
  Fields fields;
  if (!decode_fields(go, &fields)) return other_protocol();
  if (is_clc()) next_sn = static_cast<federation::Sn>(field_number(fields, "sn"));
  if (is_clc() && next_sn == 0)
    return Status(Code::kVersion, 0, "the checkpoint command does not tell the CLC's number");
  if (weighs) {
    const std::vector<std::uint32_t> standing = parse_members(field_text(fields, "stand"));
    stands = std::find(standing.begin(), standing.end(), g_job.info.member) != standing.end();
  }
  if (!chooses) return {};
  SHADOWIB_TRY(read_compression(fields, &compression));
  near = field_text(fields, "near");
  return {};
}

bool RoundRequest::concerns(std::uint32_t member) const {
  return std::find(members.begin(), members.end(), member) != members.end();
}

RoundMessages::RoundMessages(const RoundRequest& request)
    : request_(request),
      me_(std::to_string(g_job.info.member)),
      prefix_(key("")),
      abort_key_(key("abort")),
      command_lock_(alive_path(g_job.info.directory, g_job.info.job, g_job.info.epoch, "ckpt" + request.id())) {}

int RoundMessages::left_ms() const {
  const std::int64_t left = (request_.deadline_ns - monotonic_ns()) / 1000000;
  return left < 0 ? 0 : static_cast<int>(std::min<std::int64_t>(left, 1 << 30));
}

int RoundMessages::slice_ms() const {
  return std::min(request_.first_is(g_job.info.member) ? kSliceMs : kSeldomMs, left_ms());
}

bool RoundMessages::command_alive() const { return is_alive(command_lock_); }

Status RoundMessages::check_others() {
  std::string text;
  bool found = false;
  SHADOWIB_TRY(g_job.exchange->get(abort_key_, &text, &found));
  if (found) return Status::of(Code::kAborted, 0, "%.300s", text.c_str());
  if (!command_alive()) return Status::of(Code::kAborted, 0, "the checkpoint command is gone");
  if (left_ms() == 0)
    return Status::of(Code::kTimeout, 0, "the checkpoint's time-out ran out in phase %d (%s)",
                      number_of(g_agent.phase.load()), phase_text(g_agent.phase.load()).doing);
  return {};
}

Status RoundMessages::tell_heard() {
  return g_job.exchange->publish_alike(own("phase"),
                                       encode_fields({{"phase", std::to_string(number_of(Phase::kJoined))}}));
}

Status RoundMessages::barrier(Phase phase) { return barrier(std::to_string(number_of(phase))); }

Status RoundMessages::barrier(const std::string& name) { return meet(name, nullptr); }

// What is awaited later is published later: the token may be used for each wait that follows.
Status RoundMessages::barrier_and_get(const std::string& name, const std::string& key, std::string* value,
                                      bool* found) {
  Exchange::Look look{.prefix = prefix_, .keys = {key}};
  SHADOWIB_TRY(meet(name, &look));
  token_ = look.token;
  *found = look.found[0];
  *value = std::move(look.values[0]);
  return {};
}

Status RoundMessages::meet(const std::string& name, Exchange::Look* look) {
  for (;;) {
    Status status = g_job.exchange->barrier_beside(
        {}, key("b/" + name), me_, static_cast<int>(request_.members.size()), slice_ms(), abort_key_, look);
    if (status.code() != Code::kTimeout && status.code() != Code::kAborted) return status;
    SHADOWIB_TRY(check_others());
    if (status.code() == Code::kAborted) return status;
  }
}

Status RoundMessages::wait_for_key(const char* name, std::string* value, std::vector<Exchange::Value> first,
                                   const std::string& beside, std::string* value_beside) {
  std::vector<std::string> keys{key(name), abort_key_};
  if (!beside.empty()) keys.push_back(beside);  // looked up after the first
  for (;;) {
    std::vector<std::string> values;
    std::vector<bool> found;
    const Status status =
        g_job.exchange->watch_and_lookup(prefix_, &token_, slice_ms(), keys, &values, &found, first);
    first.clear();
    if (!status.ok() && status.code() != Code::kTimeout) return status;
    if (found[0]) {
      *value = std::move(values[0]);
      if (!beside.empty()) *value_beside = std::move(values[2]);
      return {};
    }
    if (found[1] || !status.ok()) SHADOWIB_TRY(check_others());
  }
}

Status RoundMessages::watch(std::uint64_t* token, int timeout_ms, const std::string& key, std::string* value,
                            bool* found) {
  std::vector<std::string> values;
  std::vector<bool> there;
  const Status status = g_job.exchange->watch_and_lookup(prefix_, token, timeout_ms, {key}, &values, &there);
  *found = there[0];
  *value = std::move(values[0]);
  return status;
}

Status RoundMessages::claim_abort() {
  Status status = g_job.exchange->claim(abort_key_, abort_text_);
  abort_is_there_ = status.ok() || status.code() == Code::kBusy;
  return status;
}

// The reason is published before the abort, so that whoever sees the abort finds it. The abort is claimed even if the
// reason was not published: its text has the reason, too. A command gives up for a member's reason as well as for its
// own, so it shows nothing of who tells people: key `told` has who was first.
bool RoundMessages::give_up(const Status& status) {
  const bool passes = status.code() == Code::kRefused && status.error() == EAGAIN;
  Status told;
  // Who is told to give up has no reason of its own; who lost its saver has.
  if (status.code() != Code::kAborted || status.error() == ENOMEM)
    told = publish_fields(own("fail"), fields_of_status(status));
  abort_text_ = "member " + me_ + ": " + status.text();
  const Status claimed = claim_abort();
  if (told.ok()) told = claimed;
  const bool tells =
      told.ok() ? !passes || request_.last
                : request_.first_is(g_job.info.member) && (told.code() != Code::kBusy || command_gave_up_for_good());
  return tells && g_job.exchange->claim(key("told"), me_).code() != Code::kBusy;
}

void RoundMessages::give_up_again() {
  if (!abort_is_there_) (void)claim_abort().ok();
}

bool RoundMessages::command_gave_up_for_good() {
  std::string text;
  bool found = false;
  Fields fields;
  return g_job.exchange->get(key("fail/command"), &text, &found).ok() && found && decode_fields(text, &fields) &&
         field_number(fields, "again") == 0;
}

}  // namespace shadowib
