#include "hooks/federation/record_json.h"

#include <limits>

namespace shadowib::federation {
namespace {

Status bad(const char* field, const char* what) {
  return Status::of(Code::kCorrupt, 0, "the record of a cluster's checkpoint: field %s %s", field, what);
}

bool read_number(const Json& json, std::uint32_t* number) {
  if (!json.is_number_unsigned() || json.get<std::uint64_t>() > std::numeric_limits<std::uint32_t>::max())
    return false;
  *number = json.get<std::uint32_t>();
  return true;
}

Status read_field(const Json& json, const char* field, std::uint32_t* number) {
  return read_number(json[field], number) ? Status() : bad(field, "is no whole number of 32 bits");
}

Status read_list(const Json& json, const char* field, PerCluster* numbers) {
  const Json& list = json[field];
  if (!list.is_array() || list.empty() || list.size() > kMaxClusters)
    return bad(field, "is no list of 1 to 32 numbers");
  PerCluster read(static_cast<unsigned>(list.size()));
  unsigned i = 0;
  for (const Json& entry : list)
    if (!read_number(entry, &read[i++])) return bad(field, "has an entry that is no whole number of 32 bits");
  *numbers = read;
  return {};
}

constexpr const char* kFields[] = {"name", "index", "sn", "incarnation", "before", "after", "forced"};

bool known(const std::string& name) {
  for (const char* field : kFields)
    if (name == field) return true;
  return false;
}

}  // namespace

Json list_of(const PerCluster& numbers) {
  Json list = Json::array();
  for (unsigned i = 0; i < numbers.clusters; ++i) list.push_back(numbers[i]);
  return list;
}

Json encode_record(const ClcRecord& record, const std::string& name) {
  return Json{{"name", name},
              {"index", record.cluster},
              {"sn", record.sn},
              {"incarnation", record.incarnation},
              {"before", list_of(record.before)},
              {"after", list_of(record.after)},
              {"forced", record.forced}};
}

Status decode_record(const Json& json, ClcRecord* record, std::string* name) {
  for (const auto& [field, value] : json.items())
    if (!known(field)) return bad(field.c_str(), "is unknown");
  for (const char* field : kFields)
    if (!json.contains(field)) return bad(field, "is missing");
  if (!json["name"].is_string() || json["name"].get<std::string>().empty()) return bad("name", "is no name");
  if (!json["forced"].is_boolean()) return bad("forced", "is neither true nor false");
  ClcRecord read;
  std::uint32_t index = 0;
  SHADOWIB_TRY(read_field(json, "index", &index));
  SHADOWIB_TRY(read_field(json, "sn", &read.sn));
  SHADOWIB_TRY(read_field(json, "incarnation", &read.incarnation));
  SHADOWIB_TRY(read_list(json, "before", &read.before));
  SHADOWIB_TRY(read_list(json, "after", &read.after));
  if (read.sn == 0) return bad("sn", "is 0, which means that there is no checkpoint");
  if (read.before.clusters != read.after.clusters) return bad("after", "has another length than before");
  if (index >= read.before.clusters) return bad("index", "is beyond the lists");
  read.cluster = index;
  read.forced = json["forced"].get<bool>();
  *record = read;
  *name = json["name"].get<std::string>();
  return {};
}

}  // namespace shadowib::federation
