// What this host offers to images of a near store: a place of the right kind, room, and memory that stays.
#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "hooks/job/near_directory.h"
#include "hooks/job/protocol.h"
#include "hooks/raw/room.h"
#include "hooks/store/files.h"
#include "hooks/store/near_place.h"
#include "shadowib/cli/machine.h"
#include "shadowib/cli/units.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kLittleNearRoom = 1ull << 30;
constexpr unsigned kMostSystemUid = 999;  // as systemd is built

// check_near_place(), and a file that is written there. Leaves nothing behind.
Status try_place(const StoreSpec& spec, const std::string& place) {
  std::error_code error;
  const std::string root = near_root(place), probe = root + "/.doctor-" + random_hex(4);
  const bool was_there = fs::exists(fs::symlink_status(root, error));
  Status status = check_near_place(spec, place);
  if (status.ok()) status = write_new_file(probe, "probe");
  ::unlink(probe.c_str());
  if (!was_there) ::rmdir(root.c_str());  // unless a job has come meanwhile
  return status;
}

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r"), last = text.find_last_not_of(" \t\r");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

// 1, 0, or -1 if it is none. Source: systemd.syntax(7).
int parse_bool(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* word : {"1", "yes", "y", "true", "t", "on"})
    if (text == word) return 1;
  for (const char* word : {"0", "no", "n", "false", "f", "off"})
    if (text == word) return 0;
  return -1;
}

struct Setting {
  bool value = true;  // as systemd is built; logind.conf(5)
  std::string file;   // that says so; "": none does
};

void read_logind(const std::string& path, Setting* setting) {
  std::ifstream file(path);
  std::string section;
  for (std::string line; std::getline(file, line);) {
    line = trimmed(line);
    const std::size_t equals = line.find('=');
    if (line.starts_with('[')) section = line;
    if (section != "[Login]" || equals == std::string::npos || trimmed(line.substr(0, equals)) != "RemoveIPC")
      continue;
    if (const int value = parse_bool(trimmed(line.substr(equals + 1))); value >= 0) *setting = {value == 1, path};
  }
}

// The first logind.conf, then drop-ins by name. Of files of one name the first counts; a link to /dev/null hides it.
Setting remove_ipc(const std::string& root) {
  const std::string directories[] = {root + "/etc/systemd", root + "/run/systemd", root + "/usr/local/lib/systemd",
                                     root + "/usr/lib/systemd"};
  Setting setting;
  std::error_code error;
  std::map<std::string, std::string> drop_ins;  // paths by name
  const auto* main = std::find_if(std::begin(directories), std::end(directories), [&](const std::string& directory) {
    return fs::exists(directory + "/logind.conf", error);
  });
  if (main != std::end(directories)) read_logind(*main + "/logind.conf", &setting);
  for (const std::string& directory : directories)
    for (fs::directory_iterator file(directory + "/logind.conf.d", error), end; !error && file != end;
         file.increment(error))
      if (file->path().extension() == ".conf") drop_ins.emplace(file->path().filename(), file->path());
  for (const auto& [name, path] : drop_ins) read_logind(path, &setting);
  return setting;
}

}  // namespace

Finding examine_near_place(const StoreSpec& spec, const std::string& place, bool automatic) {
  const std::string what = !automatic ? "place" : spec.tier == Tier::kMem ? "place in memory" : "place on disk";
  if (const Status status = try_place(spec, place); !status.ok()) {
    const bool left_out = automatic && status.code() != Code::kPermission;
    return {what, left_out ? Verdict::kNote : Verdict::kRefused,
            left_out ? status.text() + std::string("; auto does without it") : status.text(),
            "name a directory of that kind with --near, the same on each host, or choose another store"};
  }
  struct statfs info {};
  ::statfs(place.c_str(), &info);
  const std::uint64_t free = free_space(place.c_str());
  const std::string text =
      place + ", " + file_system_name(static_cast<unsigned long>(info.f_type)) + ", " + human_bytes(free) + " free";
  if (free < kLittleNearRoom)
    return {what, Verdict::kNote, text,
            "two sets must fit beside each other: free space there, or name another place with --near"};
  if (spec.tier == Tier::kDisk && is_network_file_system(static_cast<unsigned long>(info.f_type)))
    return {what, Verdict::kNote, text,
            "a disk store is for disks of each host: on a network file system central is as good"};
  return {what, Verdict::kOk, text, ""};
}

Finding judge_near_memory(const HostMemory& memory) {
  const bool limited = memory.limit < memory.total;
  const std::string text = human_bytes(memory.free) + " free of " + human_bytes(memory.total) +
                           (limited ? ", and the memory cgroup of this session allows " + human_bytes(memory.limit)
                                    : ", no limit of a memory cgroup");
  if (limited)
    return {"memory", Verdict::kNote, text,
            "images in memory count against the limit as the program does, and two sets must fit: raise it "
            "(MemoryMax= of systemd, the batch system's option), or use a disk store"};
  if (memory.free < kLittleNearRoom)
    return {"memory", Verdict::kNote, text, "two sets must fit beside the program: free memory, or use a disk store"};
  return {"memory", Verdict::kOk, text, ""};
}

Findings examine_remove_ipc(const std::string& root, const std::string& place, unsigned uid,
                            const std::string& user) {
  std::error_code error;
  const char* what = "RemoveIPC";
  const bool in_shm = place == "/dev/shm" || place.starts_with("/dev/shm/");
  const bool logind =
      fs::is_directory(root + "/run/systemd/system", error) && fs::is_directory(root + "/run/systemd/users", error);
  if (!in_shm || !logind || uid <= kMostSystemUid) return {};
  const Setting setting = remove_ipc(root);
  const std::string by = setting.file.empty() ? "by default" : "by " + setting.file;
  if (!setting.value) return {{what, Verdict::kOk, "no, " + by + ": images outlast the user's sessions", ""}};
  if (fs::exists(root + "/var/lib/systemd/linger/" + user, error))
    return {{what, Verdict::kOk, "yes, " + by + ", but this user lingers: images outlast the sessions", ""}};
  return {{what, Verdict::kNote,
           "yes, " + by + ": systemd-logind empties /dev/shm when the last session of this user ends",
           "loginctl enable-linger, RemoveIPC=no in logind.conf(5), or another tmpfs with --near"}};
}

Findings judge_hosts_for(const StoreSpec& spec) {
  if (!spec.is_redundant()) return {};
  const int hosts = spec.has_copies() ? 2 : spec.parities + 1;
  return {{"hosts", Verdict::kNote,
           spec.text() + " needs members on " + std::to_string(hosts) +
               " hosts of different failure domains; doctor sees this host only",
           "run it on each host; SHADOWIB_DOMAIN names the domain of one, such as its rack"}};
}

}  // namespace shadowib::cli
