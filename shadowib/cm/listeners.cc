#include "shadowib/cm/listeners.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "hooks/agent/agent.h"
#include "hooks/job/protocol.h"
#include "shadowib/base/log.h"
#include "shadowib/base/this_host.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib::cm {
namespace {

const sockaddr_in& v4(const sockaddr_in6& address) { return reinterpret_cast<const sockaddr_in&>(address); }
bool is_v4(const sockaddr_in6& address) { return address.sin6_family == AF_INET; }
socklen_t length_of(const sockaddr_in6& address) { return is_v4(address) ? sizeof(sockaddr_in) : sizeof(address); }

bool only_here(const sockaddr_in6& address) {
  if (is_v4(address)) return ntohl(v4(address).sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&address.sin6_addr) || IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr);
}

std::string text_of(const sockaddr_in6& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (is_v4(address)) {
    ::inet_ntop(AF_INET, &v4(address).sin_addr, text, sizeof(text));
    return text;
  }
  std::string hex;  // a colon is not for keys
  for (unsigned char byte : address.sin6_addr.s6_addr) {
    std::snprintf(text, sizeof(text), "%02x", byte);
    hex += text;
  }
  return hex;
}

// Small files of /proc, without the program's heap.
std::size_t read_file(const char* path, char* text, std::size_t capacity) {
  UnownedDescriptors unowned;
  int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  std::size_t size = 0;
  for (ssize_t n; size < capacity - 1 && (n = ::read(fd, text + size, capacity - 1 - size)) > 0;)
    size += static_cast<std::size_t>(n);
  ::close(fd);
  text[size] = '\0';
  return size;
}

std::string key_of(const std::string& rest) { return std::string(job_info().epoch) + "/cm/" + rest; }

std::string listen_key(std::uint16_t port_space, std::uint16_t port, const std::string& place) {
  return key_of("listen/" + std::to_string(port_space) + "/" + std::to_string(port) + "/" + place);
}

std::string place_of(const sockaddr_in6& bound, const std::string& host) {
  if (is_wildcard(bound)) return "any-" + host;
  return only_here(bound) ? text_of(bound) + "-" + host : text_of(bound);
}

std::string port_key(std::uint16_t port_space, std::uint16_t port) {
  return key_of("port/" + std::to_string(port_space) + "/" + this_host() + "/" + std::to_string(port));
}

// This host's IP addresses; getifaddrs would take the program's heap.
std::vector<sockaddr_in6> addresses_of_this_host() {
  std::vector<sockaddr_in6> all;
  ifreq requests[64];
  ifconf config{};
  config.ifc_len = sizeof(requests);
  config.ifc_req = requests;
  UnownedDescriptors unowned;
  int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && ::ioctl(fd, SIOCGIFCONF, &config) == 0)
    for (std::size_t i = 0; i < static_cast<std::size_t>(config.ifc_len) / sizeof(ifreq); ++i) {
      sockaddr_in6 address{};
      std::memcpy(&address, &requests[i].ifr_addr, sizeof(sockaddr_in));
      all.push_back(address);
    }
  if (fd >= 0) ::close(fd);
  char text[16384];
  read_file("/proc/net/if_inet6", text, sizeof(text));  // lines: 32 hex digits, a blank, ...
  for (const char* line = text; std::strlen(line) > 32; line = std::strchr(line, '\n') + 1) {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    for (int i = 0; i < 16; ++i) {
      const char digits[] = {line[2 * i], line[2 * i + 1], '\0'};
      address.sin6_addr.s6_addr[i] = static_cast<std::uint8_t>(std::strtoul(digits, nullptr, 16));
    }
    all.push_back(address);
    if (std::strchr(line, '\n') == nullptr) break;
  }
  return all;
}

// Whose they are, for those who reach a listener on all of them from elsewhere.
Status publish_host() {
  const std::string host = this_host();
  for (const sockaddr_in6& address : addresses_of_this_host())
    if (!only_here(address)) SHADOWIB_TRY(job_exchange()->publish(key_of("host/" + text_of(address)), host));
  return {};
}

bool get(const std::string& key, std::string* value) {
  bool found = false;
  return job_exchange()->get(key, value, &found).ok() && found;
}

}  // namespace

std::uint16_t port_of(const sockaddr_in6& address) { return ntohs(address.sin6_port); }
void set_port(sockaddr_in6* address, std::uint16_t port) { address->sin6_port = htons(port); }
static_assert(offsetof(sockaddr_in6, sin6_port) == offsetof(sockaddr_in, sin_port));

bool is_wildcard(const sockaddr_in6& address) {
  return is_v4(address) ? v4(address).sin_addr.s_addr == 0 : IN6_IS_ADDR_UNSPECIFIED(&address.sin6_addr);
}

bool is_multicast(const sockaddr_in6& address) {
  return is_v4(address) ? IN_MULTICAST(ntohl(v4(address).sin_addr.s_addr))
                        : IN6_IS_ADDR_MULTICAST(&address.sin6_addr);
}

bool same_ip(const sockaddr_in6& a, const sockaddr_in6& b) {
  if (a.sin6_family != b.sin6_family) return false;
  return is_v4(a) ? v4(a).sin_addr.s_addr == v4(b).sin_addr.s_addr
                  : std::memcmp(&a.sin6_addr, &b.sin6_addr, sizeof(a.sin6_addr)) == 0;
}

sockaddr_in6 wildcard_like(const sockaddr_in6& address) {
  sockaddr_in6 any{};
  any.sin6_family = address.sin6_family;
  return any;
}

bool is_local(const sockaddr_in6& address) {
  UnownedDescriptors unowned;
  int fd = ::socket(address.sin6_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_in6 any_port = address;
  set_port(&any_port, 0);
  const bool bound = ::bind(fd, reinterpret_cast<sockaddr*>(&any_port), length_of(any_port)) == 0;
  ::close(fd);
  return bound;
}

int route_to(const sockaddr_in6& destination, sockaddr_in6* source) {
  UnownedDescriptors unowned;
  int fd = ::socket(destination.sin6_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  sockaddr_in6 to = destination;
  set_port(&to, 9);  // no datagram is sent
  *source = {};
  socklen_t bytes = sizeof(*source);
  int error = 0;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&to), length_of(to)) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(source), &bytes) != 0)
    error = errno;
  ::close(fd);
  set_port(source, 0);
  return error;
}

int claim_port(std::uint16_t port_space, std::uint16_t port) {
  const std::string key = port_key(port_space, port), mine = std::to_string(job_info().member);
  for (;;) {
    Status status = job_exchange()->claim(key, mine);
    if (status.ok()) return 0;
    std::string holder;
    if (status.code() != Code::kBusy) return EIO;
    if (!get(key, &holder)) continue;  // given back just now
    const JobInfo& job = job_info();
    const std::string lock = lock_name(static_cast<std::uint32_t>(std::strtoul(holder.c_str(), nullptr, 10)));
    if (holder == mine || is_alive(alive_path(job.directory, job.job, job.epoch, lock))) return EADDRINUSE;
    release_port(port_space, port);
  }
}

int claim_port_again(std::uint16_t port_space, std::uint16_t port) {
  const int rc = claim_port(port_space, port);
  std::string holder;
  const bool is_mine =
      rc == EADDRINUSE && get(port_key(port_space, port), &holder) && holder == std::to_string(job_info().member);
  return is_mine ? 0 : rc;
}

void release_port(std::uint16_t port_space, std::uint16_t port) {
  const std::string key = port_key(port_space, port);
  (void)job_exchange()->remove(key).ok();
}

Status publish_listener(std::uint16_t port_space, const sockaddr_in6& bound, const Address& address) {
  if (is_wildcard(bound)) SHADOWIB_TRY(publish_host());
  const std::string key = listen_key(port_space, port_of(bound), place_of(bound, this_host()));
  return job_exchange()->publish(key, {reinterpret_cast<const char*>(&address), sizeof(address)});
}

void remove_listener(std::uint16_t port_space, const sockaddr_in6& bound) {
  const std::string key = listen_key(port_space, port_of(bound), place_of(bound, this_host()));
  (void)job_exchange()->remove(key).ok();
}

bool find_listener(std::uint16_t port_space, const sockaddr_in6& destination, Address* address) {
  const std::string here = this_host();
  std::string host = here;
  if (!is_local(destination) && !get(key_of("host/" + text_of(destination)), &host)) host.clear();
  std::vector<std::string> keys = {listen_key(port_space, port_of(destination), place_of(destination, here))};
  if (!host.empty()) keys.push_back(listen_key(port_space, port_of(destination), "any-" + host));
  std::vector<std::string> values;
  std::vector<bool> found;
  if (!job_exchange()->lookup(keys, &values, &found).ok()) return false;
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (found[i] && values[i].size() == sizeof(*address)) {
      std::memcpy(address, values[i].data(), sizeof(*address));
      return true;
    }
  return false;
}

}  // namespace shadowib::cm
