// The memory that an image holds, by address.
#pragma once

#include <functional>
#include <vector>

#include "hooks/imager/restore/image_packs.h"

namespace shadowib {

// Written over what the image holds, once it is in place.
struct MemoryPatch {
  std::uint64_t address;
  std::vector<std::uint8_t> bytes;
};

// Private memory that may be written to. Keeps to the image and `fd`, which have to stay.
class ImageMemory {
 public:
  ImageMemory(const LoadedImage& image, int fd) : image_(image), files_(image, fd) {}

  Status open();

  // Calls for every run of whole pages, ascending within a mapping.
  Status visit(
      const std::function<Status(std::uint64_t address, const std::uint8_t* data, std::uint64_t bytes)>& f) const;

  // Bytes that the image does not hold are zero, as in the process.
  Status read(std::uint64_t address, std::uint8_t* to, std::uint64_t bytes) const;

 private:
  struct Run {
    std::uint64_t address, bytes;
    std::uint64_t offset;  // in the file; if the batch is compressed, in its pages
    int fd;
    const PageBatch* batch;
  };

  Status fetch(const Run& run, std::uint64_t within, std::uint8_t* to, std::uint64_t bytes) const;

  const LoadedImage& image_;
  mutable ImageFiles files_;  // keeps what it has read
  std::vector<Run> runs_;     // by address
};

}  // namespace shadowib
