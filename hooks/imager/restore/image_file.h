// An image read back into tables, everything checked that is read.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "hooks/imager/image_format.h"
#include "hooks/imager/restore/frame.h"
#include "shadowib/base/status.h"

namespace shadowib {

// Pages that lie together: a record of pages, or a part of one in a pack.
struct PageBatch {
  std::uint64_t record_offset;  // where it begins in its file
  std::uint32_t flags, mapping, run_count;
  std::uint64_t page_count;
  std::uint64_t first_run = 0;    // in LoadedImage::runs
  std::uint64_t xxh3 = 0;         // of what follows the record's header, as that says; by_pages: of the pages' hashes
  std::uint32_t head_pages = 1;   // from record_offset to its pages
  std::uint32_t pack = kOwnFile;  // whose file it is in: of LoadedImage::packs
  bool by_pages = false;
  // If they are compressed: their frame begins at record_offset, and these pages are in it from that one on.
  Frame frame = {};
  std::uint64_t first_in_frame = 0;

  static constexpr std::uint32_t kOwnFile = ~0u;
  std::uint64_t data_offset() const { return record_offset + head_pages * kPage; }
};

struct LoadedRun {
  std::uint64_t address, length;
  std::uint32_t mapping;
};

// A file that an image has pages in.
struct LoadedPack {
  std::string path;  // "" if it is not used
  PackEntry entry;
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
  // Batches of shared memory: `mapping` is a segment of the table in `descriptors`, not looked at here, and addresses
  // are offsets in it.
  std::vector<PageBatch> shared;
  std::vector<LoadedPack> packs;
  std::uint64_t file_bytes;
  std::uint64_t page_bytes, stored_bytes;  // of pages in this file, and of what they take there
  std::uint8_t xxh3[16];                   // of the whole file; only with kEverything
};

// Whether the tables' reader has checked all but the content of pages, which whoever reads a record checks.
inline bool is_checked_by_headers(const LoadedImage& image) { return image.header.version >= kCheckedByHeaders; }

enum class ReadDepth {
  kTables,      // everything but the content of pages
  kEverything,  // every byte
};

// Reads the image behind `fd` from its start. `path` is for messages. kCorrupt says where and why, kVersion another
// format, kIo that reading failed. Nothing in *image is valid unless ok. Packs are looked for beside `path`, and read
// to the same depth; kCorrupt tells of one that is missing or another.
Status load_image(int fd, const std::string& path, ReadDepth depth, LoadedImage* image);

// The words for a record of pages that is not what its header says, or for `what` else is wrong with it.
Status damaged_pages(const LoadedImage& image, const PageBatch& batch, const char* what = nullptr);

}  // namespace shadowib
