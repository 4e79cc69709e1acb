// A CLC's record as JSON: the member "cluster" of a set's manifest.
//
//   {"name": "B", "index": 1, "sn": 7, "incarnation": 0, "before": [3, 0], "after": [4, 0], "forced": true}
//
// For commands: uses the heap. The claim is not part of it: it is made once the set is written.
#pragma once

#include <string>

#include "hooks/federation/rule.h"
#include "shadowib/base/json_value.h"

namespace shadowib::federation {

// [3, 0]: a number for each cluster.
Json list_of(const PerCluster& numbers);

// `name` is the cluster's.
Json encode_record(const ClcRecord& record, const std::string& name);

// Every field must be there, and nothing else. Numbers are whole and fit 32 bits. Both lists have one entry for each
// cluster: at least index + 1, and at most kMaxClusters. kCorrupt names the field. *record is undecided.
[[nodiscard]] Status decode_record(const Json& json, ClcRecord* record, std::string* name);

}  // namespace shadowib::federation
