// The pages of an earlier image of the same member, by address and hash. Equal pages are not written again.
//
// The directory of the new image gets hard links to the earlier image and to its packs, so a set needs no other set.
// Two kinds of packs are left behind, and their pages are written again: packs of which the earlier image uses less
// than half, and the less used half of all once there are too many. One pack at each image would cost more each time:
// its pages come into the new pack, and the least used pack grows.
#pragma once

#include "hooks/imager/image_format.h"
#include "hooks/imager/imager.h"
#include "hooks/imager/save/scratch.h"
#include "shadowib/base/status.h"

namespace shadowib {

// Uses no heap. One object for one image; its memory is mapped by open().
class BaseIndex {
 public:
  // Reads and checks the earlier image except its pages. Links the files into `directory`, the new image's.
  // kRefused tells why that cannot be. Nothing is left there then, and the new image must have all pages.
  Status open(const SaveRequest& request, int directory);
  // Removes the links of unused packs and unmaps the memory. Call it after the last find().
  Status close(SaveResult* result);
  ~BaseIndex() { release(); }
  BaseIndex() = default;
  BaseIndex(const BaseIndex&) = delete;
  BaseIndex& operator=(const BaseIndex&) = delete;

  // Whether a pack has that page of the private memory (`space` 0) or of segment `space` - 1. Best asked by ascending
  // addresses. Each page found counts as used.
  bool find(std::uint64_t space, std::uint64_t address, const PageHash& hash, std::uint32_t* pack,
            std::uint32_t* page);

  std::uint32_t pack_count() const { return pack_count_; }
  const PackEntry* packs() const { return packs_; }

 private:
  struct Run {
    std::uint64_t space, address;
    std::uint32_t first_page, page_count, pack, unused;
  };
  struct File {
    int fd = -1;
    std::uint64_t bytes = 0;
    PackEntry entry{};  // as the file says of itself
    PageHash* hashes = nullptr;
    std::uint64_t room = 0;  // for hashes
    bool has_short_runs = false;
  };

  Status build(const SaveRequest& request, int base, int directory);
  Status open_file(int directory, const char* name, File* file);
  Status walk(File* file, bool is_base);
  Status take_pages(const RecordHeader& h, File* file, bool is_base, const std::uint8_t* head);
  Status take_borrowed(const RecordHeader& h, const File& file, std::uint64_t offset);
  Status take_packs(const RecordHeader& h, const std::uint8_t* head);
  Status add_run(const Run& run);
  Status add_borrowed(std::uint64_t space, const BorrowedRun& run);
  void choose_packs(std::uint32_t* number_of);
  Status link_pack(int base, const char* from, int directory, const PackEntry& entry);
  void unlink_packs();
  void release();

  Scratch memory_, memory_of_runs_, memory_of_pack_[kMostPacks];
  std::uint32_t member_ = 0, most_packs_ = kMostPacks;
  int directory_ = -1;
  std::uint8_t* page_ = nullptr;  // work space
  Run* runs_ = nullptr;
  std::uint64_t run_count_ = 0, run_room_ = 0, at_ = 0;
  PackEntry listed_[kMostPacks] = {};  // by the earlier image
  std::uint32_t listed_count_ = 0;
  PackEntry packs_[kMostPacks] = {};
  const PageHash* hashes_[kMostPacks] = {};
  std::uint32_t pack_count_ = 0, linked_count_ = 0;
};

}  // namespace shadowib
