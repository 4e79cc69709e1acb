// Writing an image: records with their checksums, straight to the descriptor, hashed on the way.
#pragma once

#include "hooks/imager/compression.h"
#include "hooks/imager/content_hash.h"
#include "hooks/imager/image_format.h"
#include "hooks/imager/save/direct_writer.h"
#include "hooks/imager/save/scratch.h"
#include "shadowib/base/status.h"

namespace shadowib {

// One writer per image. All its memory is in the scratch; nothing else of the process changes while it works.
class ImageWriter {
 public:
  // `name` is for messages. The descriptor stays the caller's. Writing ends with kTimeout at `deadline_ns`, if it is
  // not 0.
  Status start(Scratch* scratch, int fd, const char* name, std::int64_t deadline_ns);

  // Pages with hashes are compressed from now on, where that makes a record smaller.
  Status compress(Scratch* scratch, Compression compression);

  // Goes on in a saver, by another descriptor of the file. From now on writing ends with kAborted when the file has
  // been removed: nobody wants the image any more.
  void move_to(int fd);

  Status header(const ImageHeader& header);
  // A record of one or two parts. The parts are copied before they are hashed.
  Status record(RecordType type, const void* first, std::uint64_t first_bytes, const void* second = nullptr,
                std::uint64_t second_bytes = 0);

  // Once the table of mappings is read: pages are written several records at once.
  void begin_pages() { file_.begin_queue(); }
  // For pages: a buffer of 1 MiB, the first page for header and runs, with kPagesHashed the second one for hashes,
  // filled by the caller. Each record has another.
  std::uint8_t* page_buffer() { return file_.buffer(); }
  Status pages_record(std::uint32_t flags, std::uint64_t page_count);

  // Writes the end record and syncs. Fills size and checksum of the whole file.
  Status finish(std::uint64_t* bytes, std::uint8_t xxh3[16]);

  bool has_avx2() const { return avx2_; }
  std::uint64_t page_count() const { return page_count_; }

 private:
  void emit(RecordType type, std::uint32_t flags, std::uint64_t length, std::uint64_t payload_hash);
  Status write_out(std::uint64_t bytes);
  Status too_late(std::int64_t now) const;
  bool is_removed() const;
  std::uint64_t make_frame(std::uint64_t page_count);

  DirectWriter file_;
  ContentHash* record_hash_ = nullptr;
  ContentHash* file_hash_ = nullptr;
  void* headers_hash_ = nullptr;
  Compression compression_ = Compression::kNone;
  void* frames_ = nullptr;         // of frame_maker.h
  std::uint8_t* frame_ = nullptr;  // a buffer
  bool avx2_ = false, may_be_removed_ = false;
  const char* name_ = "";
  int fd_ = -1;
  std::int64_t deadline_ns_ = 0, began_ns_ = 0, cpu_began_ns_ = 0, in_file_system_ns_ = 0;
  std::uint64_t record_count_ = 0, page_count_ = 0;
};

}  // namespace shadowib
