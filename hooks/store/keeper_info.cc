#include "hooks/store/keeper_info.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "hooks/job/job_directory.h"
#include "hooks/store/files.h"
#include "shadowib/base/this_host.h"

namespace shadowib {
namespace fs = std::filesystem;
namespace {

constexpr char kLockEnd[] = ".lock";

std::string info_path(const std::string& directory, const std::string& job, const std::string& host) {
  return keepers_path(directory, job) + "/" + host;
}

// Of a keeper on this host the loopback interface leads to it in any case.
std::vector<PeerAddress> parse_addresses(const std::string& text) {
  std::vector<PeerAddress> addresses;
  std::istringstream words(text);
  for (std::string word; words >> word;)
    if (const std::size_t bar = word.find('|'); bar != std::string::npos)
      addresses.push_back({word.substr(0, bar), std::atoi(word.c_str() + bar + 1)});
  return addresses;
}

}  // namespace

Status publish_keeper(const std::string& directory, const std::string& job, const KeeperInfo& info) {
  std::string addresses;
  for (const PeerAddress& address : info.addresses)
    addresses += (addresses.empty() ? "" : " ") + address.host + "|" + std::to_string(address.port);
  const std::string path = info_path(directory, job, info.host), temporary = path + ".new-" + random_hex(4);
  SHADOWIB_TRY(write_new_file(temporary, encode_fields({{"name", info.name},
                                                        {"domain", info.domain},
                                                        {"pid", std::to_string(info.pid)},
                                                        {"addresses", addresses}})));
  const int error = system_files().rename(temporary, path);
  return error == 0 ? Status() : file_error(error, "write", path);
}

Status find_keeper(const std::string& directory, const std::string& job, const std::string& host, KeeperInfo* info) {
  std::string text;
  Fields fields;
  const auto none = [&host] {
    return Status::of(Code::kNotFound, ESRCH, "no keeper runs on host %.60s", host.c_str());
  };
  if (host.find('/') != std::string::npos) return none();  // a peer may have named it
  // An earlier keeper's words count for nothing: the lock first.
  if (!is_alive(keeper_lock_path(directory, job, host))) return none();
  if (!read_file(info_path(directory, job, host), &text).ok() || !decode_fields(text, &fields)) return none();
  *info = {.host = host,
           .name = field_text(fields, "name"),
           .domain = field_text(fields, "domain"),
           .pid = static_cast<int>(field_number(fields, "pid")),
           .addresses = parse_addresses(field_text(fields, "addresses"))};
  return {};
}

std::vector<KeeperInfo> live_keepers(const std::string& directory, const std::string& job) {
  std::vector<KeeperInfo> keepers;
  std::vector<std::string> names;
  if (system_files().list(keepers_path(directory, job), &names) != 0) return keepers;
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    KeeperInfo info;
    if (name.ends_with(kLockEnd) &&
        find_keeper(directory, job, name.substr(0, name.size() + 1 - sizeof(kLockEnd)), &info).ok())
      keepers.push_back(std::move(info));
  }
  return keepers;
}

Status read_job_key(const std::string& directory, const std::string& job, std::string* key) {
  return read_file(job_paths(directory, job).key, key);
}

}  // namespace shadowib
