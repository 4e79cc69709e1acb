#include "hooks/job/cluster.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>

namespace shadowib {
namespace {

using federation::PerCluster;
using federation::Policy;

constexpr std::size_t kMostLetters = 32;
constexpr char kHeld[] = "held", kLoggedSince[] = "logged_since", kTrimmed[] = "trimmed";

constexpr struct {
  const char* name;
  Policy policy;
} kPolicies[] = {{"paper", Policy::kPaper}, {"vector", Policy::kVector}, {"index", Policy::kIndex}};

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

// A whole number of 32 bits at *text, which moves behind it.
bool take_number(std::string_view* text, std::uint32_t* number) {
  std::uint64_t value = 0;
  std::size_t digits = 0;
  for (; digits < text->size() && (*text)[digits] >= '0' && (*text)[digits] <= '9'; ++digits) {
    value = 10 * value + static_cast<unsigned>((*text)[digits] - '0');
    if (value > std::numeric_limits<std::uint32_t>::max()) return false;
  }
  text->remove_prefix(digits);
  *number = static_cast<std::uint32_t>(value);
  return digits > 0;
}

bool take(std::string_view* text, char c) {
  if (text->empty() || text->front() != c) return false;
  text->remove_prefix(1);
  return true;
}

Status bad(const char* what, const char* field) {
  return Status::of(Code::kCorrupt, 0, "%s: field %s is missing or damaged", what, field);
}

bool read_number(const Fields& fields, const char* name, std::uint32_t* number) {
  std::string_view text = field_text(fields, name);
  return take_number(&text, number) && text.empty();
}

bool read_numbers(const Fields& fields, const char* name, PerCluster* numbers) {
  return decode_numbers(field_text(fields, name), numbers);
}

// "1:0:7" of cluster 1, incarnation 0 and SN 7; "1:0:7:3,7" with the vector.
std::string encode_stamp(const federation::Stamp& stamp) {
  std::string text =
      std::to_string(stamp.cluster) + ":" + std::to_string(stamp.incarnation) + ":" + std::to_string(stamp.sn);
  if (stamp.vector.clusters != 0) text += ":" + encode_numbers(stamp.vector);
  return text;
}

bool decode_stamp(std::string_view text, federation::Stamp* stamp) {
  std::uint32_t cluster = 0;
  const bool begins = take_number(&text, &cluster) && take(&text, ':') && take_number(&text, &stamp->incarnation) &&
                      take(&text, ':') && take_number(&text, &stamp->sn);
  stamp->cluster = cluster;
  if (!begins || cluster >= federation::kMaxClusters) return false;
  return text.empty() || (take(&text, ':') && decode_numbers(text, &stamp->vector));
}

}  // namespace

bool valid_cluster_name(std::string_view name) {
  return !name.empty() && name.size() <= kMostLetters && name[0] != '-' &&
         std::all_of(name.begin(), name.end(), is_letter);
}

const char* policy_name(Policy policy) {
  for (const auto& known : kPolicies)
    if (known.policy == policy) return known.name;
  return "none";
}

bool parse_policy(std::string_view name, Policy* policy) {
  for (const auto& known : kPolicies) {
    if (name != known.name) continue;
    *policy = known.policy;
    return true;
  }
  return false;
}

std::string set_owner(std::string_view job, std::string_view cluster) {
  std::string owner(job);
  if (!cluster.empty()) owner += '.', owner += cluster;
  return owner;
}

std::string federation_key(std::string_view epoch) { return std::string(epoch) + "/federation"; }

std::string cluster_key(std::string_view epoch, std::string_view name) {
  std::string key(epoch);
  key += "/cluster";
  if (!name.empty()) key += '/', key += name;
  return key;
}

std::string checkpoint_id(unsigned cluster, std::uint64_t n) {
  return (cluster == kWholeJob ? "" : std::to_string(cluster) + ".") + std::to_string(n);
}

std::string checkpoint_key_of(std::string_view epoch, const std::string& id, std::string_view rest) {
  std::string key(epoch);
  key += "/ckpt/" + id;
  if (!rest.empty()) key += '/', key += rest;
  return key;
}

std::string request_name(unsigned cluster) {
  return cluster == kWholeJob ? "checkpoint" : "checkpoint." + std::to_string(cluster);
}

std::string room_name(unsigned cluster) { return "room." + std::to_string(cluster); }

std::string clc_key(std::string_view epoch, unsigned cluster, std::string_view name) {
  std::string key(epoch);
  key += "/clc/" + std::to_string(cluster);
  if (!name.empty()) key += '/', key += name;
  return key;
}

std::string clc_name(federation::Incarnation incarnation, federation::Sn sn, std::uint64_t attempt) {
  return std::to_string(incarnation) + "." + std::to_string(sn) + "." + std::to_string(attempt);
}

std::string turn_lock(unsigned cluster) { return "ckpt" + std::to_string(cluster) + ".turn"; }

std::string encode_numbers(const PerCluster& numbers) {
  std::string text;
  for (unsigned i = 0; i < numbers.clusters; ++i) text += (i == 0 ? "" : ",") + std::to_string(numbers[i]);
  return text;
}

bool decode_numbers(std::string_view text, PerCluster* numbers) {
  *numbers = PerCluster();
  do {
    if (numbers->clusters == federation::kMaxClusters || !take_number(&text, &numbers->of[numbers->clusters]))
      return false;
    ++numbers->clusters;
  } while (take(&text, ','));
  return text.empty();
}

namespace {

template <typename Number>
std::string encode_list(const std::vector<Number>& list) {
  std::string text;
  for (const Number number : list) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

// False: it is no list, or one of more than there are clusters.
template <typename Number>
bool decode_list(std::string_view text, std::vector<Number>* list) {
  while (!text.empty()) {
    Number number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const auto taken = static_cast<std::size_t>(end - text.data());
    if (error != std::errc() || (taken != text.size() && text[taken] != ',') ||
        list->size() == federation::kMaxClusters)
      return false;
    list->push_back(number);
    text.remove_prefix(std::min(taken + 1, text.size()));
  }
  return true;
}

}  // namespace

Fields encode_border(const BorderReport& report) {
  Fields fields{{"index", std::to_string(report.running.index)},
                {"sn", std::to_string(report.running.sn)},
                {"depends", encode_numbers(report.running.depends)},
                {"incarnations", encode_numbers(report.running.incarnations)}};
  std::string held;
  for (const federation::Stamp& stamp : report.held) held += (held.empty() ? "" : " ") + encode_stamp(stamp);
  fields[kHeld] = held;
  fields[kLoggedSince] = encode_list(report.logged_since);
  fields[kTrimmed] = encode_list(report.trimmed);
  return fields;
}

Status decode_border(const Fields& fields, BorderReport* report) {
  constexpr char kWhat[] = "a member's word on its border";
  std::uint32_t index = 0;
  *report = BorderReport();
  if (!read_number(fields, "index", &index) || index >= federation::kMaxClusters) return bad(kWhat, "index");
  report->running.index = index;
  if (!read_number(fields, "sn", &report->running.sn)) return bad(kWhat, "sn");
  if (!read_numbers(fields, "depends", &report->running.depends)) return bad(kWhat, "depends");
  if (!read_numbers(fields, "incarnations", &report->running.incarnations)) return bad(kWhat, "incarnations");
  std::string_view list = field_text(fields, kHeld);
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(' '), list.size());
    federation::Stamp stamp;
    if (!decode_stamp(list.substr(0, end), &stamp)) return bad(kWhat, kHeld);
    report->held.push_back(stamp);
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  if (!decode_list(field_text(fields, kLoggedSince), &report->logged_since)) return bad(kWhat, kLoggedSince);
  if (!decode_list(field_text(fields, kTrimmed), &report->trimmed)) return bad(kWhat, kTrimmed);
  return {};
}

Fields encode_decision(const Decision& decision) {
  const federation::ClcRecord& record = decision.record;
  const bool committed = record.claim == federation::ClcRecord::Claim::kCommitted;
  Fields fields{{"verdict", committed ? "committed" : "void"},
                {"cluster", std::to_string(record.cluster)},
                {"sn", std::to_string(record.sn)},
                {"incarnation", std::to_string(record.incarnation)},
                {"by", decision.by}};
  if (!committed) return fields;
  fields["before"] = encode_numbers(record.before);
  fields["after"] = encode_numbers(record.after);
  fields["forced"] = record.forced ? "1" : "0";
  fields["set"] = decision.set;
  fields["set_id"] = decision.set_id;
  fields["at_ms"] = std::to_string(decision.at_ms);
  return fields;
}

Status decode_decision(const Fields& fields, Decision* decision) {
  constexpr char kWhat[] = "the decision over a CLC";
  const std::string& verdict = field_text(fields, "verdict");
  const bool committed = verdict == "committed";
  federation::ClcRecord& record = decision->record;
  std::uint32_t cluster = 0;
  *decision = Decision();
  if (!committed && verdict != "void") return bad(kWhat, "verdict");
  record.claim = committed ? federation::ClcRecord::Claim::kCommitted : federation::ClcRecord::Claim::kVoid;
  if (!read_number(fields, "cluster", &cluster) || cluster >= federation::kMaxClusters) return bad(kWhat, "cluster");
  record.cluster = cluster;
  if (!read_number(fields, "sn", &record.sn) || record.sn == 0) return bad(kWhat, "sn");
  if (!read_number(fields, "incarnation", &record.incarnation)) return bad(kWhat, "incarnation");
  decision->by = field_text(fields, "by");
  if (!committed) return {};
  if (!read_numbers(fields, "before", &record.before)) return bad(kWhat, "before");
  if (!read_numbers(fields, "after", &record.after)) return bad(kWhat, "after");
  if (record.before.clusters != record.after.clusters || cluster >= record.after.clusters) return bad(kWhat, "after");
  record.forced = field_number(fields, "forced") != 0;
  decision->set = field_text(fields, "set");
  decision->set_id = field_text(fields, "set_id");
  decision->at_ms = static_cast<std::int64_t>(field_number(fields, "at_ms"));
  return decision->set.empty() ? bad(kWhat, "set") : Status();
}

}  // namespace shadowib
