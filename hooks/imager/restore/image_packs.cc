#include "hooks/imager/restore/image_packs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <utility>

#include "hooks/imager/pack_name.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace shadowib {
namespace {

Status corrupt(const std::string& path, const std::string& pack, const char* what) {
  return Status::of(Code::kCorrupt, 0, "image %.150s: %.150s %s", path.c_str(), pack.c_str(), what);
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

Status read_pack(const std::string& image_path, ReadDepth depth, const LoadedImage& image, const LoadedPack& pack,
                 PackContent* content) {
  const std::string name = name_of(pack.path);
  const int fd = ::open(pack.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0)
    return Status::of(errno == ENOENT ? Code::kCorrupt : Code::kIo, errno,
                      "image %.150s has pages in %.150s, which cannot be opened: %s", image_path.c_str(),
                      name.c_str(), std::strerror(errno));
  LoadedImage loaded{};
  const Status status = load_pack(fd, pack.path, depth, &loaded, content);
  ::close(fd);
  SHADOWIB_TRY(status);
  const PackEntry& entry = pack.entry;
  if (loaded.header.member != image.header.member ||
      std::memcmp(loaded.header.set_id, entry.set_id, sizeof(entry.set_id)) != 0 ||
      loaded.file_bytes != entry.file_bytes || content->hashes.size() != entry.page_count ||
      std::memcmp(content->xxh3, entry.xxh3, sizeof(entry.xxh3)) != 0)
    return corrupt(image_path, name, "is not the file that it has pages in");
  return {};
}

// Adds the pages of one run, in as few batches as their places allow.
class BatchMaker {
 public:
  BatchMaker(const std::vector<PackContent>& packs, LoadedImage* image) : packs_(packs), image_(*image) {}

  // `run` with `mapping`: in image_.runs, which gets runs of its own for the parts.
  void add(const BorrowedRun& run, std::uint32_t flags, std::uint32_t mapping) {
    const auto pack = static_cast<std::uint32_t>(run.address_and_pack & kPackBits);
    const PackContent& content = packs_[pack];
    std::uint64_t address = run.address_and_pack & ~kPackBits;
    std::uint64_t page = run.first_page, left = run.page_count;
    auto part = std::upper_bound(content.parts.begin(), content.parts.end(), page,
                                 [](std::uint64_t p, const PackContent::Part& q) { return p < q.first_page; }) -
                1;
    while (left > 0) {
      const std::uint64_t within = page - part->first_page;
      const std::uint64_t count = std::min(left, part->page_count - within);
      add_part({pack, &*part, within}, address, count, flags, mapping);
      address += count * kPage, page += count, left -= count;
      ++part;
    }
  }

  void finish() {
    if (batch_.page_count == 0) return;
    const PackContent& content = packs_[batch_.pack];
    const std::uint64_t first = part_->first_page + (batch_.record_offset - part_->offset) / kPage;
    batch_.xxh3 = XXH3_64bits(content.hashes.data() + first, batch_.page_count * sizeof(PageHash));
    (batch_.flags == kPagesShared ? image_.shared : image_.batches).push_back(batch_);
    batch_.page_count = 0;
  }

 private:
  struct Place {
    std::uint32_t pack;
    const PackContent::Part* part;
    std::uint64_t within;
  };

  void add_part(const Place& at, std::uint64_t address, std::uint64_t count, std::uint32_t flags,
                std::uint32_t mapping) {
    const std::uint64_t offset = at.part->offset + at.within * kPage;
    const bool goes_on = batch_.page_count != 0 && part_ == at.part && batch_.flags == flags &&
                         batch_.record_offset + batch_.page_count * kPage == offset &&
                         (flags == 0 || batch_.mapping == mapping) && batch_.run_count < kRunsPerRecord;
    if (!goes_on) {
      finish();
      batch_ = PageBatch{offset, flags, mapping, 0, 0, image_.runs.size(), 0, 0, at.pack, true};
      part_ = at.part;
    }
    image_.runs.push_back({address, count * kPage, mapping});
    ++batch_.run_count;
    batch_.page_count += count;
  }

  const std::vector<PackContent>& packs_;
  LoadedImage& image_;
  PageBatch batch_{};
  const PackContent::Part* part_ = nullptr;
};

}  // namespace

void PackContent::add(const std::uint8_t* pages, std::uint64_t count, std::uint64_t offset) {
  parts.push_back({hashes.size(), count, offset});
  hashes.resize(hashes.size() + count);
  std::memcpy(hashes.data() + hashes.size() - count, pages, count * sizeof(PageHash));
}

std::string pack_name(std::uint32_t member, const std::uint8_t set_id[16]) {
  char name[kPackNameBytes];
  name_pack(member, set_id, name);
  return name;
}

std::string pack_path(const std::string& image_path, std::uint32_t member, const PackEntry& entry) {
  const std::size_t slash = image_path.rfind('/');
  return (slash == std::string::npos ? "" : image_path.substr(0, slash + 1)) + pack_name(member, entry.set_id);
}

Status find_borrowed(const std::string& path, ReadDepth depth, const std::vector<BorrowedPages>& borrowed,
                     LoadedImage* image) {
  std::vector<PackContent> packs(image->packs.size());
  for (std::size_t i = 0; i < packs.size(); ++i)
    if (image->packs[i].entry.used != 0) SHADOWIB_TRY(read_pack(path, depth, *image, image->packs[i], &packs[i]));
  std::vector<std::uint64_t> used(packs.size());
  BatchMaker maker(packs, image);
  for (const BorrowedPages& record : borrowed) {
    for (std::size_t i = 0; i < record.runs.size(); ++i) {
      const BorrowedRun& run = record.runs[i];
      const std::uint64_t pack = run.address_and_pack & kPackBits;
      if (pack >= packs.size() || run.page_count == 0 ||
          std::uint64_t{run.first_page} + run.page_count > packs[pack].hashes.size())
        return corrupt(path, "a record", "has borrowed pages that no pack has");
      used[pack] += run.page_count;
      maker.add(run, record.header.flags, image->runs[record.first_run + i].mapping);
    }
    maker.finish();
  }
  for (std::size_t i = 0; i < packs.size(); ++i)
    if (used[i] != image->packs[i].entry.used) return corrupt(path, "the list of packs", "is not that of its pages");
  return {};
}

ImageFiles::ImageFiles(const LoadedImage& image, int image_fd, std::vector<int> packs)
    : image_(image), image_fd_(image_fd), own_packs_(packs.empty()), packs_(std::move(packs)) {
  packs_.resize(image.packs.size(), -1);
}

ImageFiles::~ImageFiles() {
  if (!own_packs_) return;
  for (const int fd : packs_)
    if (fd >= 0) ::close(fd);
}

Status ImageFiles::open(const PageBatch& batch, int* fd) {
  if (batch.pack == PageBatch::kOwnFile) {
    *fd = image_fd_;
    return {};
  }
  int& pack = packs_[batch.pack];
  const std::string& path = image_.packs[batch.pack].path;
  if (pack < 0) pack = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  *fd = pack;
  return pack >= 0 ? Status()
                   : Status::of(Code::kIo, errno, "cannot open %.250s: %s", path.c_str(), std::strerror(errno));
}

Status ImageFiles::read(const PageBatch& batch, std::vector<std::uint8_t>* pages) {
  int fd = -1;
  SHADOWIB_TRY(open(batch, &fd));
  std::uint8_t head[kPage];
  const std::uint64_t head_bytes = batch.head_pages * kPage, bytes = batch.page_count * kPage;
  pages->resize(bytes);
  for (std::uint64_t done = 0; done < head_bytes + bytes;) {
    const std::uint64_t body = done < head_bytes ? 0 : done - head_bytes;
    const iovec parts[2] = {{head + std::min(done, head_bytes), head_bytes - std::min(done, head_bytes)},
                            {pages->data() + body, bytes - body}};
    const ssize_t n = ::preadv(fd, parts, 2, static_cast<off_t>(batch.record_offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return Status::of(Code::kIo, n < 0 ? errno : EIO, "cannot read the image of member %u at byte %" PRIu64,
                        image_.header.member, batch.record_offset + done);
    done += static_cast<std::uint64_t>(n);
  }
  if (!is_checked_by_headers(image_)) return {};
  XXH3_state_t hash;
  XXH3_64bits_reset(&hash);
  if (batch.by_pages) {
    for (std::uint64_t i = 0; i < batch.page_count; ++i) {
      const XXH128_hash_t page = XXH3_128bits(pages->data() + i * kPage, kPage);
      const PageHash words{page.low64, page.high64};
      XXH3_64bits_update(&hash, &words, sizeof(words));
    }
  } else {
    XXH3_64bits_update(&hash, head + sizeof(RecordHeader), head_bytes - sizeof(RecordHeader));
    XXH3_64bits_update(&hash, pages->data(), bytes);
  }
  return XXH3_64bits_digest(&hash) == batch.xxh3 ? Status() : damaged_pages(image_, batch);
}

}  // namespace shadowib
