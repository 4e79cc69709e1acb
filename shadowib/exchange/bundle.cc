#include "shadowib/exchange/bundle.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace shadowib {
namespace {

constexpr std::string_view kRecordBegins("\x93shadowib record", 16);

struct BundleRecord {
  char mark[16];
  std::uint32_t key_bytes, value_bytes;
  std::uint64_t hash;
};
static_assert(sizeof(BundleRecord) == 32 && kRecordBegins.size() == sizeof(BundleRecord::mark));

// The key and value of the record with which `text` begins. False: it does not begin with a whole one.
bool read_record(std::string_view text, BundleRecord* record, std::string_view* both) {
  if (text.size() < sizeof(*record) || !text.starts_with(kRecordBegins)) return false;
  std::memcpy(record, text.data(), sizeof(*record));
  *both = text.substr(sizeof(*record));
  const std::size_t bytes = std::size_t{record->key_bytes} + record->value_bytes;
  if (both->size() < bytes) return false;
  *both = both->substr(0, bytes);
  return XXH3_64bits(both->data(), bytes) == record->hash;
}

// True if the record of `bytes` that was just added to `file` by this descriptor is its key's first. Others are not
// linked: of several that come at once readers find the one that was linked, and a watch could not tell a value that
// comes again from a removed one.
bool added_first(int file, std::string_view key, std::size_t bytes) {
  const long end = ::syscall(SYS_lseek, file, static_cast<off_t>(0), SEEK_CUR);
  if (end < static_cast<long>(bytes)) return false;
  std::string before(static_cast<std::size_t>(end) - bytes, '\0');
  std::string_view value;
  return before.empty() || (::syscall(SYS_pread64, file, before.data(), before.size(), static_cast<loff_t>(0)) ==
                                static_cast<long>(before.size()) &&
                            is_bundle(before) && !find_in_bundle(before, key, &value));
}

void drop_name(int file, int root, const std::string& name) {
  struct stat own {
  }, named{};
  if (::fstat(file, &own) == 0 && ::fstatat(root, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
      own.st_ino == named.st_ino && own.st_dev == named.st_dev)
    ::syscall(SYS_unlinkat, root, name.c_str(), 0);
}

OwnedFd open_bundle(int root, const std::string& name) {
  constexpr int kFlags = O_RDWR | O_APPEND | O_NOFOLLOW | O_NOATIME;
  OwnedFd fd = open_owned(root, name.c_str(), kFlags);
  if (fd || errno != ENOENT) return fd;
  fd = open_owned(root, name.c_str(), kFlags | O_CREAT, 0600);
  if (fd || errno != ENOENT || make_directories(root, name.substr(0, name.rfind('/'))) != 0) return fd;
  return open_owned(root, name.c_str(), kFlags | O_CREAT, 0600);
}

}  // namespace

bool is_bundle(std::string_view file) { return file.starts_with(kRecordBegins); }

std::string bundle_with(std::string_view key, std::string_view value) {
  std::string text(sizeof(BundleRecord), '\0');
  text.append(key).append(value);
  const std::string_view both = std::string_view(text).substr(sizeof(BundleRecord));
  BundleRecord record{};
  std::memcpy(record.mark, kRecordBegins.data(), sizeof(record.mark));
  record.key_bytes = static_cast<std::uint32_t>(key.size());
  record.value_bytes = static_cast<std::uint32_t>(value.size());
  record.hash = XXH3_64bits(both.data(), both.size());
  std::memcpy(text.data(), &record, sizeof(record));
  return text;
}

bool find_in_bundle(std::string_view file, std::string_view key, std::string_view* value) {
  for (std::size_t at = 0; at < file.size();) {
    BundleRecord record{};
    std::string_view both;
    if (!read_record(file.substr(at), &record, &both)) {
      at = file.find(kRecordBegins, at + 1);
      continue;
    }
    at += sizeof(record) + both.size();
    if (both.substr(0, record.key_bytes) != key) continue;
    *value = both.substr(record.key_bytes);
    return true;
  }
  return false;
}

OwnedFd add_to_bundle(int root, const std::string& name, std::string_view key, std::string_view value) {
  OwnedFd fd = open_bundle(root, name);
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return OwnedFd();
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) {  // made just now, whatever the umask
    if (::syscall(SYS_fchmod, fd.get(), 0600) != 0) return OwnedFd();
    stamp(fd.get());
  }
  const std::string text = bundle_with(key, value);
  if (size < kBundleBytes) {
    // By one call, which no other process comes between.
    const long wrote = ::syscall(SYS_write, fd.get(), text.data(), text.size());
    if (wrote != static_cast<long>(text.size())) {
      if (wrote >= 0) errno = ENOSPC;
      return OwnedFd();
    }
    if (added_first(fd.get(), key, text.size())) return fd;
  }
  drop_name(fd.get(), root, name);
  errno = EAGAIN;
  return OwnedFd();
}

int link_file(int file, int root, const std::string& target) {
  char name[40];
  std::snprintf(name, sizeof(name), "/proc/self/fd/%d", file);
  return static_cast<int>(::syscall(SYS_linkat, AT_FDCWD, name, root, target.c_str(), AT_SYMLINK_FOLLOW));
}

}  // namespace shadowib
