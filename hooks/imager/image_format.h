// The image file, byte by byte: IMAGE_FORMAT.md says the same in words. Little endian, x86-64, pages of 4,096 bytes.
//
// Shared by the saving side (in the program), the reader (in commands) and the restorer (no libc), hence plain
// structs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shadowib {

inline constexpr std::uint32_t kImageVersion = 9;
inline constexpr std::uint32_t kOldestImageVersion = 3;  // that is still read; its new words are zero
// From here on kEnd has a checksum of the file's first page and of the headers of its records, each of which has the
// checksum of its content. So a restart checks content as it reads it.
inline constexpr std::uint32_t kCheckedByHeaders = 6;
// From here on an image may have hashes of its pages, and take pages from packs. Without these it is of version 6.
inline constexpr std::uint32_t kIncremental = 7;
// From here on pages may be compressed. An image that is to have none such is of version 7 or 6.
inline constexpr std::uint32_t kCompressed = 8;
// From here on runs of borrowed pages are short (borrowed_runs.h). An image that is to borrow none is older.
inline constexpr std::uint32_t kShortRuns = 9;
inline constexpr char kImageMagic[8] = {'S', 'H', 'A', 'D', 'O', 'W', 'I', '\n'};
inline constexpr std::uint32_t kImageByteOrder = 0x01020304;
inline constexpr std::uint64_t kPage = 4096;
inline constexpr std::uint64_t kHugePage = 2 << 20;
// Mappings that a process being restored has beside those of its image: the restorer and the vdso.
inline constexpr std::uint32_t kRestorerMappings = 8;

// First page of the file; what is not named is zero.
struct ImageHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t byte_order;
  std::uint32_t page_bytes;
  std::uint32_t machine;  // ELF machine number, EM_X86_64
  std::uint32_t member, generation;
  std::uint8_t set_id[16];
  char shadowib_version[32];
  std::uint64_t unused[4];
  std::uint64_t xxh3;  // XXH3-64 of the bytes before it
};
static_assert(sizeof(ImageHeader) == 120);

enum class RecordType : std::uint32_t {
  kProcess = 1,       // ProcessRecord
  kStrings = 2,       // exe, cwd, root, kernel release, machine: each ended by a zero byte
  kCommandLine = 3,   // as /proc/self/cmdline
  kThreads = 4,       // ThreadRecord[]
  kSignals = 5,       // SignalAction[64]
  kPending = 6,       // siginfo_t[] of 128 bytes queued to the process
  kTimers = 7,        // TimerRecord[]
  kMappings = 8,      // count (8 bytes), MappingRecord[count], then their strings
  kVdso = 9,          // VdsoRecord, then the vdso's bytes
  kDescriptors = 10,  // opaque: descriptors.h
  kPages = 11,        // PagesHeader, PageRun[], then whole pages
  kEnd = 12,          // EndRecord
  kBorrowed = 13,     // BorrowedHeader, runs: pages that lie in packs. Since version 7; BorrowedRun[] before 9
  kPacks = 14,        // PackEntry[]. Since version 7
};

// Starts every record, on a page boundary. The record's page count is that of the header and `length` bytes, rounded
// up; bytes behind the length are zero.
struct RecordHeader {
  std::uint32_t type;
  std::uint32_t flags;         // zero but for kPages
  std::uint64_t length;        // of the payload
  std::uint64_t payload_xxh3;  // XXH3-64 of the payload and the zeros behind it
  std::uint64_t header_xxh3;   // XXH3-64 of the 24 bytes before it, seeded with the record's offset in the file
};
static_assert(sizeof(RecordHeader) == 32);

inline constexpr std::uint64_t record_bytes(std::uint64_t length) {
  return (sizeof(RecordHeader) + length + kPage - 1) & ~(kPage - 1);
}

struct ProcessRecord {
  std::int32_t pid, process_group, session, agent_tid;
  std::uint32_t umask, personality;
  std::uint32_t uid[4], gid[4];  // real, effective, saved, file system
  std::uint32_t group_count, groups[64];
  std::uint64_t capabilities[5];  // inheritable, permitted, effective, bounding, ambient
  std::uint32_t secure_bits, no_new_privileges, dumpable, child_subreaper, thp_disabled;
  std::int32_t oom_score_adj;
  // As PR_SET_MM_MAP takes them.
  std::uint64_t start_code, end_code, start_data, end_data, start_brk, brk, start_stack;
  std::uint64_t arg_start, arg_end, env_start, env_end;
  std::uint64_t auxv_bytes, auxv[2 * 48];
  std::uint64_t limits[16][2];
  std::int64_t realtime_ns, monotonic_ns, boottime_ns;
  std::int64_t interval_timers[3][4];  // struct itimerval of ITIMER_REAL, _VIRTUAL, _PROF
  std::uint64_t mailbox_address;       // struct RestartMailbox
  std::uint64_t mailbox_bytes;
  std::uint64_t threads_in_restorer_address;
  std::uint64_t xcr0;             // extended state the processor had enabled
  std::uint32_t cpu_features[8];  // as ProcessorState::features (processor.h)
  std::uint32_t mailbox_layout;   // kMailboxLayout of the library in the image (save/restart_mailbox.h)
  std::uint32_t processor_level;  // the process uses features of this level of the psABI at most; 0: any
  std::uint32_t binds_at_start;   // its loader binds no function later (LD_BIND_NOW)
  std::uint32_t locks_future;     // MCL_FUTURE, MCL_ONFAULT: what mlockall has asked for. Since version 4
  std::uint32_t unused[2];
  std::uint32_t state_offsets[32];  // as ProcessorState::state_offsets
  // Since version 5; zero in older images.
  std::uint32_t has_core_dump_filter;  // 1: the kernel tells core_dump_filter
  std::uint32_t core_dump_filter;      // /proc/PID/coredump_filter
  std::uint32_t memory_barriers;       // registrations, as MEMBARRIER_CMD_GET_REGISTRATIONS gives them
  std::uint32_t denied_execution;      // PR_GET_MDWE
  std::uint32_t merges_memory;         // PR_GET_MEMORY_MERGE
  std::int32_t autogroup_nice;         // of /proc/PID/autogroup
  std::uint64_t state_permission;      // ARCH_GET_XCOMP_PERM
};
inline constexpr std::uint64_t kProcessRecordBytes4 =
    offsetof(ProcessRecord, has_core_dump_filter);  // up to version 4

struct ThreadRecord {
  std::int32_t tid;
  std::uint32_t unused;
  std::uint64_t context;  // address of its ThreadContext in the image
  char name[16];
};

// The arguments of the kernel's rt_sigaction.
struct SignalAction {
  std::uint64_t handler, flags, restorer, mask;
};

struct TimerRecord {
  std::int32_t id, clock, notify, signal;
  std::int32_t thread, unused;
  std::uint64_t value;
  std::int64_t interval_s, interval_ns, remaining_s, remaining_ns;
};

enum class MappingKind : std::uint32_t {
  kAnonymous = 0,        // private memory without a file, heap and stack included
  kPrivateFile = 1,      // a private mapping of a file, with its content
  kSharedAnonymous = 2,  // MAP_SHARED | MAP_ANONYMOUS of one process that has no table, with its content
  kSharedFile = 3,       // MAP_SHARED of a regular file: mapped again, content stays in the file
  kSharedMemory = 4,     // of a segment of the table in kDescriptors, whose content is a part of its own
};

// madvise and mlock state, from the VmFlags of smaps.
enum MappingAdvice : std::uint32_t {
  kAdviceDontFork = 1,
  kAdviceDontDump = 2,
  kAdviceNoHugePage = 4,
  kAdviceHugePage = 8,
  kAdviceLocked = 16,
  kAdviceWipeOnFork = 32,
  kAdviceMergeable = 64,
  kAdviceSequential = 128,
  kAdviceRandom = 256,
  kAdviceDroppable = 512,
  kAdviceLockOnFault = 1024,
  kAdviceSealed = 2048,  // since version 4
};

struct MappingRecord {
  std::uint64_t start, length, offset;
  std::uint32_t protection;  // PROT_*
  std::uint32_t flags;       // MAP_PRIVATE or MAP_SHARED, MAP_ANONYMOUS, MAP_NORESERVE, MAP_GROWSDOWN
  std::uint32_t advice;      // MappingAdvice
  MappingKind kind;
  std::uint64_t file_bytes;  // kSharedMemory: which segment of the table
  std::int64_t file_mtime_ns;
  std::uint32_t path_offset, path_bytes;  // in the strings behind the array; 0 bytes: none
  std::uint32_t build_id_bytes;
  std::uint32_t file_mode;  // how it has to be opened again: 0 reading, 1 writing as well
  std::uint8_t build_id[32];
};
static_assert(sizeof(MappingRecord) == 104);

inline constexpr int kMaxVdsoPieces = 6;
struct VdsoRecord {
  std::uint32_t piece_count, unused;
  struct Piece {
    std::uint64_t start, length;
    char name[16];  // vvar, vvar_vclock, vdso
  } pieces[kMaxVdsoPieces];
  std::uint64_t content_bytes;  // of the vdso, which follow
};

// Flags of a kPages record.
inline constexpr std::uint32_t kPagesClean = 1;  // unmodified pages of a private file mapping
inline constexpr std::uint32_t kPagesGuard = 2;  // no content: MADV_GUARD_INSTALL is in force
// Pages of a segment of shared memory, whose number stands for the mapping's; addresses are offsets in it
inline constexpr std::uint32_t kPagesShared = 4;
// The record's checksum covers its first two pages, and hashes of the second one cover the pages. Since version 7
inline constexpr std::uint32_t kPagesHashed = 8;
// The pages are one frame, an LZ4 block or a Zstandard frame, to the end of the record. Beside kPagesHashed, and one
// of them at most. Since version 8
inline constexpr std::uint32_t kPagesLz4 = 16;
inline constexpr std::uint32_t kPagesZstd = 32;
inline constexpr std::uint32_t kPagesCompressed = kPagesLz4 | kPagesZstd;

struct PagesHeader {
  std::uint32_t mapping, run_count;  // mapping: of the first run. Without flags, or of guard regions, later runs may
                                     // be of later mappings. Since version 6
  std::uint64_t page_count;
};
struct PageRun {
  std::uint64_t address, length;
};
// A record of pages is at most 1 MiB: one page of header and runs, then the pages in the order of the runs.
inline constexpr std::uint64_t kPagesPerRecord = 255;
// With kPagesHashed a page of PageHash[page_count] stands before the pages, and is a page less of content.
inline constexpr std::uint64_t kHashedPagesPerRecord = kPagesPerRecord - 1;
inline constexpr std::uint32_t kRunsPerRecord =
    (kPage - sizeof(RecordHeader) - sizeof(PagesHeader)) / sizeof(PageRun);

// XXH3-128 of one page, its low half first.
struct PageHash {
  std::uint64_t low, high;
};
// Ends the page of hashes of a record with a frame.
struct FrameHash {
  std::uint64_t xxh3;  // XXH3-64 of the frame and the zeros behind it
  std::uint64_t unused[3];
};
static_assert(kHashedPagesPerRecord * sizeof(PageHash) + sizeof(FrameHash) <= kPage);
inline constexpr std::uint64_t kFrameHashOffset = 2 * kPage - sizeof(FrameHash);  // in the record
// Without the frame. The frame has the rest of RecordHeader::length.
inline constexpr std::uint64_t kHashedHeadBytes = 2 * kPage - sizeof(RecordHeader);

// A pack is an earlier image of the same member, by a hard link in the set's directory. Its pages are numbered from 0
// in the order in which it has them.
inline constexpr std::uint32_t kMostPacks = 64;
struct PackEntry {
  std::uint8_t set_id[16];  // of the set it was written for; its name is "member-N.<set id in hex>.pages"
  std::uint64_t file_bytes;
  std::uint64_t page_count;  // that it has
  std::uint64_t used;        // by this image; 0: the pack is not there
  std::uint8_t xxh3[16];     // as its EndRecord has it
};
static_assert(sizeof(RecordHeader) + kMostPacks * sizeof(PackEntry) <= kPage);
inline constexpr std::uint64_t kMostShortRunBytes = 256 << 10;  // of a record of borrowed pages
struct BorrowedHeader {
  std::uint32_t flags, mapping;  // as those of a record of pages; kPagesHashed is not among them
};
inline constexpr std::uint64_t kPackBits = kPage - 1;  // of BorrowedRun::address_and_pack: the pack
// Pages [address, address + page_count * kPage) are pages [first_page, first_page + page_count) of pack `pack`.
struct BorrowedRun {
  std::uint64_t address_and_pack;  // number of the PackEntry in kPackBits
  std::uint32_t first_page, page_count;
};
static_assert(sizeof(BorrowedRun) == 16);

struct EndRecord {
  std::uint64_t record_count;  // this one included
  std::uint64_t page_count;    // in all kPages records
  std::uint64_t file_bytes;    // of the whole file
  std::uint8_t xxh3[16];       // XXH3-128, canonical, of the first page and all headers of records before this one;
                               // up to version 5 of all bytes before it
};

}  // namespace shadowib
