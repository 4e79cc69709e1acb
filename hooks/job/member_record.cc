#include "hooks/job/member_record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

constexpr std::size_t kMostBytes = 512;

void append(const std::string& path, const std::string& line) {
  UnownedDescriptors unowned;
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return;
  struct stat before {};
  const bool known = ::fstat(fd, &before) == 0;
  while (::write(fd, line.data(), line.size()) < 0 && errno == EINTR) {
  }
  const timespec times[2] = {before.st_atim, before.st_mtim};
  if (known) ::futimens(fd, times);
  raw_close(fd);  // other than a record lock, the lock of an open file stays
}

void append_by_lock(int lock, const char* line, std::size_t length) {
  struct stat before {};
  if (::fstat(lock, &before) != 0) return;
  (void)!::pwrite(lock, line, length, before.st_size);
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ::futimens(lock, times);
}

// The value of "name=value" in a line, up to the next blank.
std::string value_of(const std::string& line, const std::string& name) {
  const std::size_t at = line.find(" " + name + "=");
  if (at == std::string::npos) return {};
  const std::size_t begin = at + name.size() + 2;
  return line.substr(begin, line.find(' ', begin) - begin);
}

}  // namespace

std::string joined_record(int pid, std::uint64_t start_time, const std::string& host, const std::string& cluster) {
  return "member pid=" + std::to_string(pid) + " starttime=" + std::to_string(start_time) + " host=" + host +
         (cluster.empty() ? "" : " cluster=" + cluster) + "\n";
}

void record_joined(const std::string& lock_path, int pid, std::uint64_t start_time, const std::string& host,
                   const std::string& cluster) {
  append(lock_path, joined_record(pid, start_time, host, cluster));
}

void record_left(const std::string& lock_path, int status) {
  append(lock_path, "left status=" + (status < 0 ? std::string("-") : std::to_string(status)) + "\n");
}

void record_left_by_lock(int lock, int status) {
  char line[32] = "left status=";
  std::size_t length = sizeof("left status=") - 1;
  if (status < 0) line[length++] = '-';
  for (int unit = status < 0 ? 0 : 100; unit > 0; unit /= 10)
    if (status >= unit || unit == 1) line[length++] = static_cast<char>('0' + status / unit % 10);
  line[length++] = '\n';
  append_by_lock(lock, line, length);
}

void record_saved_by_lock(int lock, const std::string& set) {
  const std::string line = "saved set=" + set + "\n";
  append_by_lock(lock, line.data(), line.size());
}

MemberRecord parse_member_record(const std::string& text) {
  MemberRecord record;
  // A line without a newline was cut short. No stream: it would bring the locale's statics into every program.
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string line = text.substr(at, end - at);
    if (line.starts_with("member ")) {
      record = {};  // an index may come again, if the exchange of its epoch was lost
      record.joined = true;
      record.pid = std::atoi(value_of(line, "pid").c_str());
      record.start_time = std::strtoull(value_of(line, "starttime").c_str(), nullptr, 10);
      record.host = value_of(line, "host");
      record.cluster = value_of(line, "cluster");
    } else if (line.starts_with("left ")) {
      const std::string status = value_of(line, "status");
      record.left = true;
      record.status = status.empty() || status == "-" ? -1 : std::atoi(status.c_str());
    } else if (line.starts_with("saved ")) {
      record.saved_as = value_of(line, "set");
    }
  }
  return record;
}

MemberRecord read_member_record(const std::string& lock_path) {
  const int fd = ::open(lock_path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return {};
  char text[kMostBytes];
  const ssize_t bytes = ::pread(fd, text, sizeof(text), 0);
  ::close(fd);
  return parse_member_record(std::string(text, bytes > 0 ? static_cast<std::size_t>(bytes) : 0));
}

}  // namespace shadowib
