#include "hooks/store/far_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "hooks/job/job_directory.h"
#include "hooks/store/files.h"
#include "shadowib/exchange/raw_files.h"

namespace shadowib {
namespace {

Status io(int error, const char* what, const std::string& path) {
  const char* remedy = "";
  if (error == ENOSPC || error == EDQUOT) remedy = "; free space there, or name another place with --far";
  if (error == EACCES || error == EPERM || error == EROFS) remedy = "; name a place you may write to with --far";
  return Status::of(Code::kIo, error, "far: cannot %s %.200s: %.60s%s", what, path.c_str(), std::strerror(error),
                    remedy);
}

// Takes a file's bytes around the page cache, where the file system can: copying them into fresh pages takes most of
// a flush's processor time, and the pages are missing to the program.
class Direct {
 public:
  explicit Direct(int fd) : fd_(fd) { set(true); }
  bool on() const { return on_; }
  void end() { set(false); }

 private:
  void set(bool on) {
    const int flags = ::fcntl(fd_, F_GETFL);
    on_ = ::fcntl(fd_, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0 && on;
  }

  const int fd_;
  bool on_ = false;
};

// At an address that direct transfers can have.
struct alignas(4096) Step {
  char bytes[kFileStep];
};

Status fill(int fd, std::uint64_t bytes, const PieceSource& source, const std::string& path) {
  const auto step = std::make_unique_for_overwrite<Step>();
  Direct direct(fd);
  for (std::uint64_t at = 0; at < bytes;) {
    const std::size_t part = std::min<std::uint64_t>(bytes - at, kFileStep);
    SHADOWIB_TRY(source(step->bytes, part));
    if (direct.on() && part < kFileStep) direct.end();  // no whole blocks
    int error = write_whole(fd, {step->bytes, part});
    if (error == EINVAL && direct.on()) {  // the file system says only now that it cannot
      direct.end();
      error = ::lseek(fd, static_cast<off_t>(at), SEEK_SET) < 0 ? errno : write_whole(fd, {step->bytes, part});
    }
    if (error != 0) return io(error, "write", path);
    at += part;
  }
  return ::fsync(fd) == 0 ? Status() : io(errno, "sync", path);
}

// What a flush that was killed has left of this object.
void remove_parts(const std::string& directory, const std::string& prefix) {
  std::vector<std::string> names;
  (void)system_files().list(directory, &names);
  for (const std::string& name : names)
    if (name.starts_with(prefix)) ::unlink((directory + "/" + name).c_str());
}

}  // namespace

Status FarDirectory::check() {
  if (const int error = system_files().check_directory(top_); error != 0)
    return Status::of(Code::kNotFound, error, "far: %.250s is no directory that can be used: %.60s; mount or make it",
                      top_.c_str(), std::strerror(error));
  if (::access(top_.c_str(), R_OK | X_OK) != 0) return io(errno, "use", top_);
  return {};
}

Status FarDirectory::stat(const std::string& name, FarObject* object) {
  *object = {};
  const std::string path = top_ + "/" + name;
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) return io(errno, "look at", path);
    return check();  // a place that is not there has lost nothing
  }
  if (!S_ISREG(info.st_mode)) return io(EISDIR, "use as a file", path);
  object->found = true;
  object->bytes = static_cast<std::uint64_t>(info.st_size);
  return {};
}

Status FarDirectory::put(const std::string& name, std::uint64_t bytes, const PieceSource& source) {
  SHADOWIB_TRY(check());
  const std::string path = top_ + "/" + name;
  const std::size_t slash = path.rfind('/');
  const std::string directory = path.substr(0, slash), prefix = "." + path.substr(slash + 1) + ".part-";
  if (const Status made = ensure_directory(directory); !made.ok())
    return io(made.error(), "create directory", directory);
  remove_parts(directory, prefix);
  const std::string part = directory + "/" + prefix + random_hex(4);
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return io(errno, "create", part);
  Status status = fill(fd, bytes, source, path);
  // NFS may tell of a full disk here.
  if (::close(fd) != 0 && status.ok()) status = io(errno, "write", path);
  if (status.ok() && ::rename(part.c_str(), path.c_str()) != 0) status = io(errno, "name", path);
  if (!status.ok()) {
    ::unlink(part.c_str());
    return status;
  }
  const int error = system_files().sync(directory);
  return error == 0 ? Status() : io(error, "sync", directory);
}

Status FarDirectory::get(const std::string& name, const PieceSink& sink) {
  const std::string path = top_ + "/" + name;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return io(errno, "open", path);
  const auto step = std::make_unique_for_overwrite<Step>();
  Direct direct(fd);
  Status status;
  while (status.ok()) {
    const ssize_t got = ::read(fd, step->bytes, kFileStep);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EINVAL && direct.on()) {
      direct.end();
      continue;
    }
    if (got < 0) status = io(errno, "read", path);
    if (got <= 0) break;
    status = sink({step->bytes, static_cast<std::size_t>(got)});
  }
  ::close(fd);
  return status;
}

Status FarDirectory::remove(const std::string& name) {
  const std::string path = top_ + "/" + name;
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return io(errno, "remove", path);
  const std::string directory = path.substr(0, path.rfind('/'));
  if (directory != top_ && ::rmdir(directory.c_str()) == 0) return {};  // the last of the set
  const int error = system_files().sync(directory);
  return error == 0 || error == ENOENT ? Status() : io(error, "sync", directory);
}

}  // namespace shadowib
