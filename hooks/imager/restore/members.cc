#include "hooks/imager/restore/members.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/save/restart_mailbox.h"

namespace shadowib {
namespace {

// What the command tells a member is written where the library in its image expects it, in that library's layout.
Status check_mailbox(const LoadedImage& image) {
  const std::uint64_t job_bytes = job_info_bytes(image.process.mailbox_layout);
  if (job_bytes != 0 && image.process.mailbox_bytes == job_bytes + 2 * sizeof(std::uint64_t)) return {};
  return Status::of(Code::kVersion, 0,
                    "member %u has a library of another shadowib in its image, which is told other things at a "
                    "restart; use the shadowib (%.31s) that wrote it",
                    image.header.member, image.header.shadowib_version);
}

}  // namespace

Status open_tables(const SetManifest& manifest, OpenedSet* set) {
  SHADOWIB_TRY(read_tables(manifest, &set->tables));
  std::map<std::uint32_t, Family> families;
  SHADOWIB_TRY(read_families(set->tables, &families));
  for (const SetMember& m : manifest.members) set->elsewhere.push_back({m.index, m.pid, families[m.index].group});
  return {};
}

Status open_members(const SetManifest& manifest, const std::set<std::uint32_t>& chosen, OpenedSet* set) {
  if (manifest.placement.store.is_near()) {
    SHADOWIB_TRY(open_tables(manifest, set));
    std::erase_if(set->elsewhere,
                  [&](const MemberElsewhere& m) { return chosen.empty() || chosen.contains(m.member); });
  }
  for (const SetMember& m : manifest.members) {
    if (manifest.placement.store.is_near() && !chosen.empty() && !chosen.contains(m.index)) continue;
    MemberImage member{};
    SHADOWIB_TRY(find_image(manifest, m, &member.path));
    member.fd = ::open(member.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (member.fd < 0)
      return Status::of(Code::kNotFound, errno, "cannot open image %s: %s", member.path.c_str(),
                        std::strerror(errno));
    set->members.push_back(std::move(member));
    MemberImage& back = set->members.back();
    SHADOWIB_TRY(load_image(back.fd, back.path, ReadDepth::kTables, &back.image));
    if (back.image.header.member != m.index)
      return Status::of(Code::kCorrupt, 0, "image %s is of member %u, the manifest says %u", back.path.c_str(),
                        back.image.header.member, m.index);
    SHADOWIB_TRY(check_mailbox(back.image));
    if (!back.image.descriptors.empty()) set->tables[m.index] = back.image.descriptors;
    if (chosen.empty() || chosen.contains(m.index)) continue;
    set->elsewhere.push_back({m.index, back.image.process.pid, back.image.process.process_group});
    ::close(back.fd);
    set->members.pop_back();
  }
  if (set->members.empty()) return Status(Code::kNotFound, 0, "the checkpoint set has no members");
  return {};
}

Status judge_recovery(const OpenedSet& set) {
  for (const MemberImage& m : set.members)
    if (!knows_recoveries(m.image.process.mailbox_layout))
      return Status::of(Code::kVersion, 0,
                        "member %u has a library of an older shadowib (%.31s) in its image, which cannot come back "
                        "while other clusters run on",
                        m.image.header.member, m.image.header.shadowib_version);
  return {};
}

void close_members(OpenedSet* set) {
  for (MemberImage& m : set->members) {
    if (m.fd >= 0) ::close(m.fd);
    m.fd = -1;
  }
}

Status split(const OpenedSet& set, std::vector<RestartPart>* parts) {
  std::vector<std::set<std::uint32_t>> namespaces;
  SHADOWIB_TRY(split_members(set.tables, &namespaces));
  RestartPart without;
  std::vector<RestartPart> with(namespaces.size());
  for (const MemberImage& m : set.members) {
    const auto at = std::find_if(namespaces.begin(), namespaces.end(),
                                 [&m](const auto& indices) { return indices.contains(m.image.header.member); });
    (at == namespaces.end() ? without : with[static_cast<std::size_t>(at - namespaces.begin())]).push_back(&m);
  }
  with.push_back(without);
  for (RestartPart& part : with)
    if (!part.empty()) parts->push_back(std::move(part));
  return {};
}

Status place_of(const MemberImage& member, const std::map<std::uint32_t, Family>& families, PlacedProcess* placed) {
  const ProcessRecord& p = member.image.process;
  placed->pid = p.pid;
  placed->group = p.process_group;
  placed->session = p.session;
  const auto at = families.find(member.image.header.member);
  if (at == families.end()) return {};
  const Family& family = at->second;
  const bool placed_alike = (family.group == 0 && family.session == 0) ||  // a table from before
                            (family.group == p.process_group && family.session == p.session);
  if (family.pid != p.pid || !placed_alike)
    return Status::of(Code::kCorrupt, 0, "member %u is pid %d in its image, and another or elsewhere in its table",
                      member.image.header.member, p.pid);
  placed->parent = family.parent;
  placed->ended = family.ended;
  return {};
}

std::set<std::uint32_t> indices_of(const RestartPart& part) {
  std::set<std::uint32_t> indices;
  for (const MemberImage* m : part) indices.insert(m->image.header.member);
  return indices;
}

ClockFloor clock_floor(const RestartPart& part) {
  ClockFloor floor{0, 0};
  for (const MemberImage* m : part) {
    floor.monotonic_ns = std::max(floor.monotonic_ns, m->image.process.monotonic_ns);
    floor.boottime_ns = std::max(floor.boottime_ns, m->image.process.boottime_ns);
  }
  return floor;
}

}  // namespace shadowib
