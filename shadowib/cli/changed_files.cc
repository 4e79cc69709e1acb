#include "shadowib/cli/changed_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "hooks/imager/restore/members.h"

namespace shadowib::cli {
namespace {

constexpr std::size_t kMostFiles = 10;  // of a longer list

std::string lengths(const ChangedFile& file) {
  return file.path + " has " + std::to_string(file.now) + " bytes, " + std::to_string(file.recorded) +
         " at the checkpoint";
}

// Why a file that is longer than at the checkpoint is not cut.
std::string exception(const ChangedFile& file) {
  return file.state == ChangedFile::kShared ? file.writer + " has it open for writing or mapped, too"
                                            : "it is another file than at the checkpoint";
}

bool has_grown(const ChangedFile& file) {
  return file.state == ChangedFile::kGrown || file.state == ChangedFile::kShared ||
         file.state == ChangedFile::kReplaced;
}

// Emptied by the shell, for `restart >out`: what stands there now is the command's own.
bool is_own_output(const ChangedFile& file) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat st {};
    if (::fstat(stream, &st) == 0 && st.st_dev == file.device && st.st_ino == file.inode &&
        (::fcntl(stream, F_GETFL) & O_APPEND) == 0)
      return true;
  }
  return false;
}

// When the set was committed, in seconds since 1970; 0 if its manifest does not tell.
std::int64_t commit_time(const SetManifest& manifest) {
  tm broken{};
  const char* const end = ::strptime(manifest.created.c_str(), "%Y-%m-%dT%H:%M:%SZ", &broken);
  return end == nullptr || *end != '\0' ? 0 : std::int64_t{::timegm(&broken)};
}

}  // namespace

Status changed_files(const SetManifest& manifest, const std::set<std::uint32_t>& members,
                     std::vector<ChangedFile>* files) {
  OpenedSet set;
  Status status = open_members(manifest, members, &set);
  std::set<std::uint32_t> here;
  for (const MemberImage& m : set.members) here.insert(m.image.header.member);
  if (status.ok()) status = find_changed_files(set.tables, here, commit_time(manifest), files);
  close_members(&set);
  return status;
}

std::string describe_change(const ChangedFile& file) {
  switch (file.state) {
    case ChangedFile::kMissing:
      return file.path + " is missing: a restart is refused";
    case ChangedFile::kShorter:
      return lengths(file) + ": a restart is refused, unless its own standard output leads there";
    case ChangedFile::kGrown:
      return lengths(file) + ": restart --files roll-back cuts it, keep leaves it";
    default:
      return lengths(file) + ": it is left as it is, also by restart --files roll-back: " + exception(file);
  }
}

Status choose_files(const SetManifest& manifest, const std::set<std::uint32_t>& members, bool rolls_back,
                    const std::function<void(const std::string&)>& report, std::vector<ChangedFile>* cut) {
  std::vector<ChangedFile> files;
  SHADOWIB_TRY(changed_files(manifest, members, &files));
  std::erase_if(files, [](const ChangedFile& file) { return !has_grown(file) || is_own_output(file); });
  for (std::size_t i = 0; i < files.size(); ++i) {
    const ChangedFile& file = files[i];
    const bool cuts = rolls_back && file.state == ChangedFile::kGrown;
    if (cuts) cut->push_back(file);
    if (i == kMostFiles) report("files: " + std::to_string(files.size() - i) + " more; see shadowib verify");
    if (i >= kMostFiles) continue;
    report("files: " + lengths(file) +
           (cuts ? ": it is cut to that"
                 : ": it is left as it is" +
                       (rolls_back ? ": " + exception(file) : std::string("; --files roll-back would cut it"))));
  }
  return {};
}

}  // namespace shadowib::cli
