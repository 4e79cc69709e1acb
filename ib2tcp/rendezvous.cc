#include "ib2tcp/rendezvous.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "ib2tcp/device.h"
#include "ib2tcp/handshake.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/transports/ofi_fabric.h"
#include "ib2tcp/transports/ofi_library.h"

namespace shadowib::ib2tcp {
namespace {

constexpr std::uint32_t kEndpointMagic = 0x45324249;  // "IB2E"
constexpr std::uint16_t kEndpointVersion = 2;
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
  read_boot_id(self_.boot_id);
  struct stat st {};
  if (::stat("/proc/self/ns/net", &st) == 0) self_.net_namespace = st.st_ino;
  if (choice_ == TransportChoice::kAuto || choice_ == TransportChoice::kShm)
    if (int rc = listen_unix(); rc != 0) return rc;
  if (choice_ != TransportChoice::kShm)
    if (int rc = listen_tcp(); rc != 0) return rc;
  if (choice_ == TransportChoice::kOfi)
    if (int rc = open_fabric(); rc != 0) return rc;
  collect_addresses();
  return publish(devices);
}

Rendezvous::~Rendezvous() {
  g_engine->poller = nullptr;
  for (Watch* watch : {&unix_watch_, &tcp_watch_}) {
    int fd = watch->fd;
    if (fd < 0) continue;
    g_engine->unwatch(*watch);
    g_host->close_descriptor(fd);
  }
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

int Rendezvous::listen_tcp() {
  UnownedDescriptors unowned;
  int low = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  int fd = low < 0 ? -1 : unowned.own(low);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof(address);
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(fd, kBacklog) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    log_message(LogLevel::kError, "cannot listen on a TCP socket: %s", strerrordesc_np(errno));
    return EIO;
  }
  self_.tcp_port = ntohs(address.sin_port);
  tcp_watch_ = {[](void* self, std::uint32_t) {
                  auto* rendezvous = static_cast<Rendezvous*>(self);
                  rendezvous->accept_all(rendezvous->tcp_watch_, rendezvous->choice_ == TransportChoice::kOfi
                                                                     ? StreamKind::kOfi
                                                                     : StreamKind::kTcp);
                },
                this};
  g_engine->watch(tcp_watch_, fd, EPOLLIN, true);
  return 0;
}

int Rendezvous::open_fabric() {
  const OfiLibrary* library = ofi_library();
  if (library == nullptr) {
    log_message(LogLevel::kError, "libfabric was not loaded when this library was");
    return EINVAL;
  }
  fabric_ = OfiFabric::open(*library);
  if (fabric_ == nullptr) return EIO;
  g_engine->poller = fabric_.get();
  std::snprintf(self_.provider, sizeof(self_.provider), "%s", fabric_->provider());
  self_.fabric_name_bytes = static_cast<std::uint8_t>(fabric_->name_bytes());
  std::memcpy(self_.fabric_name, fabric_->name(), fabric_->name_bytes());
  return 0;
}

void Rendezvous::collect_addresses() {
  if (self_.tcp_port == 0) return;
  UnownedDescriptors unowned;
  int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  ifreq requests[32];
  ifconf list{};
  list.ifc_len = sizeof(requests);
  list.ifc_req = requests;
  if (::ioctl(fd, SIOCGIFCONF, &list) == 0) {
    int n = list.ifc_len / static_cast<int>(sizeof(ifreq));
    for (int i = 0; i < n && self_.addresses < 8; ++i) {
      const auto* address = reinterpret_cast<const sockaddr_in*>(&requests[i].ifr_addr);
      if (address->sin_family != AF_INET || (ntohl(address->sin_addr.s_addr) >> 24) == 127) continue;
      std::memcpy(self_.ipv4[self_.addresses++], &address->sin_addr, 4);
    }
  }
  ::close(fd);
}

int Rendezvous::claim_lid(std::uint16_t* lid) {
  std::uint32_t start = random_value<std::uint32_t>() % kLastLid;
  for (std::uint32_t i = 0; i < kLastLid; ++i) {
    auto candidate = static_cast<std::uint16_t>(1 + (start + i) % kLastLid);
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
  log_message(LogLevel::kError, "all %u LIDs of the job are taken", kLastLid);
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

bool Rendezvous::read_endpoint(std::uint16_t lid, Endpoint* endpoint) {
  char key[32];
  endpoint_key(key, lid);
  std::size_t bytes = 0;
  if (exchange_lookup(key, endpoint, sizeof(*endpoint), &bytes) != 0) return false;
  if (bytes == sizeof(*endpoint) && endpoint->magic == kEndpointMagic && endpoint->version == kEndpointVersion &&
      endpoint->unix_name_bytes <= sizeof(endpoint->unix_name) && endpoint->addresses <= 8 &&
      endpoint->fabric_name_bytes <= sizeof(endpoint->fabric_name) &&
      ::strnlen(endpoint->provider, sizeof(endpoint->provider)) < sizeof(endpoint->provider))
    return true;
  log_message(LogLevel::kWarn, "the record %s of the exchange is not one of this version; peer ignored", key);
  return false;
}

Link* Rendezvous::find(std::uint16_t dlid, bool global, const std::uint8_t dgid[16]) {
  // A GUID ends in the LID of its port, so one key serves both ways to address a peer.
  std::uint16_t lid = dlid;
  if (lid == 0 && global) lid = static_cast<std::uint16_t>(dgid[14] << 8 | dgid[15]);
  if (lid == 0 || lid > kLastLid) return nullptr;
  auto known = by_lid_.find(lid);
  if (known != by_lid_.end() && dlid != 0) return known->second;
  Endpoint endpoint;
  if (!read_endpoint(lid, &endpoint)) return nullptr;
  if (dlid == 0 && std::memcmp(&endpoint.guid, dgid + 8, 8) != 0) return nullptr;
  Link* link = g_engine->link_with(endpoint.uuid);
  if (link == nullptr) {
    link = new Link(endpoint, std::memcmp(endpoint.uuid, self_.uuid, 16) == 0);
    g_engine->add_link(link);
  }
  by_lid_[lid] = link;
  return link;
}

Link* Rendezvous::link_for_incoming(std::uint16_t lid, const std::uint8_t uuid[16]) {
  Link* link = g_engine->link_with(uuid);
  if (link != nullptr) return link;
  Endpoint endpoint;
  if (!read_endpoint(lid, &endpoint) || std::memcmp(endpoint.uuid, uuid, 16) != 0) return nullptr;
  link = new Link(endpoint, false);
  g_engine->add_link(link);
  return link;
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
        g_engine->statistics.handshakes_refused.fetch_add(1);
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

void Rendezvous::remove_half_open(Handshake* handshake) { std::erase(half_open_, handshake); }

}  // namespace shadowib::ib2tcp
