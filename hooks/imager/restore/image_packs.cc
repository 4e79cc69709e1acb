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
    const std::uint64_t first = part_->first_page + first_within_;
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
    const bool goes_on = batch_.page_count != 0 && part_ == at.part && batch_.flags == flags &&
                         first_within_ + batch_.page_count == at.within &&
                         (flags == 0 || batch_.mapping == mapping) && batch_.run_count < kRunsPerRecord;
    if (!goes_on) {
      finish();
      const bool packed = at.part->frame.codec != 0;
      batch_ = PageBatch{.record_offset = at.part->offset + (packed ? 0 : at.within * kPage),
                         .flags = flags,
                         .mapping = mapping,
                         .run_count = 0,
                         .page_count = 0,
                         .first_run = image_.runs.size(),
                         .head_pages = 0,
                         .pack = at.pack,
                         .by_pages = true,
                         .frame = at.part->frame,
                         .first_in_frame = packed ? at.within : 0};
      part_ = at.part;
      first_within_ = at.within;
    }
    image_.runs.push_back({address, count * kPage, mapping});
    ++batch_.run_count;
    batch_.page_count += count;
  }

  const std::vector<PackContent>& packs_;
  LoadedImage& image_;
  PageBatch batch_{};
  const PackContent::Part* part_ = nullptr;
  std::uint64_t first_within_ = 0;  // it, of the batch
};

}  // namespace

void PackContent::add(const std::uint8_t* of_pages, std::uint64_t count, std::uint64_t offset, const Frame& frame) {
  parts.push_back({hashes.size(), count, offset, frame});
  hashes.resize(hashes.size() + count);
  std::memcpy(hashes.data() + hashes.size() - count, of_pages, count * sizeof(PageHash));
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
  unpacked_.resize(image.packs.size() + 1);
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

Status ImageFiles::fetch(const PageBatch& batch, std::uint8_t* head, std::uint64_t head_bytes, std::uint8_t* body,
                         std::uint64_t bytes) {
  int fd = -1;
  SHADOWIB_TRY(open(batch, &fd));
  for (std::uint64_t done = 0; done < head_bytes + bytes;) {
    const std::uint64_t in_head = std::min(done, head_bytes), in_body = done - in_head;
    const iovec parts[2] = {{head + in_head, head_bytes - in_head}, {body + in_body, bytes - in_body}};
    const ssize_t n = ::preadv(fd, parts, 2, static_cast<off_t>(batch.record_offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return Status::of(Code::kIo, n < 0 ? errno : EIO, "cannot read the image of member %u at byte %" PRIu64,
                        image_.header.member, batch.record_offset + done);
    done += static_cast<std::uint64_t>(n);
  }
  return {};
}

Status ImageFiles::unpack(const PageBatch& batch, const std::uint8_t** pages) {
  Unpacked& last = unpacked_[batch.pack == PageBatch::kOwnFile ? unpacked_.size() - 1 : batch.pack];
  if (last.offset != batch.record_offset) {
    last.offset = 0;
    frame_.resize(batch.frame.file_bytes());
    SHADOWIB_TRY(fetch(batch, nullptr, 0, frame_.data(), frame_.size()));
    if (const char* wrong = frames_.unpack(batch.frame, frame_.data(), &last.pages); wrong != nullptr)
      return damaged_pages(image_, batch, wrong);
    last.offset = batch.record_offset;
  }
  *pages = last.pages.data() + batch.first_in_frame * kPage;
  return {};
}

// `head`: room for a page, for a record's own.
Status ImageFiles::take(const PageBatch& batch, std::uint8_t* head, std::vector<std::uint8_t>* pages) {
  const std::uint64_t bytes = batch.page_count * kPage;
  if (batch.frame.codec != 0) {
    const std::uint8_t* unpacked = nullptr;
    SHADOWIB_TRY(unpack(batch, &unpacked));
    pages->assign(unpacked, unpacked + bytes);
    return {};
  }
  pages->resize(bytes);
  return fetch(batch, head, batch.head_pages * kPage, pages->data(), bytes);
}

Status ImageFiles::read_unchecked(const PageBatch& batch, std::vector<std::uint8_t>* pages) {
  std::uint8_t head[kPage];
  return take(batch, head, pages);
}

Status ImageFiles::read(const PageBatch& batch, std::vector<std::uint8_t>* pages) {
  std::uint8_t head[kPage];
  const std::uint64_t head_bytes = batch.head_pages * kPage;
  SHADOWIB_TRY(take(batch, head, pages));
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
    XXH3_64bits_update(&hash, pages->data(), pages->size());
  }
  return XXH3_64bits_digest(&hash) == batch.xxh3 ? Status() : damaged_pages(image_, batch);
}

}  // namespace shadowib
