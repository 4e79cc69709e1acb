// This process's identity for the others of the job, its listeners, and the way to find the others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ib2tcp/dial.h"
#include "ib2tcp/engine.h"
#include "ib2tcp/transport.h"
#include "ib2tcp/wire.h"

namespace shadowib::ib2tcp {

struct Device;
class Handshake;

enum class TransportChoice : std::uint8_t { kAuto, kShm, kTcp, kOfi };

inline constexpr std::size_t kMaxAddresses = 8;

inline constexpr std::uint32_t kEndpointMagic = 0x45324249;  // "IB2E"
inline constexpr std::uint16_t kEndpointVersion = 4;

// A process publishes one as ib2tcp/ep/<lid>, for each of its LIDs. Fixed layout, checked on reading.
struct Endpoint {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t lid;             // of the first port
  std::uint8_t uuid[16];         // of this load of the library
  std::uint8_t boot_id[16];      // same host ...
  std::uint64_t net_namespace;   // ... and same network namespace: shared memory and 127.0.0.1 work
  std::uint64_t guid;            // of the port this record is about, network byte order
  std::uint16_t tcp_port;        // 0: does not listen
  std::uint8_t unix_name_bytes;  // 0: does not listen
  std::uint8_t addresses;        // that follow, best first
  std::uint8_t unix_name[20];    // abstract, made by autobind, without the leading zero byte
  std::uint8_t on_all;           // it listens on every address of the host, loopback included
  std::uint8_t unused;
  std::uint16_t cluster;  // index + 1 of its cluster; 0: none
  IpAddress address[kMaxAddresses];
  // The provider of libfabric it uses, and its address there; no bytes: none.
  char provider[kMaxProviderName];
  std::uint8_t fabric_name_bytes;
  std::uint8_t reserved[3];
  std::uint32_t incarnation;  // of its cluster
  std::uint8_t fabric_name[kMaxFabricName];
};
static_assert(sizeof(Endpoint) == 320);

class Rendezvous {
 public:
  Rendezvous();
  ~Rendezvous();  // of one that did not start: closes what it had opened
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // Chooses and claims LIDs, opens the listeners and publishes. 0 or an errno (EIO: the exchange; EADDRNOTAVAIL: no
  // LID; EINVAL: a setting that makes no sense). On failure destroy it and start another. Under the engine's lock.
  int start(std::vector<std::unique_ptr<Device>>& devices);

  const Endpoint& self() const { return self_; }
  const std::uint8_t* key() const { return key_; }
  TransportChoice choice() const { return choice_; }
  Fabric* fabric() { return fabric_.get(); }  // with kOfi
  // The link to whoever owns the address. 0; ENOENT: nobody published it yet; another errno: the exchange does not
  // answer, which says nothing of the peer.
  int find(std::uint16_t dlid, bool global, const std::uint8_t dgid[16], Link** link);
  // The link to an authenticated peer that connected to us. Likewise.
  int link_for_incoming(std::uint16_t lid, const std::uint8_t uuid[16], Link** link);
  // How to reach it, or a reason why not.
  bool same_host(const Endpoint& peer) const;
  // The addresses to connect to it at, best first; `first` turns the list.
  std::vector<WayToPeer> ways_to(const Endpoint& peer, std::size_t first) const;
  // For people: the network that was chosen, and where this process listens; JSON fields. Returns bytes.
  int describe(char* buffer, std::size_t capacity) const;

  // The process that has that one's address after it, of a later incarnation of its cluster. False: none yet.
  bool successor_of(const Endpoint& gone, Endpoint* successor);
  // Whether a process with that uuid is connecting to this one, or somebody says so.
  bool is_greeted_by(const std::uint8_t uuid[16]) const;
  void add_half_open(Handshake* handshake);
  void remove_half_open(Handshake* handshake);

 private:
  int claim_lid(std::uint16_t* lid);
  int claim_former_lid(std::uint16_t lid);
  Link* link_to(const Endpoint& endpoint);
  Link* link_of_predecessor(const Endpoint& endpoint);
  int listen_unix();
  int choose_network();
  int listen_tcp();
  bool listen_on(const IpAddress& address, int index);
  void stop_listening();
  int open_fabric();
  int publish(std::vector<std::unique_ptr<Device>>& devices);
  int read_endpoint(std::uint16_t lid, Endpoint* endpoint);
  void accept_all(Watch& watch, StreamKind kind);

  Endpoint self_{};
  TransportChoice choice_ = TransportChoice::kAuto;
  std::uint8_t* key_ = nullptr;  // in memory from HostServices::map
  Watch unix_watch_;
  struct Listener {
    Rendezvous* rendezvous = nullptr;
    Watch watch;
  };
  Listener listeners_[kMaxAddresses];
  std::string network_;               // as it was given
  bool restricted_ = false;           // to `chosen_`
  std::vector<HostAddress> chosen_;   // that are published, best first
  std::vector<HostAddress> on_host_;  // all
  std::unique_ptr<Fabric> fabric_;
  std::unordered_map<std::uint16_t, Link*> by_lid_;
  std::vector<Handshake*> half_open_;  // incoming and not authenticated, oldest first
};

}  // namespace shadowib::ib2tcp
