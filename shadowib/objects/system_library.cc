// The loader's search, done again without our own directories: dlmopen cannot be told to leave one out, and what it
// finds by the name libibverbs.so.1 is our drop-in, which loads this library once more.
#include "shadowib/objects/system_library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

constexpr char kMagic[] = "glibc-ld.so.cache1.1";
constexpr int kX8664 = 0x0303;  // FLAG_ELF_LIBC6 | FLAG_X8664_LIB64

struct CacheHeader {
  char magic[20];
  uint32_t libraries;
  uint32_t string_bytes;
  uint32_t flags, extension_offset, unused[3];
};
struct CacheEntry {
  int32_t flags;
  uint32_t name, path;  // offsets in the file
  uint32_t os_version;
  uint64_t hwcap;
};
static_assert(sizeof(CacheHeader) == 48 && sizeof(CacheEntry) == 24);

// A whole file, for reading; empty if there is none.
class MappedFile {
 public:
  explicit MappedFile(const char* path) {
    UnownedDescriptors unowned;
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    struct stat info {};
    if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
      void* p = ::mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
      if (p != MAP_FAILED) {
        data_ = static_cast<const char*>(p);
        size_ = static_cast<std::size_t>(info.st_size);
      }
    }
    raw_close(fd);
  }
  ~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  const char* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

// A library that is there and not ours, of this or another installation: ours needs libshadowib.so.
bool is_somebody_elses(const std::string& path) {
  MappedFile file(path.c_str());
  constexpr char kOurs[] = "libshadowib.so";
  return file.data() != nullptr && ::memmem(file.data(), file.size(), kOurs, sizeof(kOurs) - 1) == nullptr;
}

// Where the loader looks on behalf of this library: the library path first, its own directories last.
struct SearchPath {
  std::vector<std::string> named, own;
};

SearchPath search_path() {
  SearchPath found;
  Dl_info self{};
  link_map* map = nullptr;
  if (::dladdr1(reinterpret_cast<void*>(&search_path), &self, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0)
    return found;
  Dl_serinfo size{};
  if (::dlinfo(map, RTLD_DI_SERINFOSIZE, &size) != 0) return found;
  std::vector<char> room(size.dls_size);
  auto* info = reinterpret_cast<Dl_serinfo*>(room.data());
  if (::dlinfo(map, RTLD_DI_SERINFOSIZE, info) != 0 || ::dlinfo(map, RTLD_DI_SERINFO, info) != 0) return found;
  for (unsigned i = 0; i < info->dls_cnt; ++i) {
    const Dl_serpath& path = info->dls_serpath[i];
    (path.dls_flags & LA_SER_DEFAULT ? found.own : found.named).emplace_back(path.dls_name);
  }
  return found;
}

}  // namespace

std::string find_in_loader_cache(const char* image, std::size_t bytes, const char* file) {
  CacheHeader header;
  if (bytes < sizeof(header)) return {};
  ::memcpy(&header, image, sizeof(header));
  if (::memcmp(header.magic, kMagic, sizeof(header.magic)) != 0) return {};
  if (header.libraries > (bytes - sizeof(header)) / sizeof(CacheEntry)) return {};
  auto text = [&](uint32_t offset) {
    return offset < bytes ? std::string(image + offset, ::strnlen(image + offset, bytes - offset)) : std::string();
  };
  for (uint32_t i = 0; i < header.libraries; ++i) {
    CacheEntry entry;
    ::memcpy(&entry, image + sizeof(header) + i * sizeof(entry), sizeof(entry));
    // Those with a hwcap are for some processors only.
    if (entry.flags == kX8664 && entry.hwcap == 0 && text(entry.name) == file) return text(entry.path);
  }
  return {};
}

std::string system_library(const char* file) {
  if (::strchr(file, '/') != nullptr) return file;
  const SearchPath path = search_path();
  auto in = [file](const std::vector<std::string>& directories) -> std::string {
    for (const std::string& directory : directories)
      if (std::string at = directory + "/" + file; is_somebody_elses(at)) return at;
    return {};
  };
  if (std::string at = in(path.named); !at.empty()) return at;
  MappedFile cache("/etc/ld.so.cache");
  if (cache.data() != nullptr)
    if (std::string at = find_in_loader_cache(cache.data(), cache.size(), file); !at.empty() && is_somebody_elses(at))
      return at;
  if (std::string at = in(path.own); !at.empty()) return at;
  return file;
}

}  // namespace shadowib
