#include "perftest/fedsim/trace.h"

#include <array>
#include <limits>

#include "hooks/federation/record_json.h"

namespace shadowib::fedsim {
namespace {

using federation::list_of;
using federation::PerCluster;
using federation::Policy;
using Kind = TraceEvent::Kind;

struct KindFields {
  const char* name;
  std::vector<const char*> fields;  // beside event, at_us and job
  const char* may_have = nullptr;
};

const std::array<KindFields, 6> kKinds = {{
    {"start", {"policy", "clusters", "incarnation"}},
    {"post", {"cluster", "incarnation", "sn", "to", "flow", "number", "member"}, "vector"},
    {"hold", {"cluster", "incarnation", "sn", "from", "flow", "number"}},
    {"commit", {"cluster", "incarnation", "sn", "forced", "before", "after", "member"}},
    {"deliver", {"cluster", "incarnation", "sn", "from", "flow", "number"}},
    {"resume", {"failed", "stays", "sns", "incarnations", "running"}},
}};

std::string name_of(Policy policy) {
  for (const auto& [name, value] : policies())
    if (value == policy) return name;
  return "?";
}

bool policy_of(const std::string& name, Policy* policy) {
  for (const auto& [known, value] : policies())
    if (name == known) {
      *policy = value;
      return true;
    }
  return false;
}

// Reads fields of one event, and keeps the first complaint.
class FieldReader {
 public:
  explicit FieldReader(const Json& json) : json_(json) {}

  Status status() const { return status_; }

  std::uint64_t whole(const char* field, std::uint64_t most) { return whole(json_[field], field, most); }
  std::uint32_t number(const char* field) {
    return static_cast<std::uint32_t>(whole(field, std::numeric_limits<std::uint32_t>::max()));
  }
  unsigned cluster(const char* field) { return static_cast<unsigned>(whole(field, federation::kMaxClusters - 1)); }
  bool boolean(const Json& json, const char* field) {
    if (json.is_boolean()) return json.get<bool>();
    complain(field, "is neither true nor false");
    return false;
  }
  bool boolean(const char* field) { return boolean(json_[field], field); }
  std::string text(const char* field) {
    if (json_[field].is_string() && !json_[field].get<std::string>().empty()) return json_[field].get<std::string>();
    complain(field, "is no text");
    return {};
  }
  bool has(const char* field) const { return json_.contains(field); }
  const Json& list(const char* field, bool may_be_empty = false) { return list(json_[field], field, may_be_empty); }
  PerCluster numbers(const char* field) { return numbers(json_[field], field); }
  PerCluster numbers(const Json& json, const char* field) {
    PerCluster read(static_cast<unsigned>(list(json, field, false).size() % (federation::kMaxClusters + 1)));
    unsigned i = 0;
    for (const Json& entry : json)
      if (i < read.clusters)
        read[i++] = static_cast<std::uint32_t>(whole(entry, field, std::numeric_limits<std::uint32_t>::max()));
    return read;
  }
  std::uint64_t whole(const Json& json, const char* field, std::uint64_t most) {
    if (json.is_number_unsigned() && json.get<std::uint64_t>() <= most) return json.get<std::uint64_t>();
    complain(field, "is no whole number, or too great");
    return 0;
  }
  void complain(const char* field, const char* what) {
    if (status_.ok()) status_ = Status::of(Code::kCorrupt, 0, "field %s %s", field, what);
  }

 private:
  const Json& list(const Json& json, const char* field, bool may_be_empty) {
    if (!json.is_array() || (json.empty() && !may_be_empty) || json.size() > federation::kMaxClusters)
      complain(field, "is no list with an entry for each cluster");
    return json;
  }

  const Json& json_;
  Status status_;
};

void read_resume(FieldReader* reader, TraceEvent* event) {
  for (const Json& entry : reader->list("failed"))
    event->failed.push_back(static_cast<unsigned>(reader->whole(entry, "failed", federation::kMaxClusters - 1)));
  for (const Json& entry : reader->list("stays")) event->stays.push_back(reader->boolean(entry, "stays"));
  event->sns = reader->numbers("sns");
  event->incarnations = reader->numbers("incarnations");
  for (const Json& entry : reader->list("running")) {
    event->running.emplace_back();
    if (!entry.is_null()) event->running.back() = reader->numbers(entry, "running");
  }
}

void read_fields(FieldReader* reader, TraceEvent* event) {
  switch (event->kind) {
    case Kind::kStart:
      if (!policy_of(reader->text("policy"), &event->policy)) reader->complain("policy", "is none of ours");
      event->clusters = static_cast<unsigned>(reader->whole("clusters", federation::kMaxClusters));
      if (event->clusters == 0) reader->complain("clusters", "is 0");
      event->incarnation = reader->number("incarnation");
      return;
    case Kind::kResume:
      return read_resume(reader, event);
    default:
      break;
  }
  event->cluster = reader->cluster("cluster");
  event->incarnation = reader->number("incarnation");
  event->sn = reader->number("sn");
  if (event->kind == Kind::kCommit) {
    event->record = {event->cluster,
                     event->sn,
                     event->incarnation,
                     reader->numbers("before"),
                     reader->numbers("after"),
                     reader->boolean("forced"),
                     federation::ClcRecord::Claim::kCommitted};
    event->member = reader->number("member");
    return;
  }
  event->peer = reader->cluster(event->kind == Kind::kPost ? "to" : "from");
  event->flow = reader->whole("flow", std::numeric_limits<std::uint64_t>::max());
  event->number = reader->whole("number", std::numeric_limits<std::uint64_t>::max());
  if (event->kind != Kind::kPost) return;
  event->member = reader->number("member");
  if (reader->has("vector")) event->vector = reader->numbers("vector");
}

Status only_known(const Json& json, const KindFields& kind) {
  for (const auto& [name, value] : json.items()) {
    bool known = name == "event" || name == "at_us" || name == "job";
    for (const char* field : kind.fields) known |= name == field;
    known |= kind.may_have != nullptr && name == kind.may_have;
    if (!known) return Status::of(Code::kCorrupt, 0, "field %s is unknown", name.c_str());
  }
  for (const char* field : kind.fields)
    if (!json.contains(field)) return Status::of(Code::kCorrupt, 0, "field %s is missing", field);
  return {};
}

Json resume_fields(const TraceEvent& event, Json json) {
  Json failed = Json::array(), stays = Json::array(), running = Json::array();
  for (unsigned i : event.failed) failed.push_back(i);
  for (bool stay : event.stays) stays.push_back(stay);
  for (const auto& depends : event.running) running.push_back(depends ? list_of(*depends) : Json());
  json["failed"] = failed;
  json["stays"] = stays;
  json["sns"] = list_of(event.sns);
  json["incarnations"] = list_of(event.incarnations);
  json["running"] = running;
  return json;
}

}  // namespace

const std::vector<std::pair<std::string, Policy>>& policies() {
  static const std::vector<std::pair<std::string, Policy>> all = {
      {"paper", Policy::kPaper}, {"vector", Policy::kVector}, {"index", Policy::kIndex}, {"none", Policy::kNone}};
  return all;
}

std::string encode_event(const TraceEvent& event) {
  Json json{{"event", kKinds[static_cast<std::size_t>(event.kind)].name}, {"at_us", event.at_us}, {"job", event.job}};
  if (event.kind == Kind::kResume) return resume_fields(event, json).dump();
  if (event.kind == Kind::kStart) {
    json["policy"] = name_of(event.policy);
    json["clusters"] = event.clusters;
    json["incarnation"] = event.incarnation;
    return json.dump();
  }
  json["cluster"] = event.cluster;
  json["incarnation"] = event.incarnation;
  json["sn"] = event.sn;
  if (event.kind == Kind::kCommit) {
    json["forced"] = event.record.forced;
    json["before"] = list_of(event.record.before);
    json["after"] = list_of(event.record.after);
    json["member"] = event.member;
    return json.dump();
  }
  json[event.kind == Kind::kPost ? "to" : "from"] = event.peer;
  json["flow"] = event.flow;
  json["number"] = event.number;
  if (event.kind == Kind::kPost) {
    json["member"] = event.member;
    if (event.vector.clusters != 0) json["vector"] = list_of(event.vector);
  }
  return json.dump();
}

Status decode_event(const std::string& line, TraceEvent* event) {
  Json json;
  std::string why;
  if (!Json::parse(line, &json, &why)) return Status::of(Code::kCorrupt, 0, "is no JSON: %s", why.c_str());
  FieldReader reader(json);
  const std::string name = json.is_object() ? reader.text("event") : std::string();
  *event = TraceEvent();
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    if (name != kKinds[i].name) continue;
    SHADOWIB_TRY(only_known(json, kKinds[i]));
    event->kind = static_cast<Kind>(i);
    event->at_us = reader.whole("at_us", std::numeric_limits<std::uint64_t>::max());
    event->job = reader.text("job");
    read_fields(&reader, event);
    return reader.status();
  }
  return Status::of(Code::kCorrupt, 0, "field event names no event");
}

}  // namespace shadowib::fedsim
