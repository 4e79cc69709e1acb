#include "hooks/raw/text.h"

#include <errno.h>
#include <fcntl.h>

#include "hooks/raw/x86_64/raw_syscall.h"

namespace shadowib {

long read_small_file(const char* path, char* buffer, std::size_t capacity) {
  const long fd = raw::invoke(__NR_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return fd;
  std::size_t length = 0;
  long result = 0;
  while (length + 1 < capacity) {
    result = raw::invoke(__NR_read, fd, buffer + length, capacity - 1 - length);
    if (result == -EINTR) continue;
    if (result <= 0) break;
    length += static_cast<std::size_t>(result);
  }
  raw::invoke(__NR_close, fd);
  buffer[length] = '\0';
  return result < 0 ? result : static_cast<long>(length);
}

namespace {

// Passes on all lines but one, of which it keeps the name and a hash.
class StatusLines {
 public:
  StatusLines(char* buffer, std::size_t capacity) : buffer_(buffer), room_(capacity - 1) {}

  void take(char c) {
    if (hashed_ && c != '\n') {
      hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;  // FNV-1a
      return;
    }
    if (hashed_) put_hash();
    put(c);
    at_ = c == '\n' ? 0 : at_ == kElsewhere || c != kName[at_] ? kElsewhere : at_ + 1;
    hashed_ = at_ != kElsewhere && kName[at_] == '\0';
  }

  std::size_t end() {
    if (hashed_) put_hash();
    buffer_[length_] = '\0';
    return length_;
  }

 private:
  static constexpr char kName[] = "Groups:";
  static constexpr std::size_t kElsewhere = ~std::size_t{0};

  void put(char c) {
    if (length_ < room_) buffer_[length_++] = c;
  }
  void put_hash() {
    for (int shift = 60; shift >= 0; shift -= 4) put("0123456789abcdef"[(hash_ >> shift) & 15]);
    hashed_ = false;
  }

  char* buffer_;
  std::size_t room_, length_ = 0, at_ = 0;  // at_: of kName, since the line's beginning
  bool hashed_ = false;
  std::uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace

long read_status_file(const char* path, char* buffer, std::size_t capacity) {
  const long fd = raw::invoke(__NR_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return fd;
  StatusLines lines(buffer, capacity);
  char chunk[1024];
  long n;
  while ((n = raw::invoke(__NR_read, fd, chunk, sizeof(chunk))) > 0 || n == -EINTR)
    for (long i = 0; i < n; ++i) lines.take(chunk[i]);
  raw::invoke(__NR_close, fd);
  const auto length = static_cast<long>(lines.end());
  return n < 0 ? n : length;
}

std::uint64_t parse_number(const char** text, int base) {
  std::uint64_t value = 0;
  for (;; ++*text) {
    const char c = **text;
    int digit;
    if (c >= '0' && c <= '9')
      digit = c - '0';
    else if (base == 16 && c >= 'a' && c <= 'f')
      digit = c - 'a' + 10;
    else
      return value;
    value = value * static_cast<unsigned>(base) + static_cast<unsigned>(digit);
  }
}

const char* find_line(const char* text, const char* name) {
  for (const char* line = text; *line != '\0';) {
    const char* a = line;
    const char* b = name;
    while (*b != '\0' && *a == *b) ++a, ++b;
    if (*b == '\0') return a;
    while (*line != '\0' && *line != '\n') ++line;
    if (*line == '\n') ++line;
  }
  return nullptr;
}

bool read_status_field(const char* path, const char* name, std::uint64_t* value, int base) {
  char buffer[4096];
  if (read_status_file(path, buffer, sizeof(buffer)) <= 0) return false;
  const char* at = find_line(buffer, name);
  if (at == nullptr) return false;
  while (*at == ' ' || *at == '\t') ++at;
  *value = parse_number(&at, base);
  return true;
}

}  // namespace shadowib
