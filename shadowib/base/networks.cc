#include "shadowib/base/networks.h"

#include <arpa/inet.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

constexpr unsigned kIpv4Bits = 96;  // in front of an IPv4 address

bool parse_address(const std::string& text, IpAddress* address) {
  *address = {};
  if (::inet_pton(AF_INET6, text.c_str(), address->data()) == 1) return true;
  (*address)[10] = (*address)[11] = 0xff;
  return ::inet_pton(AF_INET, text.c_str(), address->data() + 12) == 1;
}

bool is_link_local(const IpAddress& a) {
  return is_ipv4(a) ? a[12] == 169 && a[13] == 254 : a[0] == 0xfe && (a[1] & 0xc0) == 0x80;
}

// Of the message's interface: its name, and whether it is up.
bool describe_interface(int fd, unsigned index, HostAddress* address) {
  ifreq request{};
  request.ifr_ifindex = static_cast<int>(index);
  if (::ioctl(fd, SIOCGIFNAME, &request) != 0) return false;
  static_assert(sizeof(address->interface) == sizeof(request.ifr_name));
  std::memcpy(address->interface, request.ifr_name, sizeof(address->interface));
  if (::ioctl(fd, SIOCGIFFLAGS, &request) != 0) return false;
  address->loopback = (request.ifr_flags & IFF_LOOPBACK) != 0;
  return (request.ifr_flags & IFF_UP) != 0;
}

void add_address(int fd, const nlmsghdr* message, std::vector<HostAddress>* found) {
  const auto* about = static_cast<const ifaddrmsg*>(NLMSG_DATA(message));
  const bool ipv4 = about->ifa_family == AF_INET;
  if (!ipv4 && about->ifa_family != AF_INET6) return;
  const void* given = nullptr;
  auto bytes = static_cast<int>(IFA_PAYLOAD(message));
  for (const rtattr* a = IFA_RTA(about); RTA_OK(a, bytes); a = RTA_NEXT(a, bytes)) {
    // Of a point-to-point link IFA_ADDRESS is the other end.
    if (a->rta_type == IFA_LOCAL || (a->rta_type == IFA_ADDRESS && given == nullptr)) given = RTA_DATA(a);
  }
  if (given == nullptr) return;
  HostAddress address{};
  address.bits = about->ifa_prefixlen + (ipv4 ? kIpv4Bits : 0);
  if (ipv4) address.address[10] = address.address[11] = 0xff;
  std::memcpy(address.address.data() + (ipv4 ? 12 : 0), given, ipv4 ? 4 : 16);
  if (!is_link_local(address.address) && describe_interface(fd, about->ifa_index, &address))
    found->push_back(address);
}

bool ask(int fd) {
  struct {
    nlmsghdr header;
    ifaddrmsg about;
  } request{};
  request.header.nlmsg_len = sizeof(request);
  request.header.nlmsg_type = RTM_GETADDR;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.about.ifa_family = AF_UNSPEC;
  return ::send(fd, &request, sizeof(request), 0) == static_cast<ssize_t>(sizeof(request));
}

}  // namespace

bool is_ipv4(const IpAddress& address) { return same_network(address, kLoopback4, kIpv4Bits); }

std::string text_of(const IpAddress& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (is_ipv4(address))
    ::inet_ntop(AF_INET, address.data() + 12, text, sizeof(text));
  else
    ::inet_ntop(AF_INET6, address.data(), text, sizeof(text));
  return text;
}

bool same_network(const IpAddress& a, const IpAddress& b, unsigned bits) {
  for (unsigned i = 0; i < bits; i += 8) {
    const unsigned left = bits - i;
    const unsigned mask = left >= 8 ? 0xffu : 0xffu << (8 - left);
    if (((a[i / 8] ^ b[i / 8]) & mask) != 0) return false;
  }
  return true;
}

std::vector<HostAddress> host_addresses() {
  std::vector<HostAddress> found;
  UnownedDescriptors unowned;
  const int fd = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd < 0) return found;
  alignas(nlmsghdr) char answer[16384];
  for (bool more = ask(fd); more;) {
    const ssize_t n = ::recv(fd, answer, sizeof(answer), 0);
    if (n <= 0) break;
    auto bytes = static_cast<unsigned>(n);
    for (auto* m = reinterpret_cast<nlmsghdr*>(answer); NLMSG_OK(m, bytes); m = NLMSG_NEXT(m, bytes)) {
      if (m->nlmsg_type == NLMSG_DONE || m->nlmsg_type == NLMSG_ERROR) more = false;
      if (m->nlmsg_type == RTM_NEWADDR) add_address(fd, m, &found);
    }
  }
  raw_close(fd);
  return found;
}

Status NetworkChoice::parse(const std::string& text, NetworkChoice* choice) {
  choice->words_.clear();
  if (text.empty() || text == "any") return {};
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t slash = word.find('/');
    Word made{};
    if (parse_address(word.substr(0, slash), &made.network)) {
      const unsigned in_front = is_ipv4(made.network) ? kIpv4Bits : 0;
      char* rest = nullptr;
      const char* digits = slash == std::string::npos ? nullptr : word.c_str() + slash + 1;
      const unsigned long bits = digits == nullptr ? 128 - in_front : std::strtoul(digits, &rest, 10);
      if (digits != nullptr && (*digits < '0' || *digits > '9' || *rest != '\0'))
        return Status::of(Code::kUsage, 0, "'%.80s' is no subnet: write ADDRESS/BITS", word.c_str());
      if (bits > 128 - in_front)
        return Status::of(Code::kUsage, 0, "'%.80s' is no subnet: at most %u bits", word.c_str(), 128 - in_front);
      made.bits = static_cast<unsigned>(bits) + in_front;
    } else if (slash == std::string::npos && !word.empty() && word.size() < sizeof(HostAddress::interface)) {
      made.interface = word;
    } else {
      return Status::of(Code::kUsage, 0, "'%.80s' is neither an interface nor a subnet", word.c_str());
    }
    choice->words_.push_back(made);
  }
  return {};
}

bool NetworkChoice::takes(const HostAddress& address) const {
  if (any()) return !address.loopback;
  for (const Word& word : words_)
    if (word.interface.empty() ? same_network(word.network, address.address, word.bits)
                               : word.interface == address.interface)
      return true;
  return false;
}

Status choose_addresses(const std::string& text, std::vector<HostAddress>* chosen) {
  NetworkChoice choice;
  SHADOWIB_TRY(NetworkChoice::parse(text, &choice));
  chosen->clear();
  std::string all;
  for (const HostAddress& address : host_addresses()) {
    if (choice.takes(address)) chosen->push_back(address);
    all += std::string(all.empty() ? "" : ", ") + address.interface + " " + text_of(address.address) + "/" +
           std::to_string(address.bits - (is_ipv4(address.address) ? kIpv4Bits : 0));
  }
  if (!chosen->empty() || choice.any()) return {};
  return Status::of(Code::kUsage, 0, "no address of this host is in %.80s; it has %.260s", text.c_str(),
                    all.empty() ? "none" : all.c_str());
}

}  // namespace shadowib
