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
};

// One record of pages of shared memory.
struct SharedBatch {
  std::uint64_t record_offset;
  std::uint32_t segment, run_count;  // of the table in `descriptors`, not looked at here
  std::uint64_t page_count;
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
  std::vector<SharedBatch> shared;
  std::uint64_t file_bytes;
  std::uint8_t xxh3[16];  // of the whole file; only with kEverything
};

enum class ReadDepth {
  kTables,      // everything but the content of pages
  kEverything,  // every byte
};

// Reads the image behind `fd` from its start. `path` is for messages. kCorrupt says where and why, kVersion another
// format, kIo that reading failed. Nothing in *image is valid unless ok.
Status load_image(int fd, const std::string& path, ReadDepth depth, LoadedImage* image);

}  // namespace shadowib
