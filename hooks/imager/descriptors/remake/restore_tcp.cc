// TCP connections of the job, ports and bytes in flight included, then listeners; UDP and netlink sockets.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "hooks/imager/descriptors/remake/restore.h"
#include "hooks/imager/descriptors/remake/tcp_socket.h"
#include "hooks/imager/descriptors/socket_options.h"
#include "shadowib/base/log.h"

namespace shadowib::descriptors {
namespace {

Status bind_and_listen(int fd, const Object& o) {
  apply_early_options(fd, o.options);
  bool bound = port_of(o.local) != 0;
  if (bound && call_with(::bind, fd, o.local) != 0)
    return restore_failure(errno == EADDRINUSE ? Code::kBusy : Code::kRefused, o,
                           "its port cannot be had; stop what uses it, or wait 60 s for TIME_WAIT to pass", errno);
  if (o.state == SocketState::kListening && ::listen(fd, o.backlog) != 0)
    return restore_failure(Code::kBusy, o, "listen fails", errno);
  return {};
}

// One connection to make. The passive end's port may be shared with a listener and with other connections.
struct Pair {
  const Object* passive = nullptr;  // null: that end is closed already
  const Object* active = nullptr;
  std::string passive_address, active_address;
};

class TcpRestorer {
 public:
  explicit TcpRestorer(Plan* plan) : plan_(*plan) {}

  Status run() {
    std::vector<Pair> pairs = plan_pairs();
    std::stable_sort(pairs.begin(), pairs.end(),
                     [](const Pair& a, const Pair& b) { return a.passive_address < b.passive_address; });
    Status status;
    for (const Pair& pair : pairs)
      if (status = connect_pair(pair); !status.ok()) break;
    close_listener();
    SHADOWIB_TRY(status);
    SHADOWIB_TRY(connect_apart(plan_, [this](const Object& o, int fd) { made(o, fd); }));
    for (const auto& [inode, holder] : plan_.links.sockets)
      if (is_ours(holder) && holder.object().state == SocketState::kFinished)
        SHADOWIB_TRY(make_finished(holder.object()));
    for (const Pair& pair : pairs) SHADOWIB_TRY(fill_and_shut(pair));
    // Listeners come after all connections and before their options: SO_REUSEADDR, which lets them share a port, is
    // set on every connection until then.
    for (const auto& [inode, holder] : plan_.links.sockets)
      if (is_ours(holder) && !made_.contains(inode)) SHADOWIB_TRY(make_single(holder.object()));
    for (const auto& [inode, holder] : plan_.links.sockets)
      if (is_ours(holder)) finish(holder.object());
    return {};
  }

 private:
  bool is_ours(const Holder& holder) const {
    return holder.object().kind == Kind::kTcp && !plan_.is_outside(holder.object());
  }

  std::vector<Pair> plan_pairs() const {
    std::set<std::uint16_t> listening;
    for (const auto& [inode, holder] : plan_.links.sockets)
      if (is_ours(holder) && holder.object().state == SocketState::kListening)
        listening.insert(port_of(holder.object().local));
    std::vector<Pair> pairs;
    for (const auto& [inode, holder] : plan_.links.sockets) {
      const Object& o = holder.object();
      if (!is_ours(holder) || o.state != SocketState::kConnected || plan_.apart.contains(&o)) continue;
      const Object* peer = peer_of(o);
      if (peer != nullptr && peer->inode < o.inode) continue;
      Pair pair{&o, peer, o.local, peer != nullptr ? peer->local : o.remote};
      if (!listening.contains(port_of(o.local))) {
        std::swap(pair.passive, pair.active);
        std::swap(pair.passive_address, pair.active_address);
      }
      pairs.push_back(pair);
    }
    return pairs;
  }

  const Object* peer_of(const Object& o) const {
    const Holder* peer = tcp_peer(plan_.links, plan_.links.sockets.at(o.inode));
    return peer == nullptr ? nullptr : &peer->object();
  }

  void made(const Object& o, int fd) {
    made_[o.inode] = plan_.own(fd);
    plan_.set_socket(o.inode, fd);
  }

  void close_listener() {
    if (listener_ >= 0) ::close(listener_);
    listener_ = -1;
    listener_for_.clear();
  }

  // A listener that lives for the connections of one address only: the job's own come afterwards, on the same port.
  Status open_listener(const std::string& address) {
    if (listener_ >= 0 && listener_for_ == address) return {};
    close_listener();
    const std::string tries[] = {address, with_port(address, 0), loopback(domain_of(address))};
    for (const std::string& wanted : tries) {
      listener_ = new_stream(domain_of(wanted));
      if (call_with(::bind, listener_, wanted) == 0 && ::listen(listener_, 16) == 0) {
        if (&wanted != tries)
          log_line(LogLevel::kWarn, "restart: %s cannot be bound again; its connections come back at %s",
                   describe_address(address).c_str(),
                   describe_address(own_address(listener_, ::getsockname)).c_str());
        listener_for_ = address;
        return {};
      }
      ::close(listener_);
      listener_ = -1;
    }
    return Status::of(Code::kRefused, errno, "cannot restore connections at %s: no address can be bound (%s)",
                      describe_address(address).c_str(), std::strerror(errno));
  }

  // Connects from `address`, from another port of that host, or from anywhere. `like`: the object that it becomes an
  // end of, or nullptr.
  Status connect_from(const std::string& address, const Object* like, int* fd) {
    std::string target = own_address(listener_, ::getsockname);
    const std::string tries[] = {address, with_port(address, 0), std::string()};
    for (const std::string& wanted : tries) {
      *fd = new_stream(domain_of(wanted.empty() ? target : wanted));
      if (like != nullptr) apply_early_options(*fd, like->options);
      if ((wanted.empty() || call_with(::bind, *fd, wanted) == 0) &&
          call_with(::connect, *fd, address_for(domain_of(wanted.empty() ? target : wanted), target)) == 0) {
        if (&wanted != tries)
          log_line(LogLevel::kWarn, "restart: %s cannot be bound again; its connection comes back at %s",
                   describe_address(address).c_str(), describe_address(own_address(*fd, ::getsockname)).c_str());
        return {};
      }
      ::close(*fd);
    }
    if (like != nullptr) return connect_from(address, nullptr, fd);  // a device or a mark may lead elsewhere now
    return Status::of(Code::kRefused, errno, "cannot restore the connection of %s to %s: %s",
                      describe_address(address).c_str(), describe_address(target).c_str(), std::strerror(errno));
  }

  Status connect_pair(const Pair& pair) {
    SHADOWIB_TRY(open_listener(pair.passive_address));
    int active = -1, passive = -1;
    SHADOWIB_TRY(connect_from(pair.active_address, pair.active, &active));
    std::string expected = endpoint_key(own_address(active, ::getsockname));
    do {  // a stranger that connects meanwhile is turned away, as if the port were still closed
      if (passive >= 0) ::close(passive);
      passive = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    } while (passive >= 0 && endpoint_key(own_address(passive, ::getpeername)) != expected);
    if (passive < 0)
      return Status::of(Code::kIo, errno, "cannot restore the connection of %s: accept fails (%s)",
                        describe_address(pair.passive_address).c_str(), std::strerror(errno));
    keep(pair.passive, pair.active, passive);
    keep(pair.active, pair.passive, active);
    return {};
  }

  void keep(const Object* end, const Object* survivor, int fd) {
    if (end != nullptr)
      made(*end, fd);
    else
      gone_peers_[survivor->inode] = fd;
  }

  int fd_of_peer(const Object& o) const {
    const Object* peer = peer_of(o);
    auto gone = gone_peers_.find(o.inode);
    return peer != nullptr ? made_.at(peer->inode) : gone != gone_peers_.end() ? gone->second : -1;
  }

  Status fill_and_shut(const Pair& pair) {
    for (const Object* end : {pair.passive, pair.active})
      if (end != nullptr) SHADOWIB_TRY(fill_stream(fd_of_peer(*end), made_.at(end->inode), *end));
    for (const Object* end : {pair.passive, pair.active}) {
      if (end == nullptr) continue;
      if (end->shut_write) ::shutdown(made_.at(end->inode), SHUT_WR);
      if (end->shut_read) ::shutdown(made_.at(end->inode), SHUT_RD);
      if (auto gone = gone_peers_.find(end->inode); gone != gone_peers_.end()) ::close(gone->second);
    }
    return {};
  }

  // Over in both directions: any connection will do, as the socket has no peer to tell any more.
  Status make_finished(const Object& o) {
    SHADOWIB_TRY(open_listener(loopback(o.domain)));
    int peer = -1;
    Status status = connect_from(loopback(o.domain), nullptr, &peer);
    int fd = status.ok() ? ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC) : -1;
    close_listener();
    SHADOWIB_TRY(status);
    if (fd < 0) return restore_failure(Code::kIo, o, "accept fails", errno);
    made(o, fd);
    status = fill_stream(peer, fd, o);
    linger reset{o.error_pending ? 1 : 0, 0};
    ::setsockopt(peer, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    ::close(peer);
    if (!o.error_pending) ::shutdown(fd, SHUT_WR);
    return status;
  }

  Status make_single(const Object& o) {
    int fd = new_stream(o.domain);
    if (fd < 0) return restore_failure(Code::kIo, o, "socket fails", errno);
    made(o, fd);
    return bind_and_listen(fd, o);
  }

  void finish(const Object& o) {
    int fd = made_.at(o.inode);
    if (const Option* failed = apply_options(fd, o.options))
      log_line(LogLevel::kWarn, "restart: %s: option %d of level %d cannot be set again", describe_object(o).c_str(),
               failed->name, failed->level);
    set_status_flags(fd, o.flags);
  }

  Plan& plan_;
  std::map<std::uint64_t, int> made_, gone_peers_;
  int listener_ = -1;
  std::string listener_for_;
};

Status bind_udp(const Object& o, int fd) {
  apply_early_options(fd, o.options);
  int reuse = recorded_option(o.options, SOL_SOCKET, SO_REUSEADDR, 0);
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  if (port_of(o.local) != 0 && call_with(::bind, fd, o.local) != 0)
    return restore_failure(errno == EADDRINUSE ? Code::kBusy : Code::kRefused, o, "its port cannot be had", errno);
  return {};
}

Status restore_udp(const Object& o, int fd) {
  SHADOWIB_TRY(bind_udp(o, fd));
  if (!o.remote.empty() && call_with(::connect, fd, o.remote) != 0)
    return restore_failure(Code::kRefused, o, "it cannot be connected again", errno);
  return {};
}

}  // namespace

Status try_port(const Object& o) {
  const bool tcp = o.kind == Kind::kTcp && (o.state == SocketState::kFresh || o.state == SocketState::kListening);
  if ((!tcp && o.kind != Kind::kUdp) || port_of(o.local) == 0) return {};
  const int fd = tcp ? new_stream(o.domain) : ::socket(o.domain, o.type | SOCK_CLOEXEC, o.protocol);
  if (fd < 0) return restore_failure(Code::kRefused, o, "socket fails", errno);
  const Status status = tcp ? bind_and_listen(fd, o) : bind_udp(o, fd);
  ::close(fd);
  return status;
}

Status restore_tcp(Plan* plan) { return TcpRestorer(plan).run(); }

Status restore_datagram_sockets(Plan* plan) {
  for (const auto& [inode, holder] : plan->links.sockets) {
    const Object& o = holder.object();
    if ((o.kind != Kind::kUdp && o.kind != Kind::kNetlink) || plan->is_outside(o)) continue;
    int fd = ::socket(o.domain, o.type | SOCK_CLOEXEC, o.protocol);
    if (fd < 0) return restore_failure(Code::kRefused, o, "socket fails", errno);
    plan->set_socket(inode, plan->own(fd));
    if (o.kind == Kind::kUdp) SHADOWIB_TRY(restore_udp(o, fd));
    apply_options(fd, o.options);
    set_status_flags(fd, o.flags);
  }
  return {};
}

}  // namespace shadowib::descriptors
