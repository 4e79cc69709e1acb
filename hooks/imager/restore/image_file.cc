#include "hooks/imager/restore/image_file.h"

#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>

#include "hooks/imager/borrowed_runs.h"
#include "hooks/imager/restore/image_packs.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace shadowib {
namespace {

constexpr std::uint64_t kMaxSegmentBytes = 1ull << 60;
constexpr std::uint64_t kMaxTableBytes = 256 << 20;  // of one record that is no pages record

class Reader {
 public:
  Reader(int fd, const std::string& path, ReadDepth depth, LoadedImage* image, PackContent* content)
      : fd_(fd), path_(path), everything_(depth == ReadDepth::kEverything), image_(*image), content_(content) {
    XXH3_128bits_reset(&file_hash_);
    XXH3_128bits_reset(&headers_hash_);
  }

  Status run() {
    struct stat info {};
    if (::fstat(fd_, &info) != 0) return io_error("cannot stat");
    file_bytes_ = static_cast<std::uint64_t>(info.st_size);
    SHADOWIB_TRY(check_magic());
    if (file_bytes_ % kPage != 0 || file_bytes_ < 2 * kPage)
      return corrupt(file_bytes_, "the file is truncated (size is no whole number of pages)");
    SHADOWIB_TRY(read_header());
    while (!ended_) {
      if (offset_ >= file_bytes_) return corrupt(offset_, "the file is truncated: there is no end record");
      SHADOWIB_TRY(read_record());
    }
    if (offset_ != file_bytes_) return corrupt(offset_, "there is data behind the end record");
    image_.file_bytes = file_bytes_;
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&file_hash_));
    __builtin_memcpy(image_.xxh3, canonical.digest, 16);
    return check_tables();
  }

  const std::vector<BorrowedPages>& borrowed() const { return borrowed_; }

 private:
  Status corrupt(std::uint64_t at, const char* why) const {
    return Status::of(Code::kCorrupt, 0, "image %s is damaged at byte %" PRIu64 ": %s", path_.c_str(), at, why);
  }
  Status io_error(const char* what) const {
    return Status::of(Code::kIo, errno, "%s image %s: %s", what, path_.c_str(), std::strerror(errno));
  }

  Status fetch(std::uint64_t at, std::uint8_t* to, std::uint64_t bytes) {
    while (bytes > 0) {
      const ssize_t n = ::pread(fd_, to, bytes, static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return io_error("cannot read");
      if (n == 0) return corrupt(at, "the file is truncated");
      to += n;
      at += static_cast<std::uint64_t>(n);
      bytes -= static_cast<std::uint64_t>(n);
    }
    return {};
  }

  // Before its size is looked at: a file of another kind is no truncated image.
  Status check_magic() {
    char magic[sizeof(ImageHeader::magic)] = {};
    SHADOWIB_TRY(
        fetch(0, reinterpret_cast<std::uint8_t*>(magic), std::min<std::uint64_t>(file_bytes_, sizeof(magic))));
    if (__builtin_memcmp(magic, kImageMagic, sizeof(magic)) == 0) return {};
    return Status::of(
        Code::kCorrupt, 0,
        "%.250s is no image of shadowib, or its first page is damaged: it does not begin with the magic "
        "number",
        path_.c_str());
  }

  Status read_header() {
    std::vector<std::uint8_t> page(kPage);
    SHADOWIB_TRY(fetch(0, page.data(), kPage));
    ImageHeader& h = image_.header;
    __builtin_memcpy(&h, page.data(), sizeof(h));
    if (h.byte_order != kImageByteOrder || h.page_bytes != kPage || h.machine != EM_X86_64) {
      if (h.xxh3 == XXH3_64bits(&h, offsetof(ImageHeader, xxh3)))
        return Status::of(Code::kVersion, 0, "image %s is of another machine: byte order %x, page %u, ELF machine %u",
                          path_.c_str(), h.byte_order, h.page_bytes, h.machine);
      return corrupt(8, "header");
    }
    if (h.xxh3 != XXH3_64bits(&h, offsetof(ImageHeader, xxh3))) return corrupt(0, "checksum of the header");
    if (h.version < kOldestImageVersion || h.version > kImageVersion)
      return Status::of(Code::kVersion, 0,
                        "image %s has format version %u, this reads %u to %u; use the shadowib (%.31s) "
                        "that wrote it",
                        path_.c_str(), h.version, kOldestImageVersion, kImageVersion, h.shadowib_version);
    for (std::uint64_t i = sizeof(h); i < kPage; ++i)
      if (page[i] != 0) return corrupt(i, "data behind the header");
    by_headers_ = is_checked_by_headers(image_);
    if (everything_) XXH3_128bits_update(&file_hash_, page.data(), kPage);
    XXH3_128bits_update(&headers_hash_, page.data(), kPage);
    offset_ = kPage;
    return {};
  }

  Status read_record() {
    if (offset_ + kPage > file_bytes_) return corrupt(offset_, "the file is truncated within a record");
    buffer_.resize(kPage);
    SHADOWIB_TRY(fetch(offset_, buffer_.data(), kPage));
    RecordHeader h;
    __builtin_memcpy(&h, buffer_.data(), sizeof(h));
    if (h.header_xxh3 != XXH3_64bits_withSeed(&h, offsetof(RecordHeader, header_xxh3), offset_))
      return corrupt(offset_, "checksum of a record's header");
    const std::uint64_t total = h.length < file_bytes_ ? record_bytes(h.length) : file_bytes_ + 1;
    if (offset_ + total > file_bytes_) return corrupt(offset_, "the file is truncated within a record");
    const auto type = static_cast<RecordType>(h.type);
    const bool pages = type == RecordType::kPages;
    const bool hashed = pages && (h.flags & kPagesHashed) != 0;
    const bool read_later = pages && total > kPage;  // guard regions have no pages, and are not read again
    if (total > (pages ? (kPagesPerRecord + 1) * kPage : kMaxTableBytes))
      return corrupt(offset_, "a record is larger than allowed");
    if (hashed && total < 3 * kPage) return corrupt(offset_, "length of a record of pages");
    if (!read_later || everything_ || hashed) {
      const std::uint64_t wanted = read_later && !everything_ ? 2 * kPage : total;
      buffer_.resize(wanted);
      SHADOWIB_TRY(fetch(offset_ + kPage, buffer_.data() + kPage, wanted - kPage));
      const std::uint64_t covered = hashed ? 2 * kPage : total;
      if (h.payload_xxh3 != XXH3_64bits(buffer_.data() + sizeof(h), covered - sizeof(h)))
        return corrupt(offset_, "checksum of a record's content");
    }
    ++record_count_;
    SHADOWIB_TRY(take(type, h));
    XXH3_128bits_update(&headers_hash_, &h, sizeof(h));
    if (everything_) XXH3_128bits_update(&file_hash_, buffer_.data(), buffer_.size());
    offset_ += total;
    return {};
  }

  template <typename T>
  Status take_array(const RecordHeader& h, std::vector<T>* list) {
    if (h.length % sizeof(T) != 0) return corrupt(offset_, "length of a table");
    list->resize(h.length / sizeof(T));
    if (h.length != 0) __builtin_memcpy(static_cast<void*>(list->data()), payload(), h.length);
    return {};
  }
  template <typename T>
  Status take_one(const RecordHeader& h, T* value) {
    if (h.length != sizeof(T)) return corrupt(offset_, "length of a record");
    __builtin_memcpy(static_cast<void*>(value), payload(), sizeof(T));
    return {};
  }
  Status take_process(const RecordHeader& h) {
    if (image_.header.version > 4) return take_one(h, &image_.process);
    if (h.length != kProcessRecordBytes4) return corrupt(offset_, "length of a record");
    __builtin_memcpy(static_cast<void*>(&image_.process), payload(), kProcessRecordBytes4);
    return {};
  }
  const std::uint8_t* payload() const { return buffer_.data() + sizeof(RecordHeader); }

  Status take(RecordType type, const RecordHeader& h) {
    const bool is_new = type == RecordType::kBorrowed || type == RecordType::kPacks;
    if (is_new && image_.header.version < kIncremental) return corrupt(offset_, "a record of unknown type");
    if (type != RecordType::kPages && !is_new) {
      // Tables come once each and in order, before the pages.
      if (h.type <= last_type_) return corrupt(offset_, "records out of order");
      last_type_ = h.type;
    } else if (last_type_ < static_cast<std::uint32_t>(RecordType::kMappings)) {
      return corrupt(offset_, "pages before the table of mappings");
    }
    const char* text = reinterpret_cast<const char*>(payload());
    switch (type) {
      case RecordType::kProcess:
        return take_process(h);
      case RecordType::kStrings:
        return take_strings(text, h.length);
      case RecordType::kCommandLine:
        split(text, h.length, &image_.command_line);
        return {};
      case RecordType::kThreads:
        return take_array(h, &image_.threads);
      case RecordType::kSignals:
        return take_one(h, &image_.actions);
      case RecordType::kPending:
        return take_array(h, &image_.pending);
      case RecordType::kTimers:
        return take_array(h, &image_.timers);
      case RecordType::kMappings:
        return take_mappings(text, h.length);
      case RecordType::kVdso:
        return take_vdso(h.length);
      case RecordType::kDescriptors:
        image_.descriptors.assign(text, h.length);
        return {};
      case RecordType::kPages:
        return take_pages(h);
      case RecordType::kBorrowed:
        return take_borrowed(h);
      case RecordType::kPacks:
        return take_packs(h);
      case RecordType::kEnd:
        return take_end(h);
    }
    return corrupt(offset_, "a record of unknown type");
  }

  static void split(const char* text, std::uint64_t bytes, std::vector<std::string>* parts) {
    for (std::uint64_t begin = 0, i = 0; i < bytes; ++i)
      if (text[i] == '\0') {
        parts->emplace_back(text + begin, i - begin);
        begin = i + 1;
      }
  }

  Status take_strings(const char* text, std::uint64_t bytes) {
    std::vector<std::string> s;
    split(text, bytes, &s);
    if (s.size() != 5) return corrupt(offset_, "number of strings");
    image_.exe = s[0], image_.cwd = s[1], image_.root = s[2], image_.kernel = s[3], image_.machine = s[4];
    return {};
  }

  Status take_mappings(const char* text, std::uint64_t bytes) {
    std::uint64_t count = 0;
    if (bytes < sizeof(std::uint64_t)) return corrupt(offset_, "length of the table of mappings");
    __builtin_memcpy(&count, text, sizeof(count));
    const std::uint64_t array = sizeof(count) + count * sizeof(MappingRecord);
    if (count > bytes / sizeof(MappingRecord) || array > bytes)
      return corrupt(offset_, "length of the table of mappings");
    image_.mappings.resize(count);
    __builtin_memcpy(static_cast<void*>(image_.mappings.data()), text + sizeof(count), count * sizeof(MappingRecord));
    std::uint64_t previous_end = 0;
    for (const MappingRecord& m : image_.mappings) {
      if (m.start % kPage != 0 || m.length % kPage != 0 || m.length == 0 || m.start < previous_end ||
          m.start + m.length < m.start || m.build_id_bytes > sizeof(m.build_id) ||
          m.path_offset + std::uint64_t{m.path_bytes} + 1 > bytes - array)
        return corrupt(offset_, "an entry of the table of mappings");
      previous_end = m.start + m.length;
      image_.paths.emplace_back(text + array + m.path_offset, m.path_bytes);
    }
    image_.saved_bytes.assign(count, 0);
    return {};
  }

  Status take_vdso(std::uint64_t bytes) {
    if (bytes < sizeof(VdsoRecord)) return corrupt(offset_, "length of the vdso's record");
    __builtin_memcpy(&image_.vdso, payload(), sizeof(VdsoRecord));
    if (image_.vdso.content_bytes != bytes - sizeof(VdsoRecord) || image_.vdso.piece_count > kMaxVdsoPieces)
      return corrupt(offset_, "length of the vdso's record");
    image_.vdso_content.assign(payload() + sizeof(VdsoRecord), payload() + bytes);
    return {};
  }

  Status take_pages(const RecordHeader& h) {
    PagesHeader p;
    __builtin_memcpy(&p, payload(), sizeof(p));
    const bool hashed = (h.flags & kPagesHashed) != 0;
    const std::uint32_t codec = h.flags & kPagesCompressed;
    const std::uint32_t flags = h.flags & ~(kPagesHashed | codec);
    const std::uint64_t head = hashed ? kHashedHeadBytes : kPage - sizeof(RecordHeader);
    const bool shared = flags == kPagesShared;
    if (p.page_count > (hashed ? kHashedPagesPerRecord : kPagesPerRecord) ||
        (codec == 0 && h.length != head + p.page_count * kPage) || p.run_count > kRunsPerRecord ||
        (!shared && p.mapping >= image_.mappings.size()) || (hashed && image_.header.version < kIncremental))
      return corrupt(offset_, "the header of a record of pages");
    if (codec != 0 &&
        (codec == kPagesCompressed || !hashed || (flags & kPagesGuard) != 0 || image_.header.version < kCompressed ||
         h.length <= head || p.page_count == 0 || h.length - head >= p.page_count * kPage))
      return corrupt(offset_, "the header of a record of compressed pages");
    const std::uint64_t first_run = image_.runs.size();
    std::uint32_t mapping = p.mapping;
    std::uint64_t pages = 0;
    for (std::uint32_t i = 0; i < p.run_count; ++i) {
      PageRun run;
      __builtin_memcpy(&run, payload() + sizeof(p) + i * sizeof(run), sizeof(run));
      SHADOWIB_TRY(take_run(run, flags, flags != kPagesClean, &mapping));
      pages += run.length / kPage;
    }
    if ((flags & kPagesGuard) == 0 && pages != p.page_count) return corrupt(offset_, "number of pages");
    page_count_ += p.page_count;
    PageBatch batch{offset_, flags, p.mapping, p.run_count, p.page_count, first_run, h.payload_xxh3};
    if (codec != 0) take_frame({codec, h.length - head, p.page_count}, &batch);
    if (hashed) SHADOWIB_TRY(take_hashes(p.page_count, &batch));
    image_.page_bytes += p.page_count * kPage;
    image_.stored_bytes += record_bytes(h.length) - (hashed ? 2 : 1) * kPage;
    (shared ? image_.shared : image_.batches).push_back(batch);
    return {};
  }

  // Runs of one record. *mapping is that of the run before, and becomes its own if it may be a later one.
  Status take_run(const PageRun& run, std::uint32_t flags, bool across, std::uint32_t* mapping) {
    const bool shared = flags == kPagesShared;
    while (across && !shared && *mapping + 1 < image_.mappings.size() && run.address >= end_of(*mapping)) ++*mapping;
    const std::uint64_t start = shared ? 0 : image_.mappings[*mapping].start;
    const std::uint64_t length = shared ? kMaxSegmentBytes : image_.mappings[*mapping].length;
    if (run.address % kPage != 0 || run.length % kPage != 0 || run.address < start || run.address - start > length ||
        run.length > length - (run.address - start))
      return corrupt(offset_, "pages outside their mapping");
    image_.runs.push_back({run.address, run.length, *mapping});
    if (!shared && (flags & kPagesGuard) == 0) image_.saved_bytes[*mapping] += run.length;
    return {};
  }

  void take_frame(Frame frame, PageBatch* batch) {
    FrameHash hash;
    __builtin_memcpy(&hash, buffer_.data() + kFrameHashOffset, sizeof(hash));
    frame.xxh3 = hash.xxh3;
    batch->frame = frame;
  }

  // Of a record with hashes of its pages, which has been read as far as these at least.
  Status take_hashes(std::uint64_t page_count, PageBatch* batch) {
    const std::uint8_t* hashes = buffer_.data() + kPage;
    if (content_ != nullptr) content_->add(hashes, page_count, offset_ + 2 * kPage, batch->frame);
    batch->record_offset = offset_ + 2 * kPage;
    batch->head_pages = 0;
    batch->by_pages = true;
    batch->xxh3 = XXH3_64bits(hashes, page_count * sizeof(PageHash));
    const std::uint8_t* pages = buffer_.data() + 2 * kPage;
    if (everything_ && batch->frame.codec != 0) {
      if (const char* wrong = frames_.unpack(batch->frame, pages, &unpacked_); wrong != nullptr)
        return corrupt(batch->record_offset, wrong);
      pages = unpacked_.data();
    }
    for (std::uint64_t i = 0; everything_ && i < page_count; ++i) {
      PageHash hash;
      __builtin_memcpy(&hash, hashes + i * sizeof(hash), sizeof(hash));
      const XXH128_hash_t found = XXH3_128bits(pages + i * kPage, kPage);
      if (found.low64 != hash.low || found.high64 != hash.high)
        return corrupt(batch->record_offset + i * kPage, "checksum of a page");
    }
    return {};
  }

  Status take_borrowed(const RecordHeader& h) {
    BorrowedPages pages{};
    const bool is_short = image_.header.version >= kShortRuns;
    if (h.length < sizeof(pages.header) || (is_short && h.length > sizeof(pages.header) + kMostShortRunBytes))
      return corrupt(offset_, "length of a record of borrowed pages");
    __builtin_memcpy(&pages.header, payload(), sizeof(pages.header));
    const std::uint32_t flags = pages.header.flags;
    std::uint32_t mapping = pages.header.mapping;
    if ((flags != 0 && flags != kPagesClean && flags != kPagesShared) ||
        (flags != kPagesShared && mapping >= image_.mappings.size()))
      return corrupt(offset_, "the header of a record of borrowed pages");
    pages.first_run = image_.runs.size();
    BorrowedRunCoder coder;
    for (std::uint64_t at = sizeof(pages.header); at < h.length;) {
      BorrowedRun run{};
      const std::uint64_t left = h.length - at,
                          taken = is_short ? coder.get(payload() + at, left, &run) : sizeof(run);
      if (taken == 0 || taken > left) return corrupt(offset_, "a run of borrowed pages");
      if (!is_short) __builtin_memcpy(&run, payload() + at, sizeof(run));
      const std::uint64_t address = run.address_and_pack & ~kPackBits;
      SHADOWIB_TRY(take_run({address, run.page_count * kPage}, flags, flags == 0, &mapping));
      pages.runs.push_back(run);
      at += taken;
    }
    borrowed_.push_back(std::move(pages));
    return {};
  }

  Status take_packs(const RecordHeader& h) {
    std::vector<PackEntry> entries;
    SHADOWIB_TRY(take_array(h, &entries));
    if (entries.size() > kMostPacks || !image_.packs.empty()) return corrupt(offset_, "the list of packs");
    for (const PackEntry& entry : entries)
      image_.packs.push_back({entry.used == 0 ? "" : pack_path(path_, image_.header.member, entry), entry});
    return {};
  }

  std::uint64_t end_of(std::uint32_t mapping) const {
    return image_.mappings[mapping].start + image_.mappings[mapping].length;
  }

  Status take_end(const RecordHeader& h) {
    EndRecord end;
    SHADOWIB_TRY(take_one(h, &end));
    if (end.record_count != record_count_ || end.page_count != page_count_ || end.file_bytes != file_bytes_)
      return corrupt(offset_, "the end record does not fit the file");
    if (everything_ || by_headers_) {
      XXH128_canonical_t canonical;
      XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(by_headers_ ? &headers_hash_ : &file_hash_));
      if (__builtin_memcmp(canonical.digest, end.xxh3, 16) != 0)
        return corrupt(offset_, "checksum of the whole file");
    }
    if (content_ != nullptr) __builtin_memcpy(content_->xxh3, end.xxh3, sizeof(end.xxh3));
    ended_ = true;
    return {};
  }

  Status check_tables() const {
    if (last_type_ != static_cast<std::uint32_t>(RecordType::kEnd) || image_.mappings.empty() ||
        image_.threads.empty() || image_.exe.empty() || image_.process.pid <= 0)
      return corrupt(file_bytes_, "a table is missing");
    return {};
  }

  int fd_;
  const std::string& path_;
  bool everything_, by_headers_ = false;
  LoadedImage& image_;
  PackContent* content_;
  std::vector<BorrowedPages> borrowed_;
  XXH3_state_t file_hash_, headers_hash_;
  std::vector<std::uint8_t> buffer_, unpacked_;
  FrameReader frames_;
  std::uint64_t file_bytes_ = 0, offset_ = 0, record_count_ = 0, page_count_ = 0;
  std::uint32_t last_type_ = 0;
  bool ended_ = false;
};

}  // namespace

Status load_image(int fd, const std::string& path, ReadDepth depth, LoadedImage* image) {
  *image = LoadedImage{};
  // The reader holds hash states of some hundred bytes with strict alignment; the stack suits it.
  Reader reader(fd, path, depth, image, nullptr);
  SHADOWIB_TRY(reader.run());
  return find_borrowed(path, depth, reader.borrowed(), image);
}

Status load_pack(int fd, const std::string& path, ReadDepth depth, LoadedImage* pack, PackContent* content) {
  Reader reader(fd, path, depth, pack, content);
  return reader.run();
}

Status damaged_pages(const LoadedImage& image, const PageBatch& batch, const char* what) {
  if (batch.pack == PageBatch::kOwnFile)
    return Status::of(Code::kCorrupt, 0, "the image of member %u is damaged at byte %" PRIu64 ": %s",
                      image.header.member, batch.record_offset,
                      what != nullptr ? what : "checksum of a record's content");
  return Status::of(Code::kCorrupt, 0, "%.250s is damaged at byte %" PRIu64 ": %s",
                    image.packs[batch.pack].path.c_str(), batch.record_offset,
                    what != nullptr ? what : "checksum of pages");
}

}  // namespace shadowib
