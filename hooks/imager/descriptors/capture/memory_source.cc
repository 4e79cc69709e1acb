// The member's side: opens what it is to write, so that the imager only has to read.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "hooks/imager/descriptors/capture/refuse.h"
#include "hooks/imager/descriptors/table.h"
#include "hooks/imager/shared_memory.h"
#include "hooks/raw/proc.h"
#include "shadowib/base/descriptors.h"

namespace shadowib {
namespace descriptors {
namespace {

// What the command says: "m NAMESPACE PID" of each member on this machine, "w INDEX BYTES" of what is to be written.
struct Duty {
  std::set<std::pair<std::uint64_t, int>> members;
  std::map<std::size_t, std::uint64_t> bytes;
};

Duty parse_duty(const std::string& text) {
  Duty duty;
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string_view line = std::string_view(text).substr(at, end - at);
    const std::size_t space = line.find(' ', 2);
    if (space == std::string_view::npos) continue;
    const std::uint64_t first = parse_number(line.substr(2, space - 2), 10);
    const std::uint64_t second = parse_number(line.substr(space + 1), 10);
    if (line[0] == 'm') duty.members.emplace(first, static_cast<int>(second));
    if (line[0] == 'w') duty.bytes[first] = second;
  }
  return duty;
}

int open_for_reading(const char* path, const Segment& s) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat st {};
  if (fd < 0 || (::fstat(fd, &st) == 0 && st.st_ino == s.inode)) return fd;
  raw_close(fd);
  return -1;
}

// A System V segment may be used up to the end of its last page, which a file is not read to.
int open_segment(const Table& table, const Segment& s, const std::vector<SharedMapping>& mapped) {
  char path[80];
  int fd = -1;
  if (s.kind == SegmentKind::kSystemV) return fd;
  for (const Descriptor& d : table.descriptors) {
    const Object& o = table.objects[d.object];
    if (fd >= 0) break;
    if (o.kind != Kind::kMemory || o.device != s.device || o.inode != s.inode) continue;
    std::snprintf(path, sizeof(path), "/proc/self/fd/%d", d.fd);
    fd = open_for_reading(path, s);
  }
  if (fd < 0 && s.has_name()) fd = open_for_reading(s.path.c_str(), s);
  for (const SharedMapping& m : mapped) {
    if (fd >= 0) break;
    std::snprintf(path, sizeof(path), "/proc/self/map_files/%lx-%lx", m.start, m.end);
    fd = open_for_reading(path, s);
  }
  return fd;
}

std::uint64_t view_bytes(const SharedMemory& m) { return (m.bytes - m.low + 4095) & ~4095ull; }

// A second mapping of the same pages, which may be longer than the first: mremap(2), BUGS.
Status map_view(const Segment& s, const std::vector<SharedMapping>& mapped, SharedMemory* m) {
  if (s.kind == SegmentKind::kSystemV && s.attached_here == 0) {
    void* at = ::shmat(s.id, nullptr, SHM_RDONLY);
    if (at == reinterpret_cast<void*>(-1))
      return refuse_segment(s, "it cannot be attached; raise the limit of address space (ulimit -v)", errno);
    m->view = reinterpret_cast<std::uint64_t>(at);
    m->view_is_ours = true;
    own_mapping(at, view_bytes(*m));
    return {};
  }
  for (const SharedMapping& from : mapped) {
    if (from.offset != m->low) continue;
    const long view = ::syscall(SYS_mremap, from.start, 0, view_bytes(*m), MREMAP_MAYMOVE, 0);
    m->view_is_ours = view != -1;
    m->view = m->view_is_ours ? static_cast<std::uint64_t>(view) : from.start;
    // A mapping that is sealed, or locked up to the limit, has to do itself.
    if (!m->view_is_ours && from.end - from.start >= view_bytes(*m)) return {};
    if (!m->view_is_ours)
      return refuse_segment(s, "a second mapping of it cannot be made; raise the limit of address space (ulimit -v)",
                            errno);
    own_mapping(reinterpret_cast<void*>(view), view_bytes(*m));
    return {};
  }
  return refuse_segment(s, "it is not mapped as it was a moment ago", EAGAIN);
}

bool is_mapping_of(const SharedMapping& m, const Segment& s) {
  return m.device == s.mapped_device && m.inode == s.inode &&
         m.path.starts_with("/SYSV") == (s.kind == SegmentKind::kSystemV);
}

// Nobody but members may have what is written. Before anything is opened: closing it again drops record locks, which
// an outsider may wait for.
Status judge_users(const Table& table, const std::set<FileNumbers>& written, const Duty& duty) {
  FileNumbers file;
  std::string who;
  const auto is_member = [&duty](std::uint64_t space, int pid) { return duty.members.contains({space, pid}); };
  find_user(written, is_member, &file, &who);
  if (who.empty()) return {};
  const int index = table.segment_of_file(file.first, file.second);
  const Segment& s = table.segments[static_cast<std::size_t>(index)];
  // What nobody has mapped yet is mapped in a moment, or no memory after all.
  const int error = s.kind == SegmentKind::kNamed && s.mapped_device == 0 ? EAGAIN : 0;
  return refuse_segment(
      s, (who + " has it too and is no member of the job; run it in the job, or have it let go").c_str(), error);
}

}  // namespace
}  // namespace descriptors

Status SharedMemorySource::open(const std::string& encoded, const std::string& text) {
  using namespace descriptors;
  Table table;
  list_.clear();
  SHADOWIB_TRY(decode_table(encoded, &table));
  if (table.segments.empty()) return {};
  if (text.empty())
    return Status(
        Code::kVersion, 0,
        "the checkpoint command knows nothing of shared memory; use that of the shadowib the job runs with");
  const Duty duty = parse_duty(text);
  std::vector<SharedMapping> mappings;
  if (const int error = read_shared_mappings("/proc/self/maps", &mappings); error != 0)
    return Status::of(Code::kPermission, error, "cannot read /proc/self/maps (errno %d); mount /proc", error);
  std::set<FileNumbers> written;
  for (const auto& [index, bytes] : duty.bytes)
    if (index < table.segments.size() && table.segments[index].kind != SegmentKind::kSystemV)
      written.insert({table.segments[index].device, table.segments[index].inode});
  SHADOWIB_TRY(judge_users(table, written, duty));
  for (std::size_t i = 0; i < table.segments.size(); ++i) {
    const Segment& s = table.segments[i];
    SharedMemory& m = list_.emplace_back();
    m.device = s.mapped_device;
    m.inode = s.inode;
    m.system_v = s.kind == SegmentKind::kSystemV;
    m.in_memory = !s.may_be_on_disk();
    m.fd = -1;
    const auto bytes = duty.bytes.find(i);
    if (bytes == duty.bytes.end()) continue;
    m.bytes = bytes->second;
    std::vector<SharedMapping> mapped;
    for (const SharedMapping& candidate : mappings)
      if (is_mapping_of(candidate, s)) mapped.push_back(candidate);
    m.fd = open_segment(table, s, mapped);
    if (m.fd >= 0) continue;
    m.low = s.low;
    if (m.low < m.bytes) SHADOWIB_TRY(map_view(s, mapped, &m));
  }
  return {};
}

void SharedMemorySource::close() {
  for (const SharedMemory& m : list_) {
    if (m.fd >= 0) raw_close(m.fd);
    if (!m.view_is_ours) continue;
    disown_mapping(reinterpret_cast<void*>(m.view));
    ::munmap(reinterpret_cast<void*>(m.view), descriptors::view_bytes(m));
  }
  list_.clear();
}

}  // namespace shadowib
