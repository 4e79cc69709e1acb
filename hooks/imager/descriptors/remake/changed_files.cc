// Regular files that members write to, compared with what they were at the checkpoint.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/match/match.h"
#include "hooks/raw/proc.h"

namespace shadowib {
namespace descriptors {
namespace {

bool is_written(const Table& table, const Object& o) {
  return o.kind == Kind::kFile && !o.path.starts_with("/proc/") && S_ISREG(o.mode) &&
         (o.flags & O_ACCMODE) != O_RDONLY && (o.flags & O_PATH) == 0 && table.segment_of_file(o.device, o.inode) < 0;
}

struct Written {
  std::uint64_t inode = 0, bytes = 0;
  bool several = false;  // members of different hosts have different files of that name
};

// Each file once. Another process may have appended while one member after the other looked: the greatest length
// counts, since no member can be restored with less.
std::map<std::string, Written> written_files(const Tables& tables, const std::set<std::uint32_t>& here) {
  std::map<std::string, Written> files;
  for (const auto& [member, table] : tables)
    for (const Object& o : table.objects) {
      if (!here.contains(member) || !is_written(table, o)) continue;
      Written& file = files.try_emplace(o.path, Written{o.inode, o.size}).first->second;
      file.bytes = std::max(file.bytes, o.size);
      file.several = file.several || file.inode != o.inode;
    }
  return files;
}

// File systems give a new file the inode number of one that was removed.
bool is_born_after(const std::string& path, std::int64_t saved_s) {
  struct statx file {};
  return saved_s != 0 && ::statx(AT_FDCWD, path.c_str(), 0, STATX_BTIME, &file) == 0 &&
         (file.stx_mask & STATX_BTIME) != 0 && file.stx_btime.tv_sec > saved_s;
}

ChangedFile look_at(const std::string& path, const Written& then, std::int64_t saved_s) {
  ChangedFile file;
  file.path = path;
  file.recorded = then.bytes;
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) {
    file.state = ChangedFile::kMissing;
    return file;
  }
  file.now = static_cast<std::uint64_t>(st.st_size);
  file.device = st.st_dev;
  file.inode = st.st_ino;
  if (file.now < file.recorded) file.state = ChangedFile::kShorter;
  // The number of a device may be another after a mount, that of an inode stays.
  if (file.now > file.recorded && (then.several || st.st_ino != then.inode || is_born_after(path, saved_s)))
    file.state = ChangedFile::kReplaced;
  return file;
}

// The descriptor of another process, if it writes to one of the files.
ChangedFile* find_written(int pid, int number, std::vector<ChangedFile>* files) {
  const std::string process = "/proc/" + std::to_string(pid);
  struct stat st {};
  if (::stat((process + "/fd/" + std::to_string(number)).c_str(), &st) != 0) return nullptr;
  const auto at = std::find_if(files->begin(), files->end(), [&st](const ChangedFile& file) {
    return file.state == ChangedFile::kGrown && file.device == st.st_dev && file.inode == st.st_ino;
  });
  std::string info;
  std::string_view flags;
  if (at == files->end() || read_proc_file((process + "/fdinfo/" + std::to_string(number)).c_str(), &info) != 0)
    return nullptr;
  const bool writes = info_field(info, "flags", &flags) && (parse_number(flags, 8) & O_ACCMODE) != O_RDONLY;
  return writes ? &*at : nullptr;
}

void mark_shared(int pid, ChangedFile* file) {
  std::string name;
  (void)read_proc_file(("/proc/" + std::to_string(pid) + "/comm").c_str(), &name);
  file->state = ChangedFile::kShared;
  file->writer = "pid " + std::to_string(pid) + " (" + name.substr(0, name.find('\n')) + ")";
}

// Those that the process has mapped: it may have closed the descriptor, and would be killed behind the new end.
void find_mapped(int pid, std::vector<ChangedFile>* files) {
  std::vector<SharedMapping> mappings;
  if (read_shared_mappings(("/proc/" + std::to_string(pid) + "/maps").c_str(), &mappings) != 0) return;
  for (const SharedMapping& m : mappings)
    for (ChangedFile& file : *files)
      // Some file systems have another device in maps than stat tells.
      if (file.state == ChangedFile::kGrown && m.inode == file.inode &&
          (m.device == file.device || m.path == file.path))
        mark_shared(pid, &file);
}

// Marks the files that other processes have open for writing, or mapped. The command itself may have one: its own
// output.
void find_other_writers(std::vector<ChangedFile>* files, const std::function<bool(int)>& is_own = {}) {
  const auto grown = [](const ChangedFile& file) { return file.state == ChangedFile::kGrown; };
  std::vector<int> pids, numbers;
  if (std::none_of(files->begin(), files->end(), grown) || list_numbers("/proc", &pids) != 0) return;
  for (const int pid : pids) {
    if (pid == ::getpid() || (is_own && is_own(pid))) continue;
    if (list_numbers(("/proc/" + std::to_string(pid) + "/fd").c_str(), &numbers) != 0) continue;
    for (const int number : numbers)
      if (ChangedFile* const file = find_written(pid, number, files); file != nullptr) mark_shared(pid, file);
    find_mapped(pid, files);
  }
}

}  // namespace
}  // namespace descriptors

namespace {

constexpr char kReplaced[] = "another file has taken its name meanwhile";

Status cannot_cut(const ChangedFile& file, int error, const char* why) {
  return Status::of(Code::kRefused, error, "cannot roll back %.200s: %.150s", file.path.c_str(),
                    error == 0 ? why : std::strerror(error));
}

}  // namespace

Status find_changed_files(const std::map<std::uint32_t, std::string>& encoded, const std::set<std::uint32_t>& here,
                          std::int64_t saved_s, std::vector<ChangedFile>* files) {
  using namespace descriptors;
  Tables tables;
  SHADOWIB_TRY(decode_tables(encoded, &tables));
  for (const auto& [path, then] : written_files(tables, here))
    if (ChangedFile file = look_at(path, then, saved_s);
        file.state != ChangedFile::kGrown || file.now > file.recorded)
      files->push_back(std::move(file));
  find_other_writers(files);
  return {};
}

Status judge_cut(std::vector<ChangedFile> files, const std::function<bool(int)>& is_own) {
  for (const ChangedFile& file : files) {
    struct stat st {};
    const bool there = ::stat(file.path.c_str(), &st) == 0;
    if (!there || !S_ISREG(st.st_mode) || st.st_dev != file.device || st.st_ino != file.inode)
      return cannot_cut(file, there ? 0 : errno, kReplaced);
    if (static_cast<std::uint64_t>(st.st_size) < file.recorded)
      return cannot_cut(file, 0, "it is shorter than at the checkpoint meanwhile");
  }
  descriptors::find_other_writers(&files, is_own);
  for (const ChangedFile& file : files)
    if (file.state == ChangedFile::kShared)
      return cannot_cut(file, 0, (file.writer + " has opened it meanwhile").c_str());
  return {};
}

Status cut_file(const ChangedFile& file) {
  const int fd = ::open(file.path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  struct stat st {};
  int error = fd < 0 || ::fstat(fd, &st) != 0 ? errno : 0;
  const bool same = error == 0 && st.st_dev == file.device && st.st_ino == file.inode && S_ISREG(st.st_mode);
  if (same && static_cast<std::uint64_t>(st.st_size) > file.recorded &&
      ::ftruncate(fd, static_cast<off_t>(file.recorded)) != 0)
    error = errno;
  if (fd >= 0) ::close(fd);
  return same && error == 0 ? Status() : cannot_cut(file, error, kReplaced);
}

}  // namespace shadowib
