// What a directory for jobs and sets is good for: writing, syncing, locking, room.
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "hooks/job/job_directory.h"
#include "hooks/job/protocol.h"
#include "hooks/store/files.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/cli/exchange_place.h"
#include "shadowib/cli/machine.h"
#include "shadowib/cli/output.h"
#include "shadowib/exchange/exchange.h"
#include "shadowib/exchange/remove_below.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr unsigned long long kLittleRoom = 1ull << 30;

struct FileSystem {
  unsigned long type;
  const char* name;
  bool network;
};
constexpr FileSystem kFileSystems[] = {
    {EXT4_SUPER_MAGIC, "ext4", false}, {XFS_SUPER_MAGIC, "xfs", false},  {BTRFS_SUPER_MAGIC, "btrfs", false},
    {TMPFS_MAGIC, "tmpfs", false},     {RAMFS_MAGIC, "ramfs", false},    {OVERLAYFS_SUPER_MAGIC, "overlayfs", false},
    {F2FS_SUPER_MAGIC, "f2fs", false}, {0x2FC12FC1, "zfs", false},       {NFS_SUPER_MAGIC, "nfs", true},
    {SMB_SUPER_MAGIC, "smb", true},    {CIFS_SUPER_MAGIC, "cifs", true}, {SMB2_SUPER_MAGIC, "smb2", true},
    {CEPH_SUPER_MAGIC, "ceph", true},  {AFS_SUPER_MAGIC, "afs", true},   {V9FS_MAGIC, "9p", true},
    {FUSE_SUPER_MAGIC, "fuse", true},  {0x0BD00BD0, "lustre", true},     {0x47504653, "gpfs", true},
    {0x19830326, "beegfs", true},
};

const FileSystem* find_file_system(unsigned long type) {
  for (const FileSystem& f : kFileSystems)
    if (f.type == type) return &f;
  return nullptr;
}

// Who holds a member's lock is seen through another open file, as hooks/job/protocol.cc looks at it.
Finding try_lock(const std::string& path) {
  const std::string remedy = "put it on another file system; nfs needs its lock service (no mount option nolock)";
  const int fd = hold_alive_lock(path);
  if (fd < 0) return {"locks", Verdict::kMissing, std::string("fcntl(F_OFD_SETLK): ") + std::strerror(errno), remedy};
  const bool seen = is_alive(path);
  const int second = hold_alive_lock(path);
  const bool again = second >= 0;
  close_owned_descriptor(second);
  close_owned_descriptor(fd);
  const bool gone = !is_alive(path);
  ::unlink(path.c_str());
  if (seen && !again && gone) return {"locks", Verdict::kOk, "open-file-description locks work there", ""};
  return {"locks", Verdict::kMissing,
          again || !seen ? "a lock does not keep others out" : "a lock stays when its file is closed", remedy};
}

// Publishes a key, finds it again and passes a barrier; takes its keys away.
Status use_exchange(const std::string& uri) {
  std::unique_ptr<Exchange> exchange;
  SHADOWIB_TRY(Exchange::open(uri, true, &exchange));
  const std::string place = "doctor/" + random_hex(8), key = place + "/key";
  std::string value;
  bool there = false;
  Status status = exchange->publish(key, "probe");
  if (status.ok()) status = exchange->get(key, &value, &there);
  if (status.ok()) status = exchange->barrier(place + "/barrier", "doctor", 1, 1000, "");
  exchange.reset();
  (void)remove_below(uri, place).ok();
  if (status.ok() && (!there || value != "probe"))
    status = Status(Code::kIo, 0, "a published value was not found again");
  return status;
}

Finding try_exchange(const std::string& directory, const std::string& given) {
  const std::string own = directory + "/.doctor-" + random_hex(4) + "-x";
  std::string uri = given.empty() ? "dir:" + own : given;
  Status status = settle_exchange("", &uri);
  if (status.ok()) status = use_exchange(uri);
  std::error_code error;
  fs::remove_all(own, error);
  if (!status.ok()) return {"exchange", Verdict::kMissing, status.text(), "name another with --exchange"};
  const std::string text = Exchange::shown(given) + " can be reached and used";
  if (open_to_everybody(uri))
    return {"exchange", Verdict::kNote, text, "it asks for no password: give it one, or a network of its own"};
  return {"exchange", Verdict::kOk, given.empty() ? "dir: works there" : text, ""};
}

}  // namespace

std::string file_system_name(unsigned long type) {
  const FileSystem* known = find_file_system(type);
  if (known != nullptr) return known->name;
  char text[40];
  std::snprintf(text, sizeof(text), "file system 0x%lx", type);
  return text;
}

bool is_network_file_system(unsigned long type) {
  const FileSystem* known = find_file_system(type);
  return known != nullptr && known->network;
}

Finding judge_directory(const std::string& directory, unsigned long file_system, unsigned long long free_bytes) {
  const std::string text =
      directory + ", " + file_system_name(file_system) + ", " + human_bytes(free_bytes) + " free";
  if (free_bytes < kLittleRoom)
    return {"checkpoint directory", Verdict::kNote, text,
            "an image is as large as the memory a program uses: free space there, shadowib gc, or another --dir"};
  if (file_system == TMPFS_MAGIC || file_system == RAMFS_MAGIC)
    return {"checkpoint directory", Verdict::kNote, text, "sets there are in memory and do not outlast a reboot"};
  if (is_network_file_system(file_system))
    return {"checkpoint directory", Verdict::kNote, text,
            "the exchange looks again at a bounded rate there, as changes of other hosts are not notified; for one "
            "host a local directory is faster"};
  return {"checkpoint directory", Verdict::kOk, text, ""};
}

Findings examine_storage(const std::string& directory, const std::string& exchange) {
  std::error_code error;
  // Parents that are made for this are taken away again.
  std::vector<fs::path> made;
  for (fs::path at = directory; at.has_relative_path() && !fs::exists(at, error); at = at.parent_path())
    made.push_back(at);
  const std::string probe = directory + "/.doctor-" + random_hex(4);
  Findings findings;
  Status status = ensure_directory(directory);
  if (status.ok()) status = write_new_file(probe, "probe");
  if (status.ok()) status = sync_path(directory);
  if (status.ok()) {
    struct statfs info {};
    ::statfs(directory.c_str(), &info);
    findings.push_back(judge_directory(directory, static_cast<unsigned long>(info.f_type),
                                       std::uint64_t{info.f_bavail} * static_cast<std::uint64_t>(info.f_bsize)));
    if (Finding& found = findings.back(); !made.empty()) {
      found.detail += "; it does not exist yet";
      if (found.verdict == Verdict::kOk)
        found.verdict = Verdict::kNote, found.remedy = "the first job makes it; is the name right?";
    }
    findings.push_back(try_lock(probe));
  } else {
    findings.push_back({"checkpoint directory", Verdict::kMissing, status.text(),
                        "name a directory you may write to with --dir or SHADOWIB_DIR"});
  }
  ::unlink(probe.c_str());
  findings.push_back(try_exchange(directory, exchange));
  for (const fs::path& at : made) ::rmdir(at.c_str());
  return findings;
}

}  // namespace shadowib::cli
