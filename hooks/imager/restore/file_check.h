// Finds out whether the file behind a private mapping is still what it was, byte for byte.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hooks/imager/restore/image_packs.h"

namespace shadowib {

// The image holds the content of every private file mapping. Where the file still has the same bytes it is mapped, so
// that memory is shared and /proc/self/maps reads as before; elsewhere (an upgraded package, another machine) the
// image's bytes are used.
class SameFiles {
 public:
  // `packs`: as ImageFiles takes them.
  SameFiles(const LoadedImage& image, int image_fd, std::vector<int> packs = {})
      : image_(image), files_(image, image_fd, std::move(packs)) {}
  // A descriptor to map mappings[index] from, or -1. Mappings of one file share the descriptor. The caller closes it.
  int open(std::size_t index);
  // Closes the files that have changed. Call behind the last open().
  void close_unused();

 private:
  int open_path(const std::string& path, const MappingRecord& m);
  bool same_content(std::size_t index, int fd);

  const LoadedImage& image_;
  ImageFiles files_;
  std::map<std::string, int> open_;
  std::set<int> used_;  // by a mapping
  std::vector<std::uint8_t> saved_, current_;
  std::vector<std::vector<const PageBatch*>> batches_;
};

}  // namespace shadowib
