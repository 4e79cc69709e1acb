// An image read back into tables, everything checked that is read.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "hooks/imager/image_format.h"
#include "shadowib/base/status.h"

namespace shadowib {

// One record of pages: where its data lie in the file and its runs.
struct PageBatch {
  std::uint64_t record_offset;
  std::uint32_t flags, mapping, run_count;
  std::uint64_t page_count;
  std::uint64_t first_run = 0;  // in LoadedImage::runs
  std::uint64_t xxh3 = 0;       // of what follows the record's header, as that says
};

struct LoadedRun {
  std::uint64_t address, length;
  std::uint32_t mapping;
};

// One record of pages of shared memory.
struct SharedBatch {
  std::uint64_t record_offset;
  std::uint32_t segment, run_count;  // of the table in `descriptors`, not looked at here
  std::uint64_t page_count;
  std::uint64_t xxh3 = 0;  // as PageBatch has it
};

struct LoadedImage {
  ImageHeader header;
  ProcessRecord process;
  std::string exe, cwd, root, kernel, machine;
  std::vector<std::string> command_line;
  std::vector<ThreadRecord> threads;
  std::array<SignalAction, 64> actions;
  std::vector<std::array<std::uint8_t, 128>> pending;
  std::vector<TimerRecord> timers;
  std::vector<MappingRecord> mappings;
  std::vector<std::string> paths;          // of mappings[i]
  std::vector<std::uint64_t> saved_bytes;  // of mappings[i]
  VdsoRecord vdso;
  std::vector<std::uint8_t> vdso_content;
  std::string descriptors;
  std::vector<PageBatch> batches;
  std::vector<LoadedRun> runs;  // of all batches, one behind the other
  std::vector<SharedBatch> shared;
  std::uint64_t file_bytes;
  std::uint8_t xxh3[16];  // of the whole file; only with kEverything
};

// Whether the tables' reader has checked all but the content of pages, which whoever reads a record checks.
inline bool is_checked_by_headers(const LoadedImage& image) { return image.header.version >= kCheckedByHeaders; }

enum class ReadDepth {
  kTables,      // everything but the content of pages
  kEverything,  // every byte
};

// Reads the image behind `fd` from its start. `path` is for messages. kCorrupt says where and why, kVersion another
// format, kIo that reading failed. Nothing in *image is valid unless ok.
Status load_image(int fd, const std::string& path, ReadDepth depth, LoadedImage* image);

// Reads the record of pages at `offset` whole, its header too, and checks it. kCorrupt, kIo. Images of versions that
// are not checked by headers have been checked before. *record is made as long as needed.
Status read_pages(int fd, const LoadedImage& image, std::uint64_t offset, std::uint64_t page_count,
                  std::uint64_t xxh3, std::vector<std::uint8_t>* record);
// The words for a record of pages that is not what its header says.
Status damaged_pages(const LoadedImage& image, std::uint64_t offset);

}  // namespace shadowib
