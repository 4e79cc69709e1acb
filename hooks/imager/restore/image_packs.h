// Pages of an image that lie in other files of its set.
#pragma once

#include <string>
#include <vector>

#include "hooks/imager/restore/image_file.h"

namespace shadowib {

// The pages of a pack, in its order.
struct PackContent {
  struct Part {
    std::uint64_t first_page, page_count, offset;
    Frame frame;
  };
  std::vector<PageHash> hashes;
  std::vector<Part> parts;
  std::uint8_t xxh3[16] = {};  // as its kEnd has it

  // `of_pages`: PageHash[count].
  void add(const std::uint8_t* of_pages, std::uint64_t count, std::uint64_t offset, const Frame& frame);
};

// One record of borrowed pages. Its runs are in LoadedImage::runs from first_run on.
struct BorrowedPages {
  BorrowedHeader header;
  std::uint64_t first_run;
  std::vector<BorrowedRun> runs;
};

// The name is that of the image's member and the pack's set.
std::string pack_name(std::uint32_t member, const std::uint8_t set_id[16]);
std::string pack_path(const std::string& image_path, std::uint32_t member, const PackEntry& entry);

// Reads the packs in image->packs and adds batches for the borrowed pages. kCorrupt, kIo.
Status find_borrowed(const std::string& path, ReadDepth depth, const std::vector<BorrowedPages>& borrowed,
                     LoadedImage* image);
// A pack by itself: packs of its own are not looked at. Defined beside load_image().
Status load_pack(int fd, const std::string& path, ReadDepth depth, LoadedImage* pack, PackContent* content);

// The files of an image that pages are read from: the image's own, which stays the caller's, and packs. Those are the
// caller's, too, if it names the descriptor of each, for example since their paths do not lead there any more. Else
// they are opened when first asked for.
class ImageFiles {
 public:
  ImageFiles(const LoadedImage& image, int image_fd, std::vector<int> packs = {});
  ~ImageFiles();
  ImageFiles(const ImageFiles&) = delete;
  ImageFiles& operator=(const ImageFiles&) = delete;

  // kIo names the file.
  Status open(const PageBatch& batch, int* fd);
  // Reads the pages of a batch, and checks them. Images of versions that are not checked by headers have been checked
  // before. kCorrupt, kIo.
  Status read(const PageBatch& batch, std::vector<std::uint8_t>* pages);
  // For who only looks for something.
  Status read_unchecked(const PageBatch& batch, std::vector<std::uint8_t>* pages);
  // Reads a batch whose pages are compressed, and does not look at hashes of pages. *pages is valid until the
  // next call. The frame that was last asked for of each file is kept.
  Status unpack(const PageBatch& batch, const std::uint8_t** pages);

 private:
  struct Unpacked {
    std::uint64_t offset = 0;  // of the frame in the file; 0: none
    std::vector<std::uint8_t> pages;
  };

  Status take(const PageBatch& batch, std::uint8_t* head, std::vector<std::uint8_t>* pages);
  Status fetch(const PageBatch& batch, std::uint8_t* head, std::uint64_t head_bytes, std::uint8_t* body,
               std::uint64_t bytes);

  const LoadedImage& image_;
  int image_fd_;
  bool own_packs_;
  std::vector<int> packs_;
  FrameReader frames_;
  std::vector<std::uint8_t> frame_;
  std::vector<Unpacked> unpacked_;  // of each pack, and of the own file behind them
};

}  // namespace shadowib
