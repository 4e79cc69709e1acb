#include "hooks/job/decisions.h"

#include <algorithm>
#include <tuple>

namespace shadowib {
namespace {

Status read(const std::string& key, const std::string& text, Decision* decision) {
  Fields fields;
  Status status = decode_fields(text, &fields) ? decode_decision(fields, decision)
                                               : Status(Code::kCorrupt, 0, "it has another protocol");
  return status.ok() ? status : Status::of(Code::kCorrupt, 0, "%.120s: %.200s", key.c_str(), status.text());
}

bool is_committed(const Decision& decision) {
  return decision.record.claim == federation::ClcRecord::Claim::kCommitted;
}

}  // namespace

Status read_decisions(Exchange& exchange, std::string_view epoch, unsigned cluster,
                      std::vector<Decision>* decisions) {
  decisions->clear();
  std::vector<std::string> keys, values;
  std::vector<bool> found;
  SHADOWIB_TRY(exchange.list(clc_key(epoch, cluster, ""), &keys));
  if (keys.empty()) return {};
  for (std::string& key : keys) key = clc_key(epoch, cluster, key);
  SHADOWIB_TRY(exchange.lookup(keys, &values, &found));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    Decision decision;
    if (!found[i]) continue;
    SHADOWIB_TRY(read(keys[i], values[i], &decision));
    decisions->push_back(std::move(decision));
  }
  std::sort(decisions->begin(), decisions->end(), [](const Decision& a, const Decision& b) {
    return std::tuple(a.record.sn, is_committed(a)) < std::tuple(b.record.sn, is_committed(b));
  });
  return {};
}

Status decide(Exchange& exchange, std::string_view epoch, std::uint64_t attempt, const Decision& mine,
              Decision* decided) {
  const std::string key =
      clc_key(epoch, mine.record.cluster, clc_name(mine.record.incarnation, mine.record.sn, attempt));
  const Status claimed = exchange.claim(key, encode_fields(encode_decision(mine)));
  if (claimed.ok()) *decided = mine;
  if (claimed.code() != Code::kBusy) return claimed;
  std::string text;
  bool found = false;
  SHADOWIB_TRY(exchange.get(key, &text, &found));
  return found ? read(key, text, decided)
               : Status::of(Code::kIo, 0, "%.120s was claimed, and is not there", key.c_str());
}

}  // namespace shadowib
