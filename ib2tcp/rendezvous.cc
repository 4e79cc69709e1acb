#include "ib2tcp/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "ib2tcp/border.h"
#include "ib2tcp/device.h"
#include "ib2tcp/handshake.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/socket_address.h"

namespace shadowib::ib2tcp {
namespace {

constexpr std::uint16_t kLastLid =
    0xBFFE;  // 0xBFFF stands for nobody (shadowib/cr/peers.h); above are multicast LIDs
constexpr int kBacklog = 256;
constexpr std::size_t kKeyBytes = 4096;  // of memory for the key

bool parse_choice(const char* text, TransportChoice* choice) {
  if (text == nullptr || *text == '\0' || std::strcmp(text, "auto") == 0) {
    *choice = TransportChoice::kAuto;
  } else if (std::strcmp(text, "shm") == 0) {
    *choice = TransportChoice::kShm;
  } else if (std::strcmp(text, "tcp") == 0) {
    *choice = TransportChoice::kTcp;
  } else if (ofi_provider(text) != nullptr) {
    *choice = TransportChoice::kOfi;
  } else {
    log_message(LogLevel::kError,
                "SHADOWIB_IB2TCP_TRANSPORT=%s: no such transport; use auto, shm, tcp or ofi:PROVIDER", text);
    return false;
  }
  return true;
}

void read_boot_id(std::uint8_t id[16]) {
  char text[64] = {};
  UnownedDescriptors unowned;
  int fd = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ssize_t n = ::read(fd, text, sizeof(text) - 1);
  ::close(fd);
  int digits = 0;
  for (ssize_t i = 0; i < n && digits < 32; ++i) {
    char c = text[i];
    int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (value < 0) continue;
    id[digits / 2] = static_cast<std::uint8_t>(id[digits / 2] << 4 | value);
    ++digits;
  }
}

// Of two processes that had one address, one after the other.
bool is_successor(const Endpoint& gone, const Endpoint& other) {
  return other.lid == gone.lid && other.cluster == gone.cluster && other.incarnation > gone.incarnation;
}

void endpoint_key(char (&key)[32], std::uint16_t lid) { std::snprintf(key, sizeof(key), "ib2tcp/ep/%u", lid); }

}  // namespace

Rendezvous::Rendezvous() = default;

int Rendezvous::start(std::vector<std::unique_ptr<Device>>& devices) {
  if (!parse_choice(g_host->config("SHADOWIB_IB2TCP_TRANSPORT"), &choice_)) return EINVAL;
  key_ = static_cast<std::uint8_t*>(g_host->map(kKeyBytes));
  if (key_ == nullptr) return ENOMEM;
  if (int rc = g_host->job_key(key_); rc != 0) {
    log_message(LogLevel::kError, "the job's key is not to be had (errno %d); is this process a member of a job?",
                rc);
    return rc;
  }
  self_.magic = kEndpointMagic;
  self_.version = kEndpointVersion;
  random_bytes(self_.uuid, sizeof(self_.uuid));
  if (const Border* border = g_engine->border.get(); border != nullptr) {
    self_.cluster = static_cast<std::uint16_t>(border->index() + 1);
    self_.incarnation = border->incarnation_of(border->index());
  }
  read_boot_id(self_.boot_id);
  struct stat st {};
  if (::stat("/proc/self/ns/net", &st) == 0) self_.net_namespace = st.st_ino;
  if (choice_ == TransportChoice::kAuto || choice_ == TransportChoice::kShm)
    if (int rc = listen_unix(); rc != 0) return rc;
  if (choice_ != TransportChoice::kShm)
    if (int rc = listen_tcp(); rc != 0) return rc;
  if (choice_ == TransportChoice::kOfi)
    if (int rc = open_fabric(); rc != 0) return rc;
  return publish(devices);
}

Rendezvous::~Rendezvous() {
  g_engine->poller = nullptr;
  if (const int fd = unix_watch_.fd; fd >= 0) {
    g_engine->unwatch(unix_watch_);
    g_host->close_descriptor(fd);
  }
  stop_listening();
  if (key_ != nullptr) g_host->unmap(key_, kKeyBytes);
}

int Rendezvous::listen_unix() {
  UnownedDescriptors unowned;
  int low = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  int fd = low < 0 ? -1 : unowned.own(low);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socklen_t length = sizeof(sa_family_t);  // autobind: the kernel picks a free abstract name
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(fd, kBacklog) != 0) {
    log_message(LogLevel::kError, "cannot listen on a Unix socket: %s", strerrordesc_np(errno));
    if (fd >= 0) g_host->close_descriptor(fd);
    if (fd < 0 && low >= 0) ::close(low);
    return EIO;
  }
  length = sizeof(address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  std::size_t bytes = length - offsetof(sockaddr_un, sun_path) - 1;
  SHADOWIB_CHECK(bytes > 0 && bytes <= sizeof(self_.unix_name), "autobind made a name of %zu bytes", bytes);
  self_.unix_name_bytes = static_cast<std::uint8_t>(bytes);
  std::memcpy(self_.unix_name, address.sun_path + 1, bytes);
  unix_watch_ = {[](void* self, std::uint32_t) {
                   auto* rendezvous = static_cast<Rendezvous*>(self);
                   rendezvous->accept_all(rendezvous->unix_watch_, StreamKind::kShm);
                 },
                 this};
  g_engine->watch(unix_watch_, fd, EPOLLIN, true);
  return 0;
}

int Rendezvous::choose_network() {
  const char* given = g_host->config("SHADOWIB_IB2TCP_NETWORK");
  network_ = given != nullptr ? given : "";
  restricted_ = !network_.empty() && network_ != "any";
  UnownedDescriptors unowned;
  if (Status s = choose_addresses(network_, &chosen_); !s.ok()) {
    log_message(LogLevel::kError,
                "SHADOWIB_IB2TCP_NETWORK: %s; name one of these, or any; after a restart: shadowib restart --network",
                s.text());
    return EINVAL;
  }
  on_host_ = host_addresses();
  if (chosen_.size() > kMaxAddresses) chosen_.resize(kMaxAddresses);
  for (const HostAddress& a : chosen_) self_.address[self_.addresses++] = a.address;
  return 0;
}

bool Rendezvous::listen_on(const IpAddress& address, int index) {
  UnownedDescriptors unowned;
  const int low = ::socket(is_ipv4(address) ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int fd = low < 0 ? -1 : unowned.own(low);
  if (fd < 0) {
    if (low >= 0) ::close(low);
    return false;
  }
  // An address that has just been given may not be usable yet.
  const int on = 1, off = 0;
  ::setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &on, sizeof(on));
  const bool everywhere = address == IpAddress{};
  if (!is_ipv4(address)) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, everywhere ? &off : &on, sizeof(on));
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  if (!bind_to(fd, address, self_.tcp_port) || ::listen(fd, kBacklog) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    const int error = errno;
    g_host->close_descriptor(fd);
    errno = error;
    return false;
  }
  // The port lies at the same place in both families.
  self_.tcp_port = ntohs(reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  Listener& listener = listeners_[index];
  listener.rendezvous = this;
  listener.watch = {[](void* owner, std::uint32_t) {
                      auto* ready = static_cast<Listener*>(owner);
                      Rendezvous* rendezvous = ready->rendezvous;
                      rendezvous->accept_all(ready->watch, rendezvous->choice_ == TransportChoice::kOfi
                                                               ? StreamKind::kOfi
                                                               : StreamKind::kTcp);
                    },
                    &listener};
  g_engine->watch(listener.watch, fd, EPOLLIN, true);
  return true;
}

void Rendezvous::stop_listening() {
  for (Listener& listener : listeners_) {
    const int fd = listener.watch.fd;
    if (fd < 0) continue;
    g_engine->unwatch(listener.watch);
    g_host->close_descriptor(fd);
  }
  self_.tcp_port = 0;
}

// Everywhere, or on the chosen addresses, all by one port.
int Rendezvous::listen_tcp() {
  constexpr int kTries = 32;  // the port that one address has given may be taken at another
  constexpr IpAddress kAnywhere4{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0};
  if (int rc = choose_network(); rc != 0) return rc;
  if (!restricted_) {
    self_.on_all = 1;
    if (listen_on(IpAddress{}, 0) || listen_on(kAnywhere4, 0)) return 0;
  }
  for (int tries = 0; restricted_ && tries < kTries; ++tries) {
    std::size_t n = 0;
    while (n < chosen_.size() && listen_on(chosen_[n].address, static_cast<int>(n))) ++n;
    if (n == chosen_.size()) return 0;
    const int error = errno;
    stop_listening();
    errno = error;
    if (error != EADDRINUSE) break;
  }
  log_message(LogLevel::kError, "cannot listen on a TCP socket: %s", strerrordesc_np(errno));
  return EIO;
}

int Rendezvous::open_fabric() {
  fabric_ = open_ofi_fabric(engine_driver());
  if (fabric_ == nullptr) return errno;
  if (g_engine->border != nullptr && !fabric_->has_connections()) {
    log_message(LogLevel::kError,
                "provider %s of libfabric has no connections: a message that waits for a CLC would keep all others "
                "from coming in; use SHADOWIB_IB2TCP_TRANSPORT=tcp, or ofi: with another provider, for members of a "
                "cluster",
                fabric_->provider());
    return EINVAL;
  }
  g_engine->poller = fabric_.get();
  std::snprintf(self_.provider, sizeof(self_.provider), "%s", fabric_->provider());
  self_.fabric_name_bytes = static_cast<std::uint8_t>(fabric_->name_bytes());
  std::memcpy(self_.fabric_name, fabric_->name(), fabric_->name_bytes());
  return 0;
}

std::vector<WayToPeer> Rendezvous::ways_to(const Endpoint& peer, std::size_t first) const {
  std::vector<WayToPeer> near, far;
  const bool same = same_host(peer);
  if (same && peer.on_all != 0) return {{.to = kLoopback4, .number = 0}, {.to = kLoopback6, .number = 1}};
  for (std::size_t i = 0; i < peer.addresses; ++i) {
    // Hosts may have the same private address (a bridge for containers): there we would find ourselves.
    const IpAddress& to = peer.address[i];
    const auto is_ours = [&to](const HostAddress& a) { return a.address == to; };
    if (!same && std::any_of(on_host_.begin(), on_host_.end(), is_ours)) continue;
    WayToPeer way{.to = to, .number = i};
    bool adjacent = false;
    for (const HostAddress& own : restricted_ ? chosen_ : on_host_) {
      if (is_ipv4(own.address) != is_ipv4(to) || (own.loopback && !same)) continue;
      const bool closer = same_network(own.address, to, own.bits);
      if (restricted_ && !same && (!way.has_source || (closer && !adjacent))) {
        way.has_source = true;
        way.from = own.address;
      }
      adjacent = adjacent || closer;
    }
    if (restricted_ && !same && !way.has_source) continue;
    (adjacent ? near : far).push_back(way);
  }
  near.insert(near.end(), far.begin(), far.end());
  // What has worked, or is next after what has not, comes first.
  const auto it = std::find_if(near.begin(), near.end(), [first](const WayToPeer& w) { return w.number == first; });
  if (it != near.end()) std::rotate(near.begin(), it, std::next(it));
  return near;
}

int Rendezvous::describe(char* buffer, std::size_t capacity) const {
  std::string network = network_.empty() ? "any" : network_;
  std::erase_if(network, [](char c) { return c == '"' || c == '\\' || c < ' '; });
  std::string text = "\"network\": \"" + network + "\", \"listens\": [";
  for (std::size_t i = 0; i < self_.addresses && self_.tcp_port != 0; ++i)
    text += (i == 0 ? "\"" : ", \"") + text_of(self_.address[i]) + "\"";
  text += "], \"port\": " + std::to_string(self_.tcp_port);
  return std::snprintf(buffer, capacity, "%s", text.c_str());
}

// A LID that this process had before it went back. Its claim lasts in the epoch.
int Rendezvous::claim_former_lid(std::uint16_t lid) {
  char key[32];
  std::snprintf(key, sizeof(key), "ib2tcp/lid/%u", lid);
  int rc = exchange_claim(key);
  if (rc == 0) return 0;
  if (rc == EEXIST) {
    Endpoint holder;
    rc = read_endpoint(lid, &holder);
    if (rc == 0 && holder.cluster == self_.cluster && holder.incarnation < self_.incarnation) return 0;
    if (rc == 0 || rc == ENOENT) {
      log_message(LogLevel::kError, "LID %u, which this process had, is another one's now", lid);
      return EADDRINUSE;
    }
  }
  log_message(LogLevel::kError, "the job's exchange refused to claim %s (errno %d)", key, rc);
  return rc;
}

int Rendezvous::claim_lid(std::uint16_t* lid) {
  if (g_engine->former != nullptr && *lid != 0) return claim_former_lid(*lid);
  const bool guest = g_host->config("SHADOWIB_GUEST") != nullptr;
  const std::uint32_t first = guest ? kFirstGuestLid : 1, last = guest ? kLastLid : kFirstGuestLid - 1u;
  const std::uint32_t count = last - first + 1, start = random_value<std::uint32_t>() % count;
  for (std::uint32_t i = 0; i < count; ++i) {
    auto candidate = static_cast<std::uint16_t>(first + (start + i) % count);
    char key[32];
    std::snprintf(key, sizeof(key), "ib2tcp/lid/%u", candidate);
    int rc = exchange_claim(key);
    if (rc == 0) {
      *lid = candidate;
      return 0;
    }
    if (rc == EEXIST) continue;
    log_message(LogLevel::kError, "the job's exchange refused to claim %s (errno %d)", key, rc);
    return rc;
  }
  log_message(LogLevel::kError, "all %u LIDs of the job's %s are taken", count, guest ? "guests" : "members");
  return EADDRNOTAVAIL;
}

int Rendezvous::publish(std::vector<std::unique_ptr<Device>>& devices) {
  for (auto& device : devices)
    for (int port = 0; port < device->port_count; ++port)
      if (int rc = claim_lid(&device->lids[port]); rc != 0) return rc;
  self_.lid = devices.front()->lids[0];
  for (auto& device : devices)
    for (int port = 1; port <= device->port_count; ++port) {
      Endpoint record = self_;
      union ibv_gid gid = port_gid(*device, port);
      std::memcpy(&record.guid, &gid.raw[8], 8);
      char key[32];
      endpoint_key(key, device->lids[port - 1]);
      if (int rc = exchange_publish(key, &record, sizeof(record)); rc != 0) {
        log_message(LogLevel::kError, "the job's exchange refused to publish %s (errno %d)", key, rc);
        return rc;
      }
    }
  return 0;
}

bool Rendezvous::same_host(const Endpoint& peer) const {
  return std::memcmp(peer.boot_id, self_.boot_id, 16) == 0 && peer.net_namespace == self_.net_namespace;
}

// 0, ENOENT, or an errno of an exchange that does not answer.
int Rendezvous::read_endpoint(std::uint16_t lid, Endpoint* endpoint) {
  char key[32];
  endpoint_key(key, lid);
  std::size_t bytes = 0;
  if (const int rc = exchange_lookup(key, endpoint, sizeof(*endpoint), &bytes); rc != 0 && rc != EOVERFLOW) return rc;
  if (bytes == sizeof(*endpoint) && endpoint->magic == kEndpointMagic && endpoint->version == kEndpointVersion &&
      endpoint->unix_name_bytes <= sizeof(endpoint->unix_name) && endpoint->addresses <= kMaxAddresses &&
      endpoint->fabric_name_bytes <= sizeof(endpoint->fabric_name) && endpoint->cluster <= kMaxBackendClusters &&
      ::strnlen(endpoint->provider, sizeof(endpoint->provider)) < sizeof(endpoint->provider))
    return 0;
  log_message(LogLevel::kWarn, "the record %s of the exchange is not one of this version; peer ignored", key);
  return ENOENT;
}

int Rendezvous::find(std::uint16_t dlid, bool global, const std::uint8_t dgid[16], Link** link) {
  // A GUID ends in the LID of its port, so one key serves both ways to address a peer.
  std::uint16_t lid = dlid;
  if (lid == 0 && global) lid = static_cast<std::uint16_t>(dgid[14] << 8 | dgid[15]);
  if (lid == 0 || lid > kLastLid) return ENOENT;
  auto known = by_lid_.find(lid);
  if (known != by_lid_.end() && dlid != 0) {
    *link = known->second;
    return 0;
  }
  Endpoint endpoint;
  if (const int rc = read_endpoint(lid, &endpoint); rc != 0) return rc;
  if (dlid == 0 && std::memcmp(&endpoint.guid, dgid + 8, 8) != 0) return ENOENT;
  *link = link_to(endpoint);
  by_lid_[lid] = *link;
  return 0;
}

int Rendezvous::link_for_incoming(std::uint16_t lid, const std::uint8_t uuid[16], Link** link) {
  *link = g_engine->link_with(uuid);
  if (*link != nullptr) return 0;
  Endpoint endpoint;
  if (const int rc = read_endpoint(lid, &endpoint); rc != 0) return rc;
  if (std::memcmp(endpoint.uuid, uuid, 16) != 0) return ENOENT;
  *link = link_to(endpoint);
  return 0;
}

Link* Rendezvous::link_to(const Endpoint& endpoint) {
  Link* link = g_engine->link_with(endpoint.uuid);
  if (link == nullptr) link = link_of_predecessor(endpoint);
  if (link == nullptr) {
    link = new Link(endpoint, std::memcmp(endpoint.uuid, self_.uuid, 16) == 0);
    g_engine->add_link(link);
  }
  return link;
}

// A process of a cluster that came back has the addresses of the one before, and its queue pairs' peers.
Link* Rendezvous::link_of_predecessor(const Endpoint& endpoint) {
  if (endpoint.cluster == 0) return nullptr;
  for (Link* link : g_engine->links())
    if (link->is_over() && is_successor(link->peer(), endpoint)) {
      link->follow(endpoint);
      return link;
    }
  return nullptr;
}

bool Rendezvous::successor_of(const Endpoint& gone, Endpoint* successor) {
  return read_endpoint(gone.lid, successor) == 0 && is_successor(gone, *successor);
}

void Rendezvous::accept_all(Watch& watch, StreamKind kind) {
  for (;;) {
    UnownedDescriptors unowned;
    int low = ::accept4(watch.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (low < 0) return;
    int fd = unowned.own(low);
    if (fd < 0) {
      ::close(low);
      return;
    }
    if (kind == StreamKind::kShm) {
      ucred peer{};
      socklen_t length = sizeof(peer);
      if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.uid != ::geteuid()) {
        log_message(LogLevel::kWarn, "refused a connection by user %u", peer.uid);
        g_engine->statistics.handshakes_refused.add(1);
        g_host->close_descriptor(fd);
        continue;
      }
    }
    Handshake::accept(fd, kind);
  }
}

void Rendezvous::add_half_open(Handshake* handshake) {
  // Strangers may fill the table; the oldest gives way, so that a member gets through.
  if (half_open_.size() >= kMaxHalfOpen) half_open_.front()->abandon();
  half_open_.push_back(handshake);
}

bool Rendezvous::is_greeted_by(const std::uint8_t uuid[16]) const {
  return std::any_of(half_open_.begin(), half_open_.end(), [uuid](const Handshake* h) { return h->is_from(uuid); });
}

void Rendezvous::remove_half_open(Handshake* handshake) { std::erase(half_open_, handshake); }

}  // namespace shadowib::ib2tcp
