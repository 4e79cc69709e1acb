// TCP connections whose ends are made by two parts of a restart, on different machines perhaps.
//
// The passive end's part listens, and tells in the meeting where, with a word that only who can read the meeting
// knows; the other connects and says it. Every part first offers, then connects, then accepts, so that no two wait
// for each other, whatever connections they have.
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "hooks/imager/descriptors/remake/restore.h"
#include "hooks/imager/descriptors/remake/tcp_socket.h"
#include "hooks/imager/descriptors/socket_options.h"
#include "hooks/job/protocol.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/lock.h"

namespace shadowib::descriptors {
namespace {

constexpr std::size_t kWordBytes = 32;  // hex digits
constexpr int kConnectMs = 5000, kAcceptMs = 60000;
constexpr char kWelcome = 'w';

std::string random_word() {
  unsigned char random[kWordBytes / 2];
  [[maybe_unused]] const ssize_t n = ::getrandom(random, sizeof(random), 0);
  std::string word;
  for (const unsigned char byte : random) {
    word += "0123456789abcdef"[byte >> 4];
    word += "0123456789abcdef"[byte & 15];
  }
  return word;
}

// Where this machine can be reached, its loopback address last: the other part may be on the same one.
std::string reachable_addresses() {
  std::string list, loopbacks;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return list;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    char text[INET6_ADDRSTRLEN] = {};
    if (i->ifa_addr->sa_family == AF_INET) {
      ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr, text, sizeof(text));
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      const auto& in6 = reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&in6)) continue;
      ::inet_ntop(AF_INET6, &in6, text, sizeof(text));
    } else {
      continue;
    }
    ((i->ifa_flags & IFF_LOOPBACK) != 0 ? loopbacks : list) += std::string(text) + " ";
  }
  ::freeifaddrs(all);
  return list + loopbacks;
}

std::string parse_address(const std::string& text, std::uint16_t port) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  if (::inet_pton(AF_INET, text.c_str(), &in.sin_addr) == 1)
    return with_port(std::string(reinterpret_cast<char*>(&in), sizeof(in)), port);
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  if (::inet_pton(AF_INET6, text.c_str(), &in6.sin6_addr) == 1)
    return with_port(std::string(reinterpret_cast<char*>(&in6), sizeof(in6)), port);
  return {};
}

bool wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    const int left_ms = deadline.left_ms();
    if (left_ms == 0) return false;
    pollfd p{fd, events, 0};
    const int rc = ::poll(&p, 1, left_ms);
    if (rc > 0) return true;
    if (rc < 0 && errno != EINTR) return false;
  }
}

bool read_exactly(int fd, char* to, std::size_t bytes, Deadline deadline) {
  while (bytes > 0) {
    if (!wait_for(fd, POLLIN, deadline)) return false;
    const ssize_t n = ::recv(fd, to, bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (n > 0) to += n, bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

bool connect_within(int fd, const std::string& address, int timeout_ms) {
  const int flags = ::fcntl(fd, F_GETFL);
  ::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  int error = call_with(::connect, fd, address) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    error = ETIMEDOUT;
    socklen_t length = sizeof(error);
    if (wait_for(fd, POLLOUT, Deadline::in_ms(timeout_ms))) ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  }
  ::fcntl(fd, F_SETFL, flags);
  errno = error;
  return error == 0;
}

class Apart {
 public:
  Apart(const Plan& plan, const std::function<void(const Object&, int)>& made) : plan_(plan), made_(made) {}
  ~Apart() {
    for (const Offer& offer : offers_)
      if (offer.listener >= 0) ::close(offer.listener);
  }
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;

  Status run() {
    if (plan_.apart.empty()) return {};
    if (plan_.meeting == nullptr)
      return Status(Code::kInternal, 0, "members are connected with others that are restarted elsewhere");
    for (const auto& [object, end] : plan_.apart)
      if (end.passive) SHADOWIB_TRY(offer(*object, end));
    for (const auto& [object, end] : plan_.apart)
      if (!end.passive) SHADOWIB_TRY(connect(*object, end));
    for (Offer& offer : offers_) SHADOWIB_TRY(accept(&offer));
    for (const auto& [object, end] : plan_.apart)
      if (!end.passive) SHADOWIB_TRY(await_welcome(*object));
    for (const auto& [object, end] : plan_.apart) {
      const int fd = ends_.at(object);
      SHADOWIB_TRY(fill_apart(fd, *object, *end.peer));
      if (object->shut_write) ::shutdown(fd, SHUT_WR);
      if (object->shut_read) ::shutdown(fd, SHUT_RD);
    }
    return {};
  }

 private:
  struct Offer {
    const Object* object;
    int listener;
    std::string word;
  };

  void keep(const Object& o, int fd) {
    ends_[&o] = fd;
    made_(o, fd);
  }

  // At its old port if that is to be had.
  Status offer(const Object& o, const ApartEnd& end) {
    sockaddr_in6 any6{};
    any6.sin6_family = AF_INET6;
    sockaddr_in any4{};
    any4.sin_family = AF_INET;
    const std::string any = o.domain == AF_INET6 ? std::string(reinterpret_cast<char*>(&any6), sizeof(any6))
                                                 : std::string(reinterpret_cast<char*>(&any4), sizeof(any4));
    Offer offer{&o, -1, random_word()};
    for (const std::uint16_t port : {port_of(o.local), std::uint16_t{0}}) {
      offer.listener = new_stream(o.domain);
      if (call_with(::bind, offer.listener, with_port(any, port)) == 0 && ::listen(offer.listener, 16) == 0) break;
      const int error = errno;
      ::close(offer.listener);
      offer.listener = -1;
      if (port == 0) return restore_failure(Code::kRefused, o, "no port can be bound for it", error);
    }
    offers_.push_back(offer);
    Fields fields;
    fields["port"] = std::to_string(port_of(own_address(offer.listener, ::getsockname)));
    fields["word"] = offer.word;
    fields["addresses"] = reachable_addresses();
    return plan_.meeting->publish(end.name, encode_fields(fields));
  }

  Status connect(const Object& o, const ApartEnd& end) {
    std::string told;
    SHADOWIB_TRY(plan_.meeting->await(end.name, &told));
    Fields fields;
    if (!decode_fields(told, &fields))
      return Status(Code::kVersion, 0, "another shadowib restarts the other members");
    const auto port = static_cast<std::uint16_t>(std::strtoul(fields["port"].c_str(), nullptr, 10));
    const std::string& addresses = fields["addresses"];
    int error = EADDRNOTAVAIL;
    for (std::size_t at = 0, space; (space = addresses.find(' ', at)) != std::string::npos; at = space + 1) {
      const std::string address = parse_address(addresses.substr(at, space - at), port);
      if (address.empty() || (o.domain == AF_INET && domain_of(address) != AF_INET)) continue;
      const int fd = new_stream(o.domain);
      apply_early_options(fd, o.options);
      const std::string& word = fields["word"];
      if (connect_within(fd, address_for(o.domain, address), kConnectMs) &&
          ::send(fd, word.data(), word.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(word.size())) {
        keep(o, fd);
        return {};
      }
      error = errno;
      ::close(fd);
    }
    return restore_failure(
        Code::kIo, o, ("its other end cannot be reached at any of " + addresses + "port " + fields["port"]).c_str(),
        error);
  }

  // Strangers that connect meanwhile are turned away, as if the port were closed.
  Status accept(Offer* offer) {
    const Deadline deadline = Deadline::in_ms(kAcceptMs);
    while (wait_for(offer->listener, POLLIN, deadline)) {
      const int fd = ::accept4(offer->listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      char word[kWordBytes];
      const Deadline patience = std::min(deadline, Deadline::in_ms(kConnectMs));
      if (read_exactly(fd, word, sizeof(word), patience) && std::string_view(word, sizeof(word)) == offer->word &&
          ::send(fd, &kWelcome, 1, MSG_NOSIGNAL) == 1) {
        keep(*offer->object, fd);
        ::close(offer->listener);
        offer->listener = -1;
        return {};
      }
      ::close(fd);
    }
    return restore_failure(Code::kTimeout, *offer->object, "its other end was not restarted", 0);
  }

  Status await_welcome(const Object& o) {
    char byte = 0;
    const Deadline deadline = Deadline::in_ms(kAcceptMs);
    if (read_exactly(ends_.at(&o), &byte, 1, deadline) && byte == kWelcome) return {};
    return restore_failure(Code::kTimeout, o, "its other end does not answer", 0);
  }

  const Plan& plan_;
  const std::function<void(const Object&, int)>& made_;
  std::vector<Offer> offers_;
  std::map<const Object*, int> ends_;
};

}  // namespace

Status connect_apart(const Plan& plan, const std::function<void(const Object&, int)>& made) {
  return Apart(plan, made).run();
}

}  // namespace shadowib::descriptors
