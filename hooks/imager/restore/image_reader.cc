#include "hooks/imager/image_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include "hooks/imager/restore/image_file.h"

namespace shadowib {
namespace {

std::string hex(const std::uint8_t* bytes, std::size_t count) {
  static const char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

void describe(const LoadedImage& image, ImageInfo* info) {
  info->format_version = image.header.version;
  info->shadowib_version.assign(image.header.shadowib_version,
                                strnlen(image.header.shadowib_version, sizeof(image.header.shadowib_version)));
  __builtin_memcpy(info->set_id, image.header.set_id, 16);
  info->member = image.header.member;
  info->generation = image.header.generation;
  info->pid = image.process.pid;
  info->exe = image.exe;
  info->cwd = image.cwd;
  info->kernel = image.kernel;
  info->command_line = image.command_line;
  info->descriptors = image.descriptors;
  info->bytes = image.file_bytes;
  info->page_bytes = image.page_bytes;
  info->stored_bytes = image.stored_bytes;
  __builtin_memcpy(info->xxh3, image.xxh3, 16);
  for (const LoadedPack& pack : image.packs)
    if (!pack.path.empty())
      info->packs.push_back(
          {pack.path.substr(pack.path.rfind('/') + 1), pack.entry.file_bytes, pack.entry.used * kPage});
  for (const ThreadRecord& t : image.threads) {
    const std::string name(t.name, strnlen(t.name, sizeof(t.name)));
    if (t.tid == image.process.pid) info->comm = name;
    info->threads.push_back({t.tid, name});
  }
  for (std::size_t i = 0; i < image.mappings.size(); ++i) {
    const MappingRecord& m = image.mappings[i];
    info->mappings.push_back({.start = m.start,
                              .length = m.length,
                              .protection = static_cast<int>(m.protection),
                              .flags = static_cast<int>(m.flags),
                              .offset = m.offset,
                              .path = image.paths[i],
                              .build_id = hex(m.build_id, m.build_id_bytes),
                              .saved_bytes = image.saved_bytes[i]});
  }
  // Shared memory that this image has the content of, where it is mapped first.
  for (const PageBatch& batch : image.shared)
    for (std::size_t i = 0; i < image.mappings.size(); ++i) {
      if (image.mappings[i].kind != MappingKind::kSharedMemory || image.mappings[i].file_bytes != batch.mapping)
        continue;
      info->mappings[i].saved_bytes += batch.page_count * kPage;
      break;
    }
}

Status read(const std::string& path, ReadDepth depth, ImageInfo* info, int* fd) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0)
    return Status::of(errno == ENOENT ? Code::kNotFound : Code::kIo, errno, "cannot open image %s: %s", path.c_str(),
                      std::strerror(errno));
  LoadedImage image;
  Status status = load_image(file, path, depth, &image);
  bool whole = depth == ReadDepth::kEverything;
  if (status.ok() && !whole && !is_checked_by_headers(image)) {
    status = load_image(file, path, ReadDepth::kEverything, &image);
    whole = true;
  }
  if (status.ok()) {
    *info = ImageInfo{};
    describe(image, info);
    info->has_xxh3 = whole;
  }
  if (status.ok() && fd != nullptr)
    *fd = file;
  else
    ::close(file);
  return status;
}

}  // namespace

Status read_image(const std::string& path, ImageInfo* info, int* fd) {
  return read(path, ReadDepth::kEverything, info, fd);
}

Status read_image_tables(const std::string& path, ImageInfo* info) {
  return read(path, ReadDepth::kTables, info, nullptr);
}

}  // namespace shadowib
