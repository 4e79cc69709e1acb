#include "hooks/imager/restore/image_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace shadowib {

Status ImageMemory::fetch(const Run& run, std::uint64_t within, std::uint8_t* to, std::uint64_t bytes) const {
  std::uint64_t offset = run.offset + within;
  if (run.batch->frame.codec != 0) {
    const std::uint8_t* pages = nullptr;
    SHADOWIB_TRY(files_.unpack(*run.batch, &pages));
    std::memcpy(to, pages + offset, bytes);
    return {};
  }
  while (bytes > 0) {
    const ssize_t n = ::pread(run.fd, to, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return Status::of(Code::kIo, n < 0 ? errno : EIO, "cannot read the image of member %u at byte %lu",
                        image_.header.member, offset);
    to += n, offset += static_cast<std::uint64_t>(n), bytes -= static_cast<std::uint64_t>(n);
  }
  return {};
}

Status ImageMemory::open() {
  for (const PageBatch& b : image_.batches) {
    if ((b.flags & (kPagesClean | kPagesGuard)) != 0) continue;
    std::uint64_t offset = b.frame.codec != 0 ? 0 : b.data_offset();
    int fd = -1;
    SHADOWIB_TRY(files_.open(b, &fd));
    for (std::uint32_t i = 0; i < b.run_count; ++i) {
      const LoadedRun& run = image_.runs[b.first_run + i];
      const MappingRecord& m = image_.mappings[run.mapping];
      if ((m.flags & MAP_PRIVATE) != 0 && (m.protection & PROT_WRITE) != 0)
        runs_.push_back({run.address, run.length, offset, fd, &b});
      offset += run.length;
    }
  }
  std::sort(runs_.begin(), runs_.end(), [](const Run& a, const Run& b) { return a.address < b.address; });
  return {};
}

Status ImageMemory::visit(
    const std::function<Status(std::uint64_t address, const std::uint8_t* data, std::uint64_t bytes)>& f) const {
  std::vector<std::uint8_t> data;
  for (const Run& run : runs_) {
    data.resize(run.bytes);  // at most a record's, a MiB
    SHADOWIB_TRY(fetch(run, 0, data.data(), run.bytes));
    SHADOWIB_TRY(f(run.address, data.data(), run.bytes));
  }
  return {};
}

Status ImageMemory::read(std::uint64_t address, std::uint8_t* to, std::uint64_t bytes) const {
  std::memset(to, 0, bytes);
  auto run = std::upper_bound(runs_.begin(), runs_.end(), address,
                              [](std::uint64_t at, const Run& r) { return at < r.address + r.bytes; });
  for (; run != runs_.end() && run->address < address + bytes; ++run) {
    const std::uint64_t from = std::max(address, run->address);
    const std::uint64_t end = std::min(address + bytes, run->address + run->bytes);
    SHADOWIB_TRY(fetch(*run, from - run->address, to + (from - address), end - from));
  }
  return {};
}

}  // namespace shadowib
