#include "hooks/launcher/connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/proc.h"
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

}  // namespace shadowib
