#include "hooks/imager/descriptors/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "hooks/raw/proc.h"

namespace shadowib::descriptors {
namespace {

constexpr std::string_view kPrefix = "lock:";

// Takes the next word off `rest`.
std::string_view next_word(std::string_view* rest) {
  rest->remove_prefix(std::min(rest->find_first_not_of(" \t"), rest->size()));
  const std::string_view word = rest->substr(0, rest->find_first_of(" \t\n"));
  rest->remove_prefix(word.size());
  return word;
}

std::int32_t signed_number(std::string_view word) {
  std::int32_t value = 0;
  std::from_chars(word.data(), word.data() + word.size(), value);
  return value;
}

LockKind kind_of(std::string_view name) {
  if (name == "FLOCK") return LockKind::kFlock;
  if (name == "POSIX") return LockKind::kRecord;
  return name == "OFDLCK" ? LockKind::kDescription : LockKind::kNone;
}

}  // namespace

bool parse_lock(std::string_view line, LockLine* parsed) {
  next_word(&line);  // its number
  parsed->kind = next_word(&line);
  if (parsed->kind == "->") return false;
  FileLock& lock = parsed->lock;
  lock.kind = kind_of(parsed->kind);
  next_word(&line);  // ADVISORY
  lock.exclusive = next_word(&line) == "WRITE";
  parsed->pid = signed_number(next_word(&line));
  const std::string_view file = next_word(&line);  // major:minor:inode
  const std::size_t colon = file.rfind(':');
  if (colon == std::string_view::npos) return false;
  parsed->inode = parse_number(file.substr(colon + 1), 10);
  lock.taker = lock.kind == LockKind::kFlock ? parsed->pid : 0;
  lock.start = parse_number(next_word(&line), 10);
  const std::string_view end = next_word(&line);
  lock.end = end == "EOF" ? kEndOfFile : parse_number(end, 10);
  return true;
}

void read_locks(std::string_view info, std::vector<FileLock>* locks, std::string* unknown) {
  unknown->clear();
  while (!info.empty()) {
    const std::size_t end = std::min(info.find('\n'), info.size());
    std::string_view line = info.substr(0, end);
    info.remove_prefix(std::min(end + 1, info.size()));
    if (!line.starts_with(kPrefix)) continue;
    line.remove_prefix(kPrefix.size());
    LockLine parsed;
    if (!parse_lock(line, &parsed) || parsed.lock.kind == LockKind::kNone)
      *unknown = parsed.kind.empty() ? std::string_view("?") : parsed.kind;
    else
      locks->push_back(parsed.lock);
  }
}

std::string describe_lock(const FileLock& lock) {
  const std::string mode = lock.exclusive != 0 ? "exclusive " : "shared ";
  if (lock.kind == LockKind::kFlock) return mode + "flock";
  const char* const kind = lock.kind == LockKind::kRecord ? "record lock" : "open file description lock";
  if (lock.start == 0 && lock.end == kEndOfFile) return mode + kind;
  return mode + kind + " of bytes " + std::to_string(lock.start) + " to " +
         (lock.end == kEndOfFile ? "the end" : std::to_string(lock.end));
}

struct flock as_range(const FileLock& lock) {
  struct flock range {};
  range.l_type = lock.exclusive != 0 ? F_WRLCK : F_RDLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(lock.start);
  range.l_len = lock.end == kEndOfFile ? 0 : static_cast<off_t>(lock.end - lock.start + 1);
  return range;
}

int take_lock(int fd, const FileLock& lock) {
  struct flock range = as_range(lock);
  const int rc = lock.kind == LockKind::kFlock
                     ? ::flock(fd, (lock.exclusive != 0 ? LOCK_EX : LOCK_SH) | LOCK_NB)
                     : ::fcntl(fd, lock.kind == LockKind::kRecord ? F_SETLK : F_OFD_SETLK, &range);
  if (rc == 0) return 0;
  return errno == EACCES ? EAGAIN : errno;  // POSIX allows either
}

}  // namespace shadowib::descriptors
