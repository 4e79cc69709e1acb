#include "hooks/imager/save/mapping_table.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <sys/mman.h>

#include "hooks/imager/save/vm_flags.h"
#include "hooks/raw/text.h"
#include "hooks/raw/x86_64/raw_syscall.h"
#include "shadowib/base/descriptors.h"

namespace shadowib {
namespace {

constexpr std::size_t kTextBytes = 64 << 10;  // read at a time: a path may be longer, by names of directories

// One mapping as smaps tells it.
struct Area {
  std::uint64_t start, end, offset, inode;
  std::uint32_t protection;
  bool shared;
  std::uint64_t device;
  const char* path;
  std::uint32_t path_bytes;
  std::uint64_t protection_key;
  std::uint32_t advice;
  bool no_reserve, grows_down, device_memory, may_write;
  const VmFlag* refused;  // the first flag that stands in the way
  char unknown[3];        // a flag that is in no table
};

// The address spaces of big programs make long texts, so smaps is read piece by piece, line by line. Without flags
// maps is read: a tenth of the kernel's work.
class SmapsReader {
 public:
  SmapsReader(char* buffer, bool flags) : buffer_(buffer) {
    fd_ = raw::invoke(__NR_openat, AT_FDCWD, flags ? "/proc/self/smaps" : "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
  }
  ~SmapsReader() {
    if (fd_ >= 0) raw::invoke(__NR_close, fd_);
  }
  SmapsReader(const SmapsReader&) = delete;
  SmapsReader& operator=(const SmapsReader&) = delete;

  int error() const { return fd_ < 0 ? static_cast<int>(-fd_) : error_; }

  // Returns the next line, zero-ended, valid until the next call; nullptr at the end.
  const char* next() {
    for (;;) {
      const std::size_t end = find_end(scan_);
      if (end < filled_) {
        buffer_[end] = '\0';
        const char* line = buffer_ + begin_;
        begin_ = scan_ = end + 1;
        return line;
      }
      scan_ = filled_;
      if (!refill()) return nullptr;
    }
  }

 private:
  // Of the line, from there on; filled_ if there is none. A mapping has a kilobyte of lines.
  std::size_t find_end(std::size_t from) const {
    using Bytes = char __attribute__((vector_size(16)));
    constexpr Bytes kEnds = Bytes{} + '\n';
    for (; from + sizeof(Bytes) <= filled_; from += sizeof(Bytes)) {
      Bytes bytes;
      __builtin_memcpy(&bytes, buffer_ + from, sizeof(bytes));
      const int found = __builtin_ia32_pmovmskb128(bytes == kEnds);
      if (found != 0) return from + static_cast<std::size_t>(__builtin_ctz(static_cast<unsigned>(found)));
    }
    while (from < filled_ && buffer_[from] != '\n') ++from;
    return from;
  }

  bool refill() {
    if (fd_ < 0) return false;
    for (std::size_t i = begin_; i < filled_; ++i) buffer_[i - begin_] = buffer_[i];
    scan_ -= begin_;
    filled_ -= begin_;
    begin_ = 0;
    if (filled_ == kTextBytes) {  // by one line, whose end and all behind it would be left out
      error_ = ENAMETOOLONG;
      return false;
    }
    const long n = raw::invoke(__NR_read, fd_, buffer_ + filled_, kTextBytes - filled_);
    if (n < 0) error_ = static_cast<int>(-n);
    if (n <= 0) return false;
    filled_ += static_cast<std::size_t>(n);
    return true;
  }

  char* buffer_;
  long fd_ = -1;
  int error_ = 0;
  std::size_t begin_ = 0, scan_ = 0, filled_ = 0;
};

// As stat(2) has it.
std::uint64_t device_number(std::uint64_t high, std::uint64_t low) {
  return (high & 0xfff) << 8 | (high & ~0xfffull) << 32 | (low & 0xff) | (low & ~0xffull) << 12;
}

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

// True if `line` starts a mapping ("55d0-55d1 r-xp ...") rather than one of its fields ("Rss: ...").
bool parse_head(const char* line, Area* area) {
  if (!is_hex(*line)) return false;
  const char* at = line;
  *area = Area{};
  area->start = parse_number(&at, 16);
  if (*at != '-') return false;
  ++at;
  area->end = parse_number(&at, 16);
  if (*at != ' ') return false;
  ++at;
  area->protection =
      (at[0] == 'r' ? PROT_READ : 0) | (at[1] == 'w' ? PROT_WRITE : 0) | (at[2] == 'x' ? PROT_EXEC : 0);
  area->shared = at[3] == 's';
  at += 5;
  area->offset = parse_number(&at, 16);
  ++at;
  const std::uint64_t high = parse_number(&at, 16);
  ++at;
  const std::uint64_t low = parse_number(&at, 16);
  area->device = device_number(high, low);
  ++at;
  area->inode = parse_number(&at, 10);
  while (*at == ' ') ++at;
  area->path = at;
  while (at[area->path_bytes] != '\0') ++area->path_bytes;
  return true;
}

bool is_flag(const char* at, const char* name) { return at[0] == name[0] && at[1] == name[1]; }

void parse_flags(const char* at, Area* area) {
  for (;; at += 2) {
    while (*at == ' ') ++at;
    if (at[0] == '\0' || at[1] == '\0') return;
    const VmFlag* flag = find_vm_flag(at);
    if (flag == nullptr) {
      area->unknown[0] = at[0], area->unknown[1] = at[1];
      continue;
    }
    area->advice |= flag->advice;
    if (flag->fate == FlagFate::kRefused && area->refused == nullptr) area->refused = flag;
    if (flag->fate == FlagFate::kDevice) area->device_memory = true;
    if (is_flag(at, "nr")) area->no_reserve = true;
    if (is_flag(at, "mw")) area->may_write = true;
    if (is_flag(at, "gd")) area->grows_down = true;
  }
}

bool starts_with(const char* text, const char* prefix) {
  while (*prefix != '\0')
    if (*text++ != *prefix++) return false;
  return true;
}

// What stands behind the name of a field; nullptr: the line is of another one.
template <std::size_t n>
const char* value_of(const char* line, const char (&name)[n]) {
  return starts_with(line, name) ? line + n - 1 : nullptr;
}

// Tools that run a program's code by themselves, by what they map: their own state cannot be captured.
struct Instrument {
  const char* file;  // a part of its path, which ends in its last component
  const char* what;
};
constexpr Instrument kInstruments[] = {
    {"/vgpreload_", "valgrind runs this program"},      {"/valgrind/memcheck-", "valgrind runs this program"},
    {"libdynamorio.so", "DynamoRIO runs this program"}, {"/pinbin", "Intel Pin runs this program"},
    {"frida-agent", "Frida instruments this program"},  {"/qemu-x86_64", "QEMU's user emulation runs this program"},
    {"/FEXInterpreter", "FEX-Emu runs this program"},   {"/box64", "box64 runs this program"},
};

// Whether `part` is in `path` and no directory follows it: a program's data may lie below a directory of such a name.
bool names_file(const char* path, const char* part) {
  const char* behind = nullptr;
  for (; *path != '\0'; ++path)
    if (starts_with(path, part)) behind = path + __builtin_strlen(part);
  if (behind == nullptr) return false;
  while (*behind != '\0' && *behind != '/') ++behind;
  return *behind == '\0';
}

// nullptr: of none.
const char* instrument_of(const char* path) {
  if (path[0] != '/') return nullptr;
  for (const Instrument& tool : kInstruments)
    if (names_file(path, tool.file)) return tool.what;
  return nullptr;
}
bool ends_with(const char* text, std::uint32_t bytes, const char* suffix) {
  std::uint32_t n = 0;
  while (suffix[n] != '\0') ++n;
  return bytes >= n && starts_with(text + bytes - n, suffix);
}

// The build-id out of the notes of an ELF file mapped from its start, read through descriptor `memory` so that an
// unreadable page is an error and no signal.
void find_build_id(long memory, MappingRecord* m) {
  Elf64_Ehdr header;
  if (raw::invoke(__NR_pread64, memory, &header, sizeof(header), m->start) != sizeof(header)) return;
  if (__builtin_memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_phentsize != sizeof(Elf64_Phdr)) return;
  for (unsigned i = 0; i < header.e_phnum && i < 64; ++i) {
    Elf64_Phdr p;
    const std::uint64_t at = header.e_phoff + i * sizeof(p);
    if (at + sizeof(p) > m->length || raw::invoke(__NR_pread64, memory, &p, sizeof(p), m->start + at) != sizeof(p))
      return;
    if (p.p_type != PT_NOTE || p.p_offset + p.p_filesz > m->length || p.p_filesz > 1024) continue;
    std::uint8_t notes[1024];
    if (raw::invoke(__NR_pread64, memory, notes, p.p_filesz, m->start + p.p_offset) != static_cast<long>(p.p_filesz))
      continue;
    for (std::uint64_t n = 0; n + sizeof(Elf64_Nhdr) <= p.p_filesz;) {
      Elf64_Nhdr note;
      __builtin_memcpy(&note, notes + n, sizeof(note));
      const std::uint64_t name = n + sizeof(note), id = name + ((note.n_namesz + 3ull) & ~3ull);
      const std::uint64_t next = id + ((note.n_descsz + 3ull) & ~3ull);
      if (next > p.p_filesz) break;
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && note.n_descsz <= sizeof(m->build_id) &&
          __builtin_memcmp(notes + name, "GNU", 4) == 0) {
        m->build_id_bytes = note.n_descsz;
        __builtin_memcpy(m->build_id, notes + id, note.n_descsz);
        return;
      }
      n = next;
    }
  }
}

constexpr std::size_t kInspectionBytes = 16 << 20;  // address space
constexpr Code kUnknownMapping = Code::kNotFound;

Status unknown_mapping() { return Status(kUnknownMapping, 0, "a mapping was not there a moment ago"); }

Status no_memory() {
  return Status(Code::kRefused, ENOMEM, "no memory for the table of mappings; raise RLIMIT_AS or RLIMIT_MEMLOCK");
}

// The latest inspection.
struct Inspected {
  Scratch scratch;  // which has the table
  MappingTable table;
};
Inspected g_inspected;

class TableBuilder {
 public:
  // `inspected`, if not null, knows the flags of all mappings.
  TableBuilder(Scratch* scratch, const SharedList& shared, const MappingTable* inspected, MappingTable* table)
      : scratch_(scratch), shared_(shared), inspected_(inspected), table_(table) {}

  // Lays out the arrays in all that is left: the kernel's default allows 65,530 mappings; strings follow.
  bool start() {
    vdso_ = static_cast<VdsoRecord*>(scratch_->take(sizeof(VdsoRecord)));
    text_ = static_cast<char*>(scratch_->take(kTextBytes + 1));
    memory_ = raw::invoke(__NR_openat, AT_FDCWD, "/proc/self/mem", O_RDONLY | O_CLOEXEC, 0);
    const long probe = raw::invoke(__NR_mmap, nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw::failed(probe)) return false;
    probe_ = static_cast<std::uint64_t>(probe);
    std::size_t rest = 0;
    std::uint8_t* at = scratch_->take_rest(&rest);
    if (vdso_ == nullptr || text_ == nullptr || at == nullptr || rest < (1 << 20)) return false;
    *vdso_ = VdsoRecord{};  // a reading that was given up may have been here
    capacity_ = static_cast<std::uint32_t>(rest / 2 / sizeof(MappingRecord));
    stored_count_ = reinterpret_cast<std::uint64_t*>(at);
    mappings_ = reinterpret_cast<MappingRecord*>(at + sizeof(*stored_count_));
    strings_ = reinterpret_cast<char*>(mappings_ + capacity_);
    string_capacity_ = static_cast<std::uint32_t>(rest - sizeof(*stored_count_) - capacity_ * sizeof(MappingRecord));
    return true;
  }
  ~TableBuilder() {
    if (memory_ >= 0) raw::invoke(__NR_close, memory_);
    if (probe_ != 0) raw::invoke(__NR_munmap, probe_, kPage);
  }
  TableBuilder(const TableBuilder&) = delete;
  TableBuilder& operator=(const TableBuilder&) = delete;

  Status read() {
    SmapsReader reader(text_, inspected_ == nullptr);
    if (inspected_ != nullptr) table_->locks_future = inspected_->locks_future;
    Area area{};
    bool have = false;
    char* path = static_cast<char*>(scratch_path_);
    while (const char* line = reader.next()) {
      Area head;
      if (parse_head(line, &head)) {
        if (have) SHADOWIB_TRY(add(area));
        area = head;
        have = true;
        // The line is gone when the flags come.
        if (area.path_bytes >= sizeof(scratch_path_))
          return refuse(area, "its path is too long", "; use a shorter one");
        __builtin_memcpy(path, area.path, area.path_bytes + 1);
        area.path = path;
      } else if (const char* flags = value_of(line, "VmFlags:")) {
        parse_flags(flags, &area);
      } else if (const char* key = value_of(line, "ProtectionKey:")) {
        while (*key == ' ') ++key;
        area.protection_key = parse_number(&key, 10);
      }
    }
    if (reader.error() == ENAMETOOLONG)
      return Status::of(Code::kRefused, ENAMETOOLONG,
                        "the mapping behind %lx-%lx cannot be checkpointed: its path is longer than %zu KiB; use a "
                        "shorter one",
                        area.start, area.end, kTextBytes >> 10);
    if (reader.error() != 0)
      return Status::of(Code::kInternal, reader.error(), "cannot read /proc/self/smaps: errno %d", reader.error());
    if (have) SHADOWIB_TRY(add(area));
    *stored_count_ = count_;
    table_->stored_count = stored_count_;
    table_->mappings = mappings_;
    table_->count = count_;
    table_->strings = strings_;
    table_->string_bytes = string_used_;
    table_->vdso = vdso_;
    return {};
  }

 private:
  static Status refuse(const Area& area, const char* what, const char* remedy) {
    return Status::of(Code::kRefused, 0, "mapping %lx-%lx %s cannot be captured: %s%s", area.start, area.end,
                      area.path == nullptr || area.path[0] == '\0' ? "(anonymous)" : area.path, what, remedy);
  }

  Status add(const Area& area) {
    if (starts_with(area.path, "[vsyscall]")) return {};
    if (starts_with(area.path, "[vdso]") || starts_with(area.path, "[vvar") || starts_with(area.path, "[vvclock"))
      return add_vdso(area);
    if (inspected_ == nullptr && area.start <= probe_ && probe_ < area.end)
      table_->locks_future = locks_future(area.advice);
    // Cut out what is ours.
    for (std::uint64_t at = area.start; at < area.end;) {
      std::uint64_t cut_start = area.end, cut_end = area.end;
      std::uintptr_t owned = 0;
      std::size_t owned_bytes = 0;
      if (find_owned_mapping(at, area.end - at, &owned, &owned_bytes)) {
        cut_start = owned > at ? owned : at;
        cut_end = owned + owned_bytes;
      }
      cut(at, area.end, scratch_->start(), scratch_->bytes(), &cut_start, &cut_end);
      cut(at, area.end, probe_, kPage, &cut_start, &cut_end);
      cut(at, area.end, g_inspected.scratch.start(), g_inspected.scratch.bytes(), &cut_start, &cut_end);
      if (cut_start > at) {
        Area piece = area;
        piece.start = at;
        piece.end = cut_start < area.end ? cut_start : area.end;
        piece.offset = area.offset + (at - area.start);
        if (inspected_ != nullptr && !take_flags(&piece)) return unknown_mapping();
        SHADOWIB_TRY(add_piece(piece));
      }
      at = cut_end;
    }
    return {};
  }

  // Of [at, end) the range [start, start + bytes) is ours, if it comes before the one that is known.
  static void cut(std::uint64_t at, std::uint64_t end, std::uint64_t start, std::uint64_t bytes,
                  std::uint64_t* cut_start, std::uint64_t* cut_end) {
    if (start >= end || start + bytes <= at || start >= *cut_start) return;
    *cut_start = start > at ? start : at;
    *cut_end = start + bytes;
  }

  // The kernel does not tell of MCL_FUTURE: a new mapping shows it.
  static std::uint32_t locks_future(std::uint32_t advice) {
    if ((advice & kAdviceLocked) == 0) return 0;
    return MCL_FUTURE | ((advice & kAdviceLockOnFault) != 0 ? MCL_ONFAULT : 0);
  }

  // False if it was not there, or another.
  bool take_flags(Area* piece) {
    const MappingTable& known = *inspected_;
    while (next_ < known.count && known.mappings[next_].start + known.mappings[next_].length <= piece->start) ++next_;
    if (next_ == known.count) return false;
    const MappingRecord& m = known.mappings[next_];
    if (m.start > piece->start || m.start + m.length < piece->end || m.protection != piece->protection ||
        ((m.flags & MAP_SHARED) != 0) != piece->shared)
      return false;
    piece->advice = m.advice;
    piece->no_reserve = (m.flags & MAP_NORESERVE) != 0;
    piece->grows_down = (m.flags & MAP_GROWSDOWN) != 0;
    piece->may_write = m.file_mode != 0;
    return true;
  }

  Status add_vdso(const Area& area) {
    if (vdso_->piece_count == kMaxVdsoPieces)
      return refuse(area, "more parts of the vdso than known", "; please report it");
    VdsoRecord::Piece* piece = &vdso_->pieces[vdso_->piece_count++];
    piece->start = area.start;
    piece->length = area.end - area.start;
    for (unsigned i = 0; i + 1 < sizeof(piece->name) && area.path[i + 1] != ']' && area.path[i + 1] != '\0'; ++i)
      piece->name[i] = area.path[i + 1];
    if (starts_with(piece->name, "vdso")) vdso_->content_bytes = piece->length;
    return {};
  }

  Status add_piece(const Area& area) {
    if (count_ == capacity_ || string_used_ + area.path_bytes + 1 > string_capacity_)
      return Status(Code::kInternal, ENOMEM, "too many mappings for the imager's table");
    MappingRecord* m = &mappings_[count_];
    *m = MappingRecord{};
    m->start = area.start;
    m->length = area.end - area.start;
    m->protection = area.protection;
    m->advice = area.advice;
    m->flags = (area.shared ? MAP_SHARED : MAP_PRIVATE) | (area.no_reserve ? MAP_NORESERVE : 0) |
               (area.grows_down ? MAP_GROWSDOWN : 0);
    m->path_offset = string_used_;
    m->path_bytes = area.path_bytes;
    __builtin_memcpy(strings_ + string_used_, area.path, area.path_bytes + 1);
    SHADOWIB_TRY(classify(area, m));
    string_used_ += area.path_bytes + 1;
    ++count_;
    return {};
  }

  Status classify(const Area& area, MappingRecord* m) {
    if (area.unknown[0] != '\0')
      return refuse(area, area.unknown,
                    " is a state of memory (VmFlags) that this shadowib does not know; update it");
    if (const char* whose = instrument_of(area.path)) return refuse(area, whose, "; start the program without it");
    if (starts_with(area.path, "/[aio]"))
      return refuse(area, "it is the ring of an asynchronous I/O context (io_setup(2), libaio)",
                    "; destroy the context (io_destroy) before the checkpoint");
    if (area.refused != nullptr) return refuse(area, area.refused->what, area.refused->remedy);
    // The kernel gives memory that may only be executed a key by itself, and does so again.
    if (area.protection_key != 0 && area.protection != PROT_EXEC)
      return refuse(area, "it has a memory protection key", "; use mprotect instead of pkey_mprotect");
    if (starts_with(area.path, "/secretmem"))
      return refuse(area, "it is secret memory (memfd_secret), which no one else may read",
                    "; unmap it before the checkpoint");
    const bool private_zero = !area.shared && ends_with(area.path, area.path_bytes, "/dev/zero");
    const bool named_file = area.path[0] == '/' && area.inode != 0 && !private_zero;
    if (!named_file && !area.shared) {
      if (area.device_memory) return refuse(area, "it is device memory", "");
      m->kind = MappingKind::kAnonymous;
      m->flags |= MAP_ANONYMOUS;
      return {};
    }
    const char* path = area.path;
    const bool deleted = ends_with(path, area.path_bytes, "(deleted)");
    const bool device = starts_with(path, "/dev/") && !starts_with(path, "/dev/shm/");
    const bool zero = starts_with(path, "/dev/zero") && deleted;
    const bool segment = starts_with(path, "/SYSV") || starts_with(path, "/memfd:") ||
                         starts_with(path, "/dev/shm/") || zero ||
                         (deleted && path[0] == '/' && path[1] != '[' && !device);
    if (area.shared && (segment || is_listed(area)) && !area.device_memory) return find_segment(area, zero, m);
    if (starts_with(path, "anon_inode:") || path[0] == '[' || !named_file)
      return refuse(area, "it is memory of a kernel object", "");
    if (device || area.device_memory)
      return refuse(area, "it is a device mapping", "; close the device before the checkpoint");
    return describe_file(area, m);
  }

  // A file with a name that is captured as memory.
  bool is_listed(const Area& area) const {
    for (std::uint32_t i = 0; shared_.list != nullptr && i < shared_.count; ++i) {
      const SharedMemory& s = shared_.list[i];
      if (!s.system_v && s.device == area.device && s.inode == area.inode) return true;
    }
    return false;
  }

  Status find_segment(const Area& area, bool anonymous, MappingRecord* m) {
    const bool numbered = starts_with(area.path, "/SYSV");
    m->kind = MappingKind::kSharedMemory;
    m->offset = area.offset;
    m->file_mode = area.may_write;
    if (shared_.list == nullptr) {
      if (!anonymous) return {};
      m->kind = MappingKind::kSharedAnonymous;
      m->flags |= MAP_ANONYMOUS;
      return {};
    }
    for (std::uint32_t i = 0; i < shared_.count; ++i) {
      const SharedMemory& s = shared_.list[i];
      if (s.device != area.device || s.inode != area.inode || s.system_v != numbered) continue;
      m->file_bytes = i;
      return {};
    }
    return refuse(area, "it is shared memory that was not there a moment ago", "; try again");
  }

  Status describe_file(const Area& area, MappingRecord* m) {
    m->kind = area.shared ? MappingKind::kSharedFile : MappingKind::kPrivateFile;
    m->offset = area.offset;
    m->file_mode = area.shared && area.may_write;
    struct statx info {};
    const long result = raw::invoke(__NR_statx, AT_FDCWD, strings_ + m->path_offset, 0, STATX_BASIC_STATS, &info);
    if (result == 0 && info.stx_ino == area.inode) {
      m->file_bytes = info.stx_size;
      m->file_mtime_ns = info.stx_mtime.tv_sec * 1000000000ll + info.stx_mtime.tv_nsec;
      if (area.shared && (info.stx_mode & 0170000) != 0100000)
        return refuse(area, "it is a shared mapping of something that is no regular file",
                      "; unmap it before the checkpoint");
    } else if (area.shared) {
      return refuse(area, "it is a shared mapping of a deleted or replaced file",
                    "; unmap it before the checkpoint, or keep the file");
    }
    if (!area.shared && memory_ >= 0) find_build_id(memory_, m);
    return {};
  }

  Scratch* scratch_;
  const SharedList& shared_;
  const MappingTable* inspected_;
  MappingTable* table_;
  std::uint32_t next_ = 0;  // of the inspected mappings
  VdsoRecord* vdso_ = nullptr;
  char* text_ = nullptr;
  long memory_ = -1;
  std::uint64_t probe_ = 0;  // a page that this maps
  std::uint64_t* stored_count_ = nullptr;
  MappingRecord* mappings_ = nullptr;
  char* strings_ = nullptr;
  std::uint32_t capacity_ = 0, count_ = 0, string_capacity_ = 0, string_used_ = 0;
  char scratch_path_[4200];
};

}  // namespace

Status read_mappings(Scratch* scratch, const SharedList& shared, MappingTable* table) {
  *table = MappingTable{};
  TableBuilder builder(scratch, shared, nullptr, table);
  if (!builder.start()) return no_memory();
  return builder.read();
}

Status inspect_mappings(const MappingTable** table) {
  forget_inspection(true);
  Inspected* kept = &g_inspected;
  if (!kept->scratch.map(kInspectionBytes)) return no_memory();
  const Status status = read_mappings(&kept->scratch, SharedList{nullptr, 0}, &kept->table);
  *table = &kept->table;
  if (!status.ok()) forget_inspection(true);
  return status;
}

Status read_inspected_mappings(Scratch* scratch, const SharedList& shared, MappingTable* table) {
  if (g_inspected.scratch.bytes() == 0) return read_mappings(scratch, shared, table);
  const Scratch before = *scratch;
  Status status;
  {
    *table = MappingTable{};
    TableBuilder builder(scratch, shared, &g_inspected.table, table);
    if (!builder.start()) return no_memory();
    status = builder.read();
  }
  if (status.code() != kUnknownMapping) return status;
  *scratch = before;  // one of them is new, and its flags are not known
  return read_mappings(scratch, shared, table);
}

void forget_inspection(bool unmap) {
  if (unmap) g_inspected.scratch.unmap();
  g_inspected = Inspected{};
}

}  // namespace shadowib
