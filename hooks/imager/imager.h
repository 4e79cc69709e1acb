// Saving the calling process: memory, threads, process attributes, descriptors, into one image file.
// Called by the agent thread while every other thread is parked. Uses no program heap; bounded extra memory (a few
// MiB).
#pragma once

#include <cstdint>
#include <string>

#include "hooks/imager/compression.h"
#include "hooks/imager/image_format.h"
#include "hooks/imager/shared_memory.h"
#include "hooks/job/job_info.h"
#include "shadowib/base/status.h"

namespace shadowib {

class PinnedCopies;
class Saver;

struct SaveRequest {
  int directory_fd;         // staging directory
  const char* file_name;    // relative to it
  std::uint8_t set_id[16];  // of the checkpoint set, ties images to their manifest
  std::uint32_t member;
  std::uint32_t generation;
  const std::string* descriptors;  // the table captured in phase 60, stored as a record
  // The table's segments [0..shared_count); without a table shared memory other than anonymous is refused.
  const SharedMemory* shared;
  std::uint32_t shared_count;
  std::uint64_t request_signals;  // those that ask for a checkpoint, bits from 0 on: none of them waits in the image
  // For restarts on another processor.
  int processor_level;  // the process uses features of this level at most (processor.h)
  bool binds_at_start;  // its loader binds no function later
  std::int64_t deadline_ns =
      0;                   // CLOCK_MONOTONIC: nobody wants the image that is not written by then; 0: somebody does
  bool inspected = false;  // check_capturable() was called since the program stopped
  // The image has hashes of its pages, so that the next one need not have those that are the same.
  bool incremental = false;
  // Pages are compressed where that makes the image smaller; it has their hashes as well.
  Compression compression = Compression::kNone;
  // Pages are left out that an earlier image of the member has, if it is incremental, too: that of this name in
  // this directory (an absolute path). Its file, and packs that it uses, get names beside the image. "": none.
  const char* base_directory = "";
  const char* base_name = "";
  std::uint32_t most_packs = kMostPacks;  // 2 or more. Beyond it the less used half of the packs is left behind
  // Prepared: writes the image in a process of its own (saver.h), if the kernel makes one. Then what a copy of
  // this process would not have is written when save_image() returns, and the program may go on. nullptr: no.
  Saver* saver = nullptr;
  // With a saver, of memory that the kernel would copy page by page. Prepared, or nullptr.
  PinnedCopies* pinned = nullptr;
};

struct SaveResult {
  std::uint64_t bytes;           // of the file
  std::uint8_t xxh3[16];         // XXH3-128 over the whole file, as the manifest records it
  std::uint64_t page_bytes = 0;  // of the pages in the file, before they were compressed
  // Files beside the image that have pages of it (image_format.h); those that are used, in no order.
  std::uint32_t pack_count = 0;
  struct Pack {
    std::uint8_t set_id[16];
    std::uint64_t bytes;  // of the file
  } packs[kMostPacks] = {};
  std::uint64_t borrowed_bytes = 0;  // of pages in them
  char why_whole[160] = {};          // why nothing was left out though there is a base; "": something could be
};

enum class SaveOutcome { kSaved, kRestarted };

// Writes the image and fsyncs it; with a saver that runs afterwards it has only begun to. Returns twice: once with
// kSaved in the original process, and once with kRestarted in every process restarted from the image, where
// *restart_info is what the restart command passed. On failure the partial file is removed. kTimeout: the deadline
// has passed.
Status save_image(const SaveRequest& request, SaveResult* result, SaveOutcome* outcome, JobInfo* restart_info);

// Names memory, process state or children that cannot be captured: device mappings, huge pages, live children,
// ptrace, timers of unknown kind. kRefused with the object's name (P4). Writes nothing. Descriptors are judged apart
// (descriptors.h).
Status check_capturable();
// When the program goes on, or is saved: gives back the memory that check_capturable() keeps for save_image().
void end_inspection();

// Asks for locks of mappings to come, as the program had (mlockall, MCL_FUTURE). Call in a restarted process before
// the program runs, once shadowib maps nothing more: a backend's memory needs no locks, and could exceed the limit.
// kRefused if the kernel refuses.
Status lock_mappings_to_come();

}  // namespace shadowib
