// Which members share memory, and which of them writes it.
#include <algorithm>

#include "hooks/imager/descriptors/match/match.h"
#include "hooks/imager/shared_memory.h"

namespace shadowib {
namespace descriptors {
namespace {

Status refuse_segment(const SegmentHolder& h, const std::string& why) {
  return Status::of(Code::kRefused, 0, "shared memory (%s) of pid %d, member %u, cannot be checkpointed: %s",
                    describe_segment(h.segment()).c_str(), h.table->pid, h.table->member, why.c_str());
}

Status judge_attachments(const std::vector<SegmentHolder>& holders) {
  std::uint64_t ours = 0, all = 0;
  for (const SegmentHolder& h : holders) {
    ours += h.segment().attached_here;
    all = std::max(all, h.segment().attached);
  }
  if (all <= ours) return {};
  return refuse_segment(holders.front(), "it is attached " + std::to_string(all - ours) +
                                             " times by processes outside the job; run them in the job too, or "
                                             "have them detach it");
}

}  // namespace

std::string segment_key(const Table& table, const Segment& s) {
  const bool numbered = s.kind == SegmentKind::kSystemV;
  return table.kernel + (numbered ? " id " : " file ") + std::to_string(numbered ? s.space : s.device) + " " +
         std::to_string(numbered ? static_cast<std::uint32_t>(s.id) : s.inode);
}

SharedSegments collect_segments(const Tables& tables) {
  SharedSegments all;
  for (const auto& [member, table] : tables)
    for (std::uint32_t i = 0; i < table.segments.size(); ++i)
      all[segment_key(table, table.segments[i])].push_back({&table, i});
  return all;
}

std::uint64_t segment_bytes(const std::vector<SegmentHolder>& holders) {
  std::uint64_t bytes = 0;
  for (const SegmentHolder& h : holders) {
    if (h.segment().exact != 0) return h.segment().bytes;
    bytes = std::max(bytes, h.segment().bytes);
  }
  return bytes;
}

}  // namespace descriptors

Status assign_shared_memory(const std::map<std::uint32_t, std::string>& encoded,
                            std::map<std::uint32_t, std::string>* duties) {
  using namespace descriptors;
  Tables tables;
  SHADOWIB_TRY(decode_tables(encoded, &tables));
  duties->clear();
  std::map<std::string, std::string> neighbours;  // of a kernel, all members
  for (const auto& [member, table] : tables)
    neighbours[table.kernel] += "m " + std::to_string(table.processes) + " " + std::to_string(table.pid) + "\n";
  for (const auto& [member, table] : tables)
    if (!table.segments.empty()) (*duties)[member] = neighbours[table.kernel];
  for (const auto& [key, holders] : collect_segments(tables)) {
    SHADOWIB_TRY(judge_attachments(holders));
    for (const SegmentHolder& h : holders)
      if (h.segment().kind == SegmentKind::kSystemV)
        SHADOWIB_TRY(judge_id_holders(*holders.front().table, *h.table, describe_segment(h.segment())));
    const auto writer = std::min_element(holders.begin(), holders.end(), [](const auto& a, const auto& b) {
      return a.segment().low < b.segment().low;  // the first of equals, and members ascend
    });
    const std::uint64_t bytes = segment_bytes(holders);
    if (writer->segment().low == kOutOfReach)
      return refuse_segment(*writer, "no member may read it; open it for reading too, or map it");
    (*duties)[writer->table->member] += "w " + std::to_string(writer->index) + " " + std::to_string(bytes) + "\n";
  }
  return {};
}

}  // namespace shadowib
