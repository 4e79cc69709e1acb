#include "hooks/launcher/connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/capture/launcher_process.h"
#include "hooks/raw/proc.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

template <typename Address>
std::string bytes_of(const Address& address) {
  return {reinterpret_cast<const char*>(&address), sizeof(address)};
}

std::vector<std::string> server_addresses() {
  constexpr char kVariable[] = "PMIX_SERVER_URI";
  std::vector<std::string> addresses;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    const char* const equals = std::strchr(*at, '=');
    if (equals == nullptr || std::strncmp(*at, kVariable, sizeof(kVariable) - 1) != 0) continue;
    const std::string address = address_in_uri(equals + 1);
    if (!address.empty()) addresses.push_back(address);
  }
  return addresses;
}

bool is_inheritable(const std::string& target) {
  return target.starts_with("pipe:") || target.starts_with("socket:");
}

// The pipes and sockets that a process has open, as links in /proc name them.
std::set<std::string> open_in(pid_t pid) {
  std::set<std::string> targets;
  const std::string directory = "/proc/" + std::to_string(pid) + "/fd";
  std::vector<int> fds;
  if (descriptors::list_numbers(directory.c_str(), &fds) != 0) return targets;
  for (int fd : fds) {
    const std::string target = descriptors::link_target((directory + "/" + std::to_string(fd)).c_str());
    if (is_inheritable(target)) targets.insert(target);
  }
  return targets;
}

bool is_listening(int fd) {
  int listens = 0;
  socklen_t length = sizeof(listens);
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0;
}

bool is_own(int fd) {
  struct stat st {};
  return ::fstat(fd, &st) != 0 || st.st_uid == ::geteuid();
}

void leave_out(int fd) {
  if (!leave_out_descriptor(fd))
    log_line(LogLevel::kWarn, "descriptor %d is one too many of the launcher's: checkpoints will be refused", fd);
}

}  // namespace

std::string address_in_uri(const std::string& uri) {
  const std::size_t scheme = uri.rfind("://"), colon = uri.rfind(':');
  if (scheme == std::string::npos || colon == scheme) return {};
  std::string host = uri.substr(scheme + 3, colon - scheme - 3);
  const auto port = htons(static_cast<std::uint16_t>(std::strtoul(uri.c_str() + colon + 1, nullptr, 10)));
  sockaddr_in in{.sin_family = AF_INET, .sin_port = port};
  if (::inet_pton(AF_INET, host.c_str(), &in.sin_addr) == 1) return bytes_of(in);
  std::erase_if(host, [](char c) { return c == '[' || c == ']'; });
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = port;
  return ::inet_pton(AF_INET6, host.c_str(), &in6.sin6_addr) == 1 ? bytes_of(in6) : std::string();
}

void note_launcher_connection() {
  const std::vector<std::string> servers = server_addresses();
  std::vector<int> fds;
  if (servers.empty() || !descriptors::list_descriptors(&fds).ok()) return;
  for (int fd : fds) {
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    const std::string address(reinterpret_cast<const char*>(&peer), length);
    if (std::find(servers.begin(), servers.end(), address) == servers.end()) continue;
    if (!note_launcher_descriptor(fd))
      log_line(LogLevel::kWarn, "descriptor %d is one connection to a launcher too many: checkpoints will be refused",
               fd);
  }
}

void leave_out_inherited(int launcher) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  std::vector<int> fds;
  if (::getsockopt(launcher, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 || credentials.pid <= 0 ||
      credentials.pid == ::getpid() || !descriptors::list_descriptors(&fds).ok())
    return;
  std::set<std::string> theirs = open_in(credentials.pid);
  for (int stream : {0, 1, 2}) theirs.erase(descriptors::descriptor_target(stream));  // copies are the program's
  for (int fd : fds)
    if (fd > 2 && fd != launcher && theirs.contains(descriptors::descriptor_target(fd))) leave_out(fd);
}

void leave_out_listeners(const std::string& launch) {
  std::vector<int> fds;
  if (!descriptors::list_descriptors(&fds).ok()) return;
  std::erase_if(fds, [](int fd) { return fd <= 2 || !is_listening(fd); });
  if (fds.empty()) return;
  const std::set<std::string> theirs = open_in(descriptors::launcher_process(launch));
  for (int fd : fds)
    if (!is_own(fd) || theirs.contains(descriptors::descriptor_target(fd))) leave_out(fd);
}

}  // namespace shadowib
