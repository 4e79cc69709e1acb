// The arguments that the restart command hands to the restorer, which runs with nothing else left in the address
// space.
//
// All pointers are addresses within the restorer's own region. Plain data: the restorer has no libc and no
// relocations.
#pragma once

#include <cstdint>

#include "hooks/imager/image_format.h"

namespace shadowib {

enum class RestoreStep : std::uint32_t {
  kDone = 0,
  kUnmap = 1,
  kMoveVdso = 2,
  kMap = 3,
  kRead = 4,
  kProtect = 5,
  kAdvise = 6,
  kMemoryLayout = 7,
  kThread = 8,
  kRseq = 9,
  kRobustList = 10,
  kAlternateStack = 11,
  kIdentity = 12,
  kCapabilities = 13,
  kTimer = 14,
  kPending = 15,
  kContext = 16,
  kLimit = 17,
  kSchedule = 18,
  kLock = 19,
  kSeal = 20,
  kStatePermission = 22,
  kDamaged = 23,
  // No end of anything: the next thread is to get the number `object`, and the answer comes through go_fd.
  kNumber = 50,
  // Steps of the C++ part, which sends a text as well.
  kPrepare = 100,
};

// Written once to status_fd, after any number of requests for numbers.
struct RestoreReport {
  RestoreStep step;
  std::int32_t error;
  std::uint64_t object;  // an address, tid, timer id
  char text[384];        // of kPrepare
  std::int32_t code;     // class Code of kPrepare
};

struct RestorerThread {
  std::int32_t tid;
  std::uint32_t unused;
  std::uint64_t context;
  std::uint64_t stack;  // lowest address of its stack in the region
};

struct RestorerMapping {
  MappingRecord record;
  std::int32_t fd;  // of its file, or -1: anonymous memory
  std::uint32_t has_content;
  // 1 for a System V segment, attached whole at RestorerArgs::attach_at and then cut to the mapping.
  std::uint32_t is_system_v;
  std::int32_t shmid;
  std::uint64_t segment_bytes;  // whole pages
};

// As PageBatch (restore/image_file.h).
struct RestorerBatch {
  std::uint64_t data_offset;  // in its file
  std::uint64_t bytes;        // read from there, with head_pages
  std::uint64_t xxh3;
  std::uint32_t flags, run_count;
  const PageRun* runs;
  std::uint32_t file;        // of RestorerArgs::files
  std::uint32_t head_pages;  // 0 or 1
  std::uint32_t by_pages;
  std::uint32_t streamed;  // comes next through RestorerArgs::stream_fd, without a head, and not from its file
  std::uint32_t number;    // in the image's list
};

// The image and its packs.
inline constexpr std::uint32_t kRestorerFiles = 1 + kMostPacks;
struct RestorerFile {
  std::int32_t fd;
  std::int32_t direct_fd;  // past the page cache, which does not have it; -1: not so
};

struct RestorerPatch {
  std::uint64_t address, bytes;
  const std::uint8_t* from;
};

struct RestorerVdsoPiece {
  std::uint64_t from, staging, to, length;
};

struct RestorerMemoryMap {  // struct prctl_mm_map
  std::uint64_t start_code, end_code, start_data, end_data, start_brk, brk, start_stack, arg_start, arg_end,
      env_start, env_end;
  std::uint64_t auxv;
  std::uint32_t auxv_bytes, exe_fd;
};

inline constexpr std::uint32_t kReadsAtOnce = 8;
inline constexpr std::uint64_t kRestorerThreadStack = 4096;  // some 400 bytes of it are used

// State that new threads inherit from the first one, as the kernel tells it there.
struct RestorerInherited {
  std::uint32_t speculation[3];  // PR_GET_SPECULATION_CTRL
  std::uint32_t affinity_bytes;
  std::uint64_t timer_slack_ns;
  std::uint8_t affinity[128];
};

struct RestorerArgs {
  std::uint64_t region_start, region_bytes;
  std::int32_t status_fd, go_fd, exe_fd, stream_fd;  // the last two may be -1
  RestorerFile files[kRestorerFiles];                // those from file_count on are not there
  std::uint32_t file_count;
  const RestorerMapping* mappings;
  const RestorerBatch* batches;
  const RestorerThread* threads;  // the main thread first
  const RestorerPatch* patches;   // over the memory, once it has its content
  std::uint32_t mapping_count, batch_count, thread_count, vdso_count, patch_count;
  RestorerVdsoPiece vdso[kMaxVdsoPieces];
  const std::uint8_t* vdso_copy;  // whole pages, to be executable at vdso_copy_at; null: none
  std::uint64_t vdso_copy_at, vdso_copy_bytes;
  std::uint64_t attach_at;
  // Content is checked as it is read; older images have been checked before.
  std::uint32_t checks_content, has_avx2;
  std::uint8_t* page_buffers;  // kReadsAtOnce times a page and one for iovecs
  RestorerMemoryMap memory_map;
  const ProcessRecord* process;
  const TimerRecord* timers;
  const std::uint8_t (*pending)[128];
  std::uint32_t timer_count, pending_count;
  const void* mailbox_job;
  std::uint64_t mailbox_job_bytes;
  std::uint64_t mailbox_restorer_offset;  // of RestartMailbox::restorer_start
  std::uint32_t set_identity;             // uids, gids and groups differ from the recorded ones
  // The supervisor can give threads their numbers: privileges may be dropped before there are any.
  std::uint32_t numbers_are_given;
  std::uint32_t has_credentials;   // the first thread has what all are to have: those it makes share it
  std::uint32_t asks_for_numbers;  // for which it has given up the privilege to choose numbers
  RestorerInherited inherited;
  // Shared by the restorer's threads.
  std::uint32_t threads_ready, released, failed;
  RestoreReport report;
};

}  // namespace shadowib
