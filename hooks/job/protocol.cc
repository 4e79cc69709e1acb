#include "hooks/job/protocol.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/shared_names.h"
#include "shadowib/base/spare_descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

// Makes the directories above path, mode 0700.
void make_parents(const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1))
    ::mkdir(path.substr(0, slash).c_str(), 0700);
}

const std::string g_empty;

}  // namespace

std::string encode_fields(const Fields& fields) {
  std::string text = "protocol=" + std::to_string(kProtocolVersion) + "\n";
  for (const auto& [name, value] : fields) {
    text += name;
    text += '=';
    for (char c : value) text += c == '\n' ? ' ' : c;
    text += '\n';
  }
  return text;
}

bool decode_fields(std::string_view text, Fields* fields) {
  fields->clear();
  bool first = true;
  while (!text.empty()) {
    std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    std::string name(line.substr(0, equals)), value(line.substr(equals + 1));
    if (first) {
      if (name != "protocol" || value != std::to_string(kProtocolVersion)) return false;
      first = false;
      continue;
    }
    (*fields)[name] = value;
  }
  return !first;
}

std::string member_key(std::string_view epoch, std::uint32_t index) {
  return std::string(epoch) + "/member/" + std::to_string(index);
}

std::string lock_name(std::uint32_t index) {
  return is_guest_index(index) ? "g" + std::to_string(index - kFirstGuest) : std::to_string(index);
}

bool is_guest_lock(std::string_view file) {
  const std::size_t dot = file.find('.');
  return dot != std::string_view::npos && file.size() > dot + 2 && file[dot + 1] == 'g' &&
         file.find_first_not_of("0123456789", dot + 2) == std::string_view::npos;
}

std::string guest_key(std::string_view epoch, std::uint32_t number) {
  return std::string(epoch) + "/guest/" + std::to_string(number);
}

std::string end_key(std::string_view epoch) { return std::string(epoch) + "/control/end"; }

std::string death_key(std::string_view epoch) { return std::string(epoch) + "/control/died"; }

std::string restart_prefix(std::string_view epoch, std::uint64_t recovery) {
  const std::string prefix(epoch);
  return recovery == 0 ? prefix + "/restart/" : prefix + "/recovery/" + std::to_string(recovery) + "/restart/";
}

std::string reserved_members_key(std::string_view epoch) { return restart_prefix(epoch, 0) + "members"; }

std::string encode_reserved_members(const std::set<std::uint32_t>& members) {
  std::string value = std::to_string(members.empty() ? 0 : *members.rbegin() + 1);
  for (const std::uint32_t member : members) value += " " + std::to_string(member);
  return value;
}

std::set<std::uint32_t> decode_reserved_members(const std::string& value) {
  std::set<std::uint32_t> members;
  for (std::size_t space = value.find(' '); space != std::string::npos; space = value.find(' ', space + 1))
    members.insert(static_cast<std::uint32_t>(std::strtoul(value.c_str() + space, nullptr, 10)));
  return members;
}

std::string checkpoint_key(std::string_view epoch, std::uint64_t n, std::string_view rest) {
  std::string key = std::string(epoch) + "/ckpt/" + std::to_string(n);
  if (!rest.empty()) key += '/', key += rest;
  return key;
}

namespace {

// Open-file-description locks rather than flock(2): F_OFD_GETLK asks without taking, so that two who ask at the same
// time do not take each other for the owner.
int lock_file(const std::string& path) {
  UnownedDescriptors unowned;
  int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0 && errno == ENOENT) {
    make_parents(path);
    fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  }
  if (fd < 0) return -1;
  int owned = unowned.own(fd);
  if (owned < 0) {
    int saved = errno;
    raw_close(fd);
    errno = saved;
    return -1;
  }
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (::fcntl(owned, F_OFD_SETLK, &lock) == 0) return owned;
  int saved = errno == EACCES ? EAGAIN : errno;
  close_owned_descriptor(owned);
  errno = saved;
  return -1;
}

// gc has removed the file between our opening and our lock: nobody else would see this lock.
bool is_removed(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && info.st_nlink == 0;
}

}  // namespace

int hold_alive_lock(const std::string& path) {
  constexpr int kTries = 16;
  for (int tries = 0; tries < kTries; ++tries) {
    const int fd = lock_file(path);
    if (fd < 0 || !is_removed(fd)) return fd;
    release_alive_lock(fd);
  }
  errno = EAGAIN;
  return -1;
}

void release_alive_lock(int fd) {
  struct flock lock {};
  lock.l_type = F_UNLCK;
  lock.l_whence = SEEK_SET;
  ::fcntl(fd, F_OFD_SETLK, &lock);
  close_owned_descriptor(fd);
}

void tie_alive_lock_to_memory(int fd) {
  constexpr std::size_t kBytes = 4096;
  void* at = ::mmap(nullptr, kBytes, PROT_NONE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return;
  if (::madvise(at, kBytes, MADV_DONTFORK) != 0 || !own_mapping(at, kBytes)) ::munmap(at, kBytes);
}

bool is_alive(const std::string& path) {
  revalidate_parent(path);
  UnownedDescriptors unowned;
  const auto open = [&path] { return ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW); };
  int fd = open();
  const bool spare = fd < 0 && errno == EMFILE && give_up_spare_descriptor();
  if (spare) fd = open();
  if (fd < 0) return errno != ENOENT && errno != ENOTDIR && errno != EISDIR && errno != ELOOP;
  if (spare) unowned.own_in_place(fd);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  int rc = ::fcntl(fd, F_OFD_GETLK, &lock);
  spare ? close_owned_descriptor(fd) : raw_close(fd);
  return rc != 0 || lock.l_type != F_UNLCK;
}

std::uint64_t field_number(const Fields& fields, const char* name) {
  auto it = fields.find(name);
  return it == fields.end() ? 0 : std::strtoull(it->second.c_str(), nullptr, 10);
}

const std::string& field_text(const Fields& fields, const char* name) {
  auto it = fields.find(name);
  return it == fields.end() ? g_empty : it->second;
}

Status status_from_fields(const Fields& fields) {
  return Status(static_cast<Code>(field_number(fields, "code")), static_cast<int>(field_number(fields, "errno")),
                field_text(fields, "text").c_str());
}

Fields fields_of_status(const Status& status) {
  return {{"code", std::to_string(static_cast<int>(status.code()))},
          {"errno", std::to_string(status.error())},
          {"text", status.text()}};
}

}  // namespace shadowib
