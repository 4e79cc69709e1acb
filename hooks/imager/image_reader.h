// Reading and verifying an image file. For verify, inspect and restart; runs in commands, not in programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowib/base/status.h"

namespace shadowib {

struct ImageMapping {
  std::uint64_t start, length;
  int protection, flags;
  std::uint64_t offset;
  std::string path;           // "" anonymous, "[heap]", "[stack]", or a file
  std::string build_id;       // hex, if the file has one
  std::uint64_t saved_bytes;  // what the image holds of it; the rest is zero
};

struct ImageThread {
  int tid;
  std::string name;
};

// A file beside the image that has pages of it.
struct ImagePack {
  std::string file;
  std::uint64_t bytes, used_bytes;
};

struct ImageInfo {
  std::uint32_t format_version;
  std::string shadowib_version;
  std::uint8_t set_id[16];
  std::uint32_t member, generation;
  int pid;
  std::string exe, comm, cwd, kernel;
  std::vector<std::string> command_line;
  std::vector<ImageMapping> mappings;
  std::vector<ImageThread> threads;
  std::string descriptors;  // table as captured (descriptors.h)
  std::uint64_t bytes;
  std::uint8_t xxh3[16];  // as computed
  bool has_xxh3 = true;   // every byte was read
  std::vector<ImagePack> packs = {};
  std::uint64_t page_bytes = 0, stored_bytes = 0;  // of the pages in this file, and of what they take there
};

// Checks every byte (sizes, record checksums, XXH3 of the whole) before anything is believed; kCorrupt says where and
// why, kVersion another format. Packs are read as well. Leaves *fd open if fd is not null.
Status read_image(const std::string& path, ImageInfo* info, int* fd = nullptr);

// For a restart, which checks the content of pages as it reads it. Images up to version 5 are read whole.
Status read_image_tables(const std::string& path, ImageInfo* info);

}  // namespace shadowib
