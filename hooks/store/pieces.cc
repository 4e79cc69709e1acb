#include "hooks/store/pieces.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "hooks/job/job_directory.h"
#include "hooks/job/near_directory.h"
#include "hooks/job/phase.h"
#include "hooks/store/files.h"
#include "hooks/store/hex_hash.h"
#include "hooks/store/near_place.h"
#include "shadowib/exchange/raw_files.h"

namespace shadowib {
namespace {

constexpr std::size_t kCopyStep = 256 << 10;  // received, hashed and written while it lies in a cache

std::string path_of(const NearSetId& set, const std::string& file) {
  return near_set_path(set.place, set.job, set.set_id) + "/" + file;
}

Status io(int error, const char* what, const std::string& path) {
  return Status::of(Code::kIo, error, "cannot %s %.200s: %.60s", what, path.c_str(), std::strerror(error));
}

Status another_hash(const std::string& path) {
  return Status::of(Code::kCorrupt, 0, "%.250s is not the piece that the manifest records (XXH3 differs)",
                    path.c_str());
}

// A file that gets its name later. It is locked while somebody writes it, or gc would take it for left behind. -1:
// errno.
int create_part(int home, const std::string& file, std::string* part) {
  for (;;) {
    *part = "." + file + kPartMark + random_hex(4);
    const int fd = ::openat(home, part->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return -1;
    int failed = 0;
    while ((failed = ::flock(fd, LOCK_EX)) != 0 && errno == EINTR) {
    }
    struct stat info {};
    if (failed == 0) failed = ::fstat(fd, &info);
    if (failed == 0 && info.st_nlink > 0) return fd;
    const int error = errno;
    ::close(fd);
    if (failed == 0) continue;  // gc has come between
    ::unlinkat(home, part->c_str(), 0);
    return errno = error, -1;
  }
}

// *piece gets its hash if it has none.
Status fill(int fd, const PieceSource& source, const std::string& path, Piece* piece) {
  HexHash hash;
  std::vector<char> buffer(std::min<std::uint64_t>(kCopyStep, std::max<std::uint64_t>(piece->bytes, 1)));
  for (std::uint64_t left = piece->bytes; left > 0;) {
    const std::size_t part = std::min<std::uint64_t>(left, buffer.size());
    SHADOWIB_TRY(source(buffer.data(), part));
    hash.add({buffer.data(), part});
    if (const int error = write_whole(fd, {buffer.data(), part}); error != 0) return io(error, "write", path);
    left -= part;
  }
  if (piece->xxh3 == kNoHash) piece->xxh3 = hash.hex();
  if (hash.hex() != piece->xxh3) return another_hash(path);
  return ::fsync(fd) == 0 ? Status() : io(errno, "sync", path);
}

}  // namespace

Status open_piece(const NearSetId& set, const std::string& file, int* fd, std::uint64_t* bytes) {
  const std::string path = path_of(set, file);
  const Status root = check_near_root(set.place, false);
  if (root.code() == Code::kPermission) return root;
  *fd = root.ok() ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
  if (*fd < 0) return Status::of(Code::kNotFound, ENOENT, "%.250s is not there", path.c_str());
  struct stat info {};
  if (::fstat(*fd, &info) == 0 && S_ISREG(info.st_mode)) {
    *bytes = static_cast<std::uint64_t>(info.st_size);
    return {};
  }
  ::close(*fd);
  return Status::of(Code::kCorrupt, 0, "%.250s is no file", path.c_str());
}

bool has_piece(const NearSetId& set, const Piece& piece) {
  int fd = -1;
  std::uint64_t bytes = 0;
  if (!open_piece(set, piece.file, &fd, &bytes).ok()) return false;
  ::close(fd);
  return bytes == piece.bytes;
}

Status check_piece(const NearSetId& set, const Piece& piece) {
  const std::string path = path_of(set, piece.file);
  int fd = -1;
  std::uint64_t bytes = 0;
  SHADOWIB_TRY(open_piece(set, piece.file, &fd, &bytes));
  HexHash hash;
  std::vector<char> buffer(kFileStep);
  ssize_t got = 0;
  while (bytes == piece.bytes && (got = ::read(fd, buffer.data(), buffer.size())) != 0) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;
    hash.add({buffer.data(), static_cast<std::size_t>(got)});
  }
  const int error = errno;
  ::close(fd);
  if (got < 0) return io(error, "read", path);
  return bytes == piece.bytes && hash.hex() == piece.xxh3 ? Status() : another_hash(path);
}

Status write_piece(const NearSetId& set, const std::string& directory, const Piece& piece,
                   const PieceSource& source) {
  Piece known = piece;
  return write_new_piece(set, directory, source, &known);
}

Status read_range(int fd, std::uint64_t offset, char* to, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::pread(fd, to, bytes, static_cast<off_t>(offset));
    if (got == 0) return Status(Code::kCorrupt, 0, "the piece became shorter");
    if (got < 0 && errno != EINTR)
      return Status::of(Code::kIo, errno, "cannot read the piece: %s", std::strerror(errno));
    if (got < 0) continue;
    to += got, bytes -= static_cast<std::size_t>(got), offset += static_cast<std::uint64_t>(got);
  }
  return {};
}

Status write_new_piece(const NearSetId& set, const std::string& directory, const PieceSource& source, Piece* piece) {
  int home = -1;
  SHADOWIB_TRY(make_near_set(set.place, set.job, set.set_id, directory, &home));
  const std::string path = path_of(set, piece->file);
  std::string part;
  const int fd = create_part(home, piece->file, &part);
  Status status = fd < 0 ? io(errno, "create", path) : fill(fd, source, path, piece);
  if (status.ok()) status = fault_point(Phase::kTake);
  if (status.ok() && ::renameat(home, part.c_str(), home, piece->file.c_str()) != 0)
    status = io(errno, "write", path);
  if (!status.ok() && fd >= 0) ::unlinkat(home, part.c_str(), 0);
  if (fd >= 0) ::close(fd);  // with its lock: until here it was no leftover
  ::close(home);
  SHADOWIB_TRY(status);
  return sync_near_set(set.place, set.job, set.set_id);
}

}  // namespace shadowib
