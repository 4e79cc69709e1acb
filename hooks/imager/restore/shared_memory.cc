#include "hooks/imager/restore/shared_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "hooks/imager/descriptors/match/match.h"
#include "hooks/imager/restore/shared_files.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

using descriptors::describe_segment;
using descriptors::Segment;
using descriptors::SegmentHolder;
using descriptors::SegmentKind;
using descriptors::Tables;

constexpr std::uint64_t kMostRunBytes = kPagesPerRecord * kPage;

// As those see it who see it best.
Segment merge(const std::vector<SegmentHolder>& holders) {
  const auto best =
      std::find_if(holders.begin(), holders.end(), [](const auto& h) { return h.segment().exact != 0; });
  Segment s = (best == holders.end() ? holders.front() : *best).segment();
  for (const SegmentHolder& h : holders) s.seals |= h.segment().seals;
  s.bytes = descriptors::segment_bytes(holders);
  return s;
}

std::set<std::uint32_t> members_here(const OpenedSet& set) {
  std::set<std::uint32_t> here;
  for (const MemberImage& m : set.members) here.insert(m.image.header.member);
  return here;
}

bool is_system_v(const Segment& s) { return s.kind == SegmentKind::kSystemV; }

void bind_holders(const std::vector<SegmentHolder>& holders, const BondSink& sink) {
  const SegmentHolder& first = holders.front();
  for (const SegmentHolder& h : holders) {
    if (h.table == first.table) continue;
    sink({first.table->member, h.table->member, [&first, &h] {
            return Status::of(
                Code::kRefused, 0,
                "member %u shares memory (%s) with member %u: they have to be restarted together, on one machine",
                first.table->member, describe_segment(first.segment()).c_str(), h.table->member);
          }});
  }
}

// Some of the holders are here and some are not; or they are in parts that cannot see each other's ids.
Status judge_together(const std::vector<SegmentHolder>& holders, const std::set<std::uint32_t>& here) {
  Status parted;
  bind_holders(holders, first_parted(here, &parted));
  SHADOWIB_TRY(parted);
  for (const SegmentHolder& h : holders)
    if (is_system_v(h.segment()))  // of a set that an earlier version took
      SHADOWIB_TRY(descriptors::judge_id_holders(*holders.front().table, *h.table, describe_segment(h.segment())));
  return {};
}

// True for what a part of the restart makes in its own namespaces: System V segments, which have ids there, and files
// without a name. A file can be given its name (linkat) only in the mount namespace in which it was opened.
bool is_made_in_part(const std::vector<SegmentHolder>& holders) {
  const Segment& s = holders.front().segment();
  return is_system_v(s) || (s.kind == SegmentKind::kUnlinked &&
                            std::all_of(holders.begin(), holders.end(), [&holders](const SegmentHolder& h) {
                              return h.table->processes == holders.front().table->processes;
                            }));
}

// Room for all segments at once. Members have limits of their own in their images.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

Status SharedMemoryPlan::prepare(const OpenedSet& set) {
  Tables tables;
  SHADOWIB_TRY(descriptors::decode_tables(set.tables, &tables));
  raise_descriptor_limit();
  const std::set<std::uint32_t> here = members_here(set);
  for (const auto& [key, holders] : descriptors::collect_segments(tables)) {
    SHADOWIB_TRY(judge_together(holders, here));
    if (!here.contains(holders.front().table->member)) continue;
    for (const SegmentHolder& h : holders) keys_[{h.table->member, h.index}] = key;
    Made& made = made_[key];
    made.segment = merge(holders);
    made.backing.bytes = made.segment.bytes;
    made.in_part = is_made_in_part(holders);
    if (is_system_v(made.segment)) continue;
    SHADOWIB_TRY(judge_shared_file(made.segment));  // once more: time has passed since the rehearsal
    if (made.in_part) continue;
    SHADOWIB_TRY(make_shared_file(made.segment, &made.backing.fd, &made.beside));
    if (!made.beside.empty()) unfinished_.push_back(made.beside);
  }
  for (const MemberImage& m : set.members) SHADOWIB_TRY(fill(m, false));
  return {};
}

Status SharedMemoryPlan::prepare_in_part(const RestartPart& part) {
  const std::set<std::uint32_t> here = indices_of(part);
  std::set<std::string> inside;
  for (const auto& [holder, key] : keys_)
    if (here.contains(holder.first)) inside.insert(key);
  std::vector<Made*> wanted;
  for (auto& [key, made] : made_)
    if (made.in_part && inside.contains(key)) wanted.push_back(&made);
  std::sort(wanted.begin(), wanted.end(), [](const Made* a, const Made* b) { return a->segment.id < b->segment.id; });
  for (Made* made : wanted)
    SHADOWIB_TRY(is_system_v(made->segment) ? make_system_v(made)
                                            : make_shared_file(made->segment, &made->backing.fd, &made->beside));
  for (const MemberImage* m : part) SHADOWIB_TRY(fill(*m, true));
  return {};
}

Status SharedMemoryPlan::make_system_v(Made* made) {
  const Segment& s = made->segment;
  SHADOWIB_TRY(make_system_v_segment(s, &made->backing.shmid));
  if (made->backing.shmid != s.id)
    log_line(LogLevel::kWarn, "restart: %s has id %d now: calls with its old id do not find it",
             describe_segment(s).c_str(), made->backing.shmid);
  void* at = ::shmat(made->backing.shmid, nullptr, 0);
  if (at == reinterpret_cast<void*>(-1)) return shared_memory_failure(Code::kRefused, s, "shmat fails", errno);
  made->attached = static_cast<std::uint8_t*>(at);
  // Who has it attached is counted, and the program may ask: no process that only waits may be among them.
  ::madvise(at, made->backing.bytes, MADV_DONTFORK);
  if (s.removed != 0) ::shmctl(made->backing.shmid, IPC_RMID, nullptr);
  return {};
}

// What the member's image has of segments that are made here.
Status SharedMemoryPlan::fill(const MemberImage& member, bool in_part) {
  std::vector<std::uint8_t> pages;
  ImageFiles files(member.image, member.fd);
  for (const PageBatch& batch : member.image.shared) {
    const auto known = keys_.find({member.image.header.member, batch.mapping});
    if (known == keys_.end())
      return Status::of(Code::kCorrupt, 0, "image %s has content of shared memory that its table does not list",
                        member.path.c_str());
    Made& made = made_.at(known->second);
    if (made.in_part != in_part) continue;
    const bool system_v = is_system_v(made.segment);
    SHADOWIB_TRY(files.read(batch, &pages));
    const std::uint8_t* from = pages.data();
    for (std::uint32_t i = 0; i < batch.run_count; ++i) {
      const LoadedRun& run = member.image.runs[batch.first_run + i];
      if (run.address >= made.backing.bytes || run.length > kMostRunBytes ||
          run.length > made.backing.bytes - run.address + (kPage - 1))
        return Status::of(Code::kCorrupt, 0, "image %s has content behind the end of shared memory (%s)",
                          member.path.c_str(), describe_segment(made.segment).c_str());
      const std::uint64_t bytes = system_v ? run.length : std::min(run.length, made.backing.bytes - run.address);
      if (system_v)
        std::memcpy(made.attached + run.address, from, bytes);
      else if (::pwrite(made.backing.fd, from, bytes, static_cast<off_t>(run.address)) != static_cast<ssize_t>(bytes))
        return shared_memory_failure(Code::kIo, made.segment, "there is no room for its content", errno);
      from += run.length;
    }
  }
  return {};
}

bool SharedMemoryPlan::find(std::uint32_t member, std::uint64_t segment, Backing* backing) const {
  const auto key = keys_.find({member, segment});
  if (key == keys_.end()) return false;
  *backing = made_.at(key->second).backing;
  return backing->fd >= 0 || backing->shmid >= 0;
}

Status SharedMemoryPlan::finish() {
  for (const auto& [key, made] : made_) {
    if (made.backing.fd >= 0) SHADOWIB_TRY(finish_shared_file(made.segment, made.backing.fd, made.beside));
    if (made.attached != nullptr) SHADOWIB_TRY(finish_system_v_segment(made.segment, made.backing.shmid));
  }
  close();
  return {};
}

void SharedMemoryPlan::discard() {
  for (const std::string& name : unfinished_) ::unlink(name.c_str());
}

void SharedMemoryPlan::close() {
  for (auto& [key, made] : made_) {
    if (made.backing.fd >= 0) ::close(made.backing.fd);
    if (made.attached != nullptr) ::shmdt(made.attached);
  }
  made_.clear();
  keys_.clear();
}

bool has_system_v(const OpenedSet& set, const RestartPart& part) {
  const std::set<std::uint32_t> here = indices_of(part);
  Tables tables;
  if (!descriptors::decode_tables(set.tables, &tables).ok()) return false;
  for (const auto& [member, table] : tables)
    if (here.contains(member) && (std::any_of(table.segments.begin(), table.segments.end(), is_system_v) ||
                                  !table.semaphores.empty() || !table.queues.empty()))
      return true;
  return false;
}

Status find_memory_bonds(const OpenedSet& set, const BondSink& sink) {
  Tables tables;
  SHADOWIB_TRY(descriptors::decode_tables(set.tables, &tables));
  for (const auto& [key, holders] : descriptors::collect_segments(tables)) bind_holders(holders, sink);
  return {};
}

Status judge_shared_memory(const OpenedSet& set, const std::function<void(const Status&)>& obstacle) {
  Tables tables;
  SHADOWIB_TRY(descriptors::decode_tables(set.tables, &tables));
  const std::set<std::uint32_t> here = members_here(set);
  for (const auto& [key, holders] : descriptors::collect_segments(tables)) {
    const bool is_here = std::any_of(holders.begin(), holders.end(),
                                     [&here](const auto& h) { return here.contains(h.table->member); });
    if (!is_here) continue;
    if (Status status = judge_together(holders, here); !status.ok()) obstacle(status);
    if (Status status = judge_shared_file(merge(holders)); !status.ok()) obstacle(status);
  }
  return {};
}

}  // namespace shadowib
