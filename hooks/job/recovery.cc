#include "hooks/job/recovery.h"

#include <algorithm>
#include <cstdlib>

#include "hooks/job/cluster.h"

namespace shadowib {
namespace {

using federation::PerCluster;

Status bad(const char* what, const char* field) {
  return Status::of(Code::kCorrupt, 0, "%s: field %s is missing or damaged", what, field);
}

Status fields_at(Exchange& exchange, const std::string& key, Fields* fields, bool* found) {
  std::string text;
  SHADOWIB_TRY(exchange.get(key, &text, found));
  if (!*found || decode_fields(text, fields)) return {};
  return Status::of(Code::kVersion, 0, "%.120s has another protocol", key.c_str());
}

Status read_plan(Exchange& exchange, std::string_view epoch, std::uint64_t number, bool* found, RecoveryPlan* plan) {
  const std::string key = recovery_key(epoch, number, "line");
  Fields fields;
  SHADOWIB_TRY(fields_at(exchange, key, &fields, found));
  if (!*found) return {};
  if (const Status s = decode_plan(fields, plan); !s.ok())
    return Status::of(s.code(), 0, "%.120s: %.200s", key.c_str(), s.text());
  plan->number = number;
  std::string text;
  return exchange.get(recovery_key(epoch, number, "reached"), &text, &plan->reached);
}

}  // namespace

bool RecoveryPlan::goes_back(unsigned cluster) const {
  return std::find(back.begin(), back.end(), cluster) != back.end();
}

Fields encode_plan(const RecoveryPlan& plan) {
  std::string back;
  for (const unsigned cluster : plan.back) back += (back.empty() ? "" : ",") + std::to_string(cluster);
  std::string replaying;
  for (const std::uint32_t member : plan.replaying)
    replaying += (replaying.empty() ? "" : ",") + std::to_string(member);
  return {{"back", back},
          {"replaying", replaying},
          {"sns", encode_numbers(plan.sns)},
          {"incarnations", encode_numbers(plan.incarnations)},
          {"generation", std::to_string(plan.generation)}};
}

Status decode_plan(const Fields& fields, RecoveryPlan* plan) {
  constexpr char kWhat[] = "the line of a recovery";
  PerCluster back;
  *plan = RecoveryPlan();
  if (!decode_numbers(field_text(fields, "sns"), &plan->sns)) return bad(kWhat, "sns");
  if (!decode_numbers(field_text(fields, "incarnations"), &plan->incarnations) ||
      plan->incarnations.clusters != plan->sns.clusters)
    return bad(kWhat, "incarnations");
  if (!decode_numbers(field_text(fields, "back"), &back)) return bad(kWhat, "back");
  for (unsigned i = 0; i < back.clusters; ++i) {
    if (back[i] >= plan->sns.clusters || plan->goes_back(back[i])) return bad(kWhat, "back");
    plan->back.push_back(back[i]);
  }
  const std::string& members = field_text(fields, "replaying");
  for (std::size_t at = 0; at < members.size(); at = members.find(',', at) + 1) {
    char* end = nullptr;
    plan->replaying.push_back(static_cast<std::uint32_t>(std::strtoul(members.c_str() + at, &end, 10)));
    if (end == members.c_str() + at || (*end != ',' && *end != '\0')) return bad(kWhat, "replaying");
    if (*end == '\0') break;
  }
  plan->generation = static_cast<std::uint32_t>(field_number(fields, "generation"));
  return plan->generation != 0 ? Status() : bad(kWhat, "generation");
}

Fields encode_word(const IncarnationWord& word) {
  return {{"n", std::to_string(word.n)}, {"incarnations", encode_numbers(word.incarnations)}};
}

Status decode_word(const Fields& fields, IncarnationWord* word) {
  constexpr char kWhat[] = "the word on incarnations";
  *word = IncarnationWord();
  word->n = field_number(fields, "n");
  if (word->n == 0) return bad(kWhat, "n");
  return decode_numbers(field_text(fields, "incarnations"), &word->incarnations) ? Status()
                                                                                 : bad(kWhat, "incarnations");
}

std::string recovery_key(std::string_view epoch, std::uint64_t number, std::string_view rest) {
  std::string key(epoch);
  key += "/recovery/" + std::to_string(number) + "/";
  return key += rest;
}

std::string gate_board_name(std::string_view epoch, std::uint64_t number) {
  std::string name = "gates-";
  name += epoch;
  return name += "-" + std::to_string(number);
}

std::string incarnations_key(std::string_view epoch) { return std::string(epoch) + "/control/recovery"; }

std::string wired_key(std::string_view epoch, unsigned from, unsigned to) {
  return std::string(epoch) + "/wired/" + std::to_string(from) + "." +
         (to == kManyClusters ? "m" : std::to_string(to));
}

std::uint32_t generation_of(std::string_view epoch) {
  return epoch.empty() ? 0
                       : static_cast<std::uint32_t>(std::strtoul(std::string(epoch.substr(1)).c_str(), nullptr, 10));
}

Status read_plans(Exchange& exchange, std::string_view epoch, std::vector<RecoveryPlan>* plans,
                  std::uint64_t* latest) {
  std::vector<std::string> names;
  plans->clear();
  if (latest != nullptr) *latest = 0;
  SHADOWIB_TRY(exchange.list(std::string(epoch) + "/recovery", &names));
  for (const std::string& name : names) {
    RecoveryPlan plan;
    bool found = false;
    const std::uint64_t number = std::strtoull(name.c_str(), nullptr, 10);
    if (latest != nullptr) *latest = std::max(*latest, number);
    SHADOWIB_TRY(read_plan(exchange, epoch, number, &found, &plan));
    if (found) plans->push_back(std::move(plan));
  }
  std::sort(plans->begin(), plans->end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  return {};
}

Status read_word(Exchange& exchange, std::string_view epoch, IncarnationWord* word) {
  Fields fields;
  bool found = false;
  *word = IncarnationWord();
  SHADOWIB_TRY(fields_at(exchange, incarnations_key(epoch), &fields, &found));
  return found ? decode_word(fields, word) : Status();
}

Status read_wired(Exchange& exchange, std::string_view epoch, std::set<std::pair<unsigned, unsigned>>* wired) {
  std::vector<std::string> names;
  std::set<unsigned> in_groups;
  wired->clear();
  SHADOWIB_TRY(exchange.list(std::string(epoch) + "/wired", &names));
  for (const std::string& name : names) {
    const std::size_t dot = name.find('.');
    if (dot == std::string::npos) continue;
    const auto a = static_cast<unsigned>(std::strtoul(name.c_str(), nullptr, 10));
    if (name.substr(dot + 1) == "m") {
      for (const unsigned other : in_groups) wired->insert(std::minmax(a, other));
      in_groups.insert(a);
      continue;
    }
    const auto b = static_cast<unsigned>(std::strtoul(name.c_str() + dot + 1, nullptr, 10));
    wired->insert(std::minmax(a, b));
  }
  return {};
}

bool is_undone(const std::vector<RecoveryPlan>& plans, const federation::ClcRecord& record) {
  return std::any_of(plans.begin(), plans.end(), [&record](const RecoveryPlan& plan) {
    return plan.goes_back(record.cluster) && record.incarnation < plan.incarnations[record.cluster] &&
           record.sn > plan.sns[record.cluster];
  });
}

}  // namespace shadowib
