#include "hooks/imager/set/set_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "hooks/imager/set/manifest.h"
#include "hooks/job/job_directory.h"

namespace shadowib {
namespace fs = std::filesystem;

std::string set_name(const std::string& job, std::uint32_t number) {
  char digits[16];
  std::snprintf(digits, sizeof(digits), ".%04u", number);
  return job + digits;
}

bool parse_set_name(const std::string& name, std::string* job, std::uint32_t* number) {
  std::size_t dot = name.rfind('.');
  if (dot == std::string::npos) return false;
  std::string digits = name.substr(dot + 1);
  if (digits.size() < 4 || digits.size() > 9 || digits.find_first_not_of("0123456789") != std::string::npos)
    return false;
  *job = name.substr(0, dot);
  *number = static_cast<std::uint32_t>(std::stoul(digits));
  return valid_job_name(*job) && set_name(*job, *number) == name;
}

bool parse_hidden_name(const std::string& name, std::string* job, std::uint32_t* number) {
  if (name.empty() || name[0] != '.') return false;
  std::size_t dot = name.rfind('.');
  if (name.compare(dot, 9, ".staging-") != 0 && name.compare(dot, 10, ".removing-") != 0) return false;
  return dot > 1 && parse_set_name(name.substr(1, dot - 1), job, number);
}

Status file_error(int err, const char* what, const std::string& path) {
  const char* remedy = "";
  if (err == ENOSPC || err == EDQUOT) remedy = "; free space there, or name another directory with --dir";
  if (err == EACCES || err == EPERM || err == EROFS) remedy = "; name a directory you may write to with --dir";
  return Status::of(Code::kIo, err, "cannot %s %.200s: %s%s", what, path.c_str(), std::strerror(err), remedy);
}

Status ensure_directory(const std::string& path) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      int err = errno;
      if (end == std::string::npos || ::access(part.c_str(), F_OK) != 0)
        return file_error(err, "create directory", part);
    }
    if (end == std::string::npos) break;
  }
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return file_error(errno, "use directory", path);
  if (!S_ISDIR(info.st_mode)) return file_error(ENOTDIR, "use directory", path);
  return {};
}

Status sync_path(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return file_error(errno, "open", path);
  int err = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  return err == 0 ? Status() : file_error(err, "sync", path);
}

Status read_file(const std::string& path, std::string* content) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return file_error(errno, "open", path);
  content->clear();
  char buffer[65536];
  ssize_t got;
  while ((got = ::read(fd, buffer, sizeof(buffer))) > 0) content->append(buffer, static_cast<std::size_t>(got));
  int err = got < 0 ? errno : 0;
  ::close(fd);
  return err == 0 ? Status() : file_error(err, "read", path);
}

Status write_new_file(const std::string& path, const std::string& content) {
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return file_error(errno, "create", path);
  int err = 0;
  for (std::size_t at = 0; at < content.size() && err == 0;) {
    ssize_t wrote = ::write(fd, content.data() + at, content.size() - at);
    if (wrote < 0 && errno != EINTR) err = errno;
    if (wrote > 0) at += static_cast<std::size_t>(wrote);
  }
  if (err == 0 && ::fsync(fd) != 0) err = errno;
  ::close(fd);
  if (err == 0) return {};
  ::unlink(path.c_str());
  return file_error(err, "write", path);
}

Status remove_hidden(const std::string& path) {
  std::string job;
  std::uint32_t number = 0;
  if (!parse_hidden_name(fs::path(path).filename(), &job, &number))
    return Status::of(Code::kUsage, EINVAL, "%.200s is not a staging directory", path.c_str());
  std::error_code error;
  fs::remove_all(path, error);
  return error ? file_error(error.value(), "remove", path) : Status();
}

Status remove_set(const std::string& set_path) {
  fs::path path(set_path);
  std::string hidden = path.parent_path() / ("." + path.filename().string() + ".removing-" + random_hex(4));
  if (::rename(set_path.c_str(), hidden.c_str()) != 0) return file_error(errno, "remove", set_path);
  return remove_hidden(hidden);
}

}  // namespace shadowib
