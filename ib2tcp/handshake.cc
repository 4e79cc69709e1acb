#include "ib2tcp/handshake.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "ib2tcp/border.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/rendezvous.h"
#include "ib2tcp/transport.h"
#include "shadowib/base/keyed_proof.h"

namespace shadowib::ib2tcp {
namespace {

int open_unix(const Endpoint& peer) {
  UnownedDescriptors unowned;
  int low = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  int fd = low < 0 ? -1 : unowned.own(low);
  if (fd < 0) {
    if (low >= 0) {
      ::close(low);
      errno = EMFILE;  // the shim had no room for it
    }
    return -1;
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, peer.unix_name, peer.unix_name_bytes);
  auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + peer.unix_name_bytes);
  ucred owner{};
  socklen_t owner_length = sizeof(owner);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), length) == 0) {
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &owner_length) == 0 && owner.uid == ::geteuid()) return fd;
    errno = EPERM;
  }
  const int error = errno;
  g_host->close_descriptor(fd);
  errno = error;
  return -1;
}

// The peer's queue of connections is full, so that it lives; or something is short here.
bool tells_nothing_of_the_peer(int error) {
  return error == EAGAIN || error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

}  // namespace

Handshake* Handshake::connect(Link& link) {
  const Rendezvous& me = *g_engine->rendezvous;
  const Endpoint& peer = link.peer();
  bool same_host = me.same_host(peer);
  bool ofi = me.choice() == TransportChoice::kOfi;
  bool shm = (me.choice() == TransportChoice::kAuto || me.choice() == TransportChoice::kShm) && same_host &&
             peer.unix_name_bytes != 0;
  bool tcp = me.choice() != TransportChoice::kShm && peer.tcp_port != 0;
  if (ofi != (peer.fabric_name_bytes != 0) || (ofi && std::strcmp(peer.provider, me.self().provider) != 0)) {
    link.on_connect_failed(
        "it uses another provider of libfabric, or none; use one SHADOWIB_IB2TCP_TRANSPORT in a job");
    return nullptr;
  }
  if (!shm && !tcp) {
    link.on_connect_failed(me.choice() == TransportChoice::kShm
                               ? "it is not on this host (or uses tcp only), and SHADOWIB_IB2TCP_TRANSPORT=shm"
                               : "it listens on no address of a kind we may use");
    return nullptr;
  }
  const int fd = shm ? open_unix(peer) : -1;
  if (shm && fd < 0) {
    const bool put_off = tells_nothing_of_the_peer(errno);
    if (put_off) link.note_put_off();
    link.note_absence(!put_off);
    link.on_connect_failed(errno == EAGAIN ? "its queue of connections is full" : strerrordesc_np(errno));
    return nullptr;
  }
  auto* handshake = new Handshake(fd, ofi ? StreamKind::kOfi : shm ? StreamKind::kShm : StreamKind::kTcp, &link);
  handshake->step_ = Step::kConnecting;
  if (shm)
    handshake->start_watching(EPOLLOUT);
  else if (!handshake->dial_peer())
    return nullptr;
  return handshake;
}

bool Handshake::dial_peer() {
  std::vector<WayToPeer> ways = g_engine->rendezvous->ways_to(link_->peer(), link_->first_address);
  const bool any = !ways.empty();
  dial_ = !any ? nullptr
               : Dial::start(
                     std::move(ways), link_->peer().tcp_port,
                     [](void* self, int fd, std::size_t way, const char* reason) {
                       static_cast<Handshake*>(self)->on_dialed(fd, way, reason);
                     },
                     this);
  start_timer();
  if (dial_ != nullptr) return true;
  if (any && tells_nothing_of_the_peer(errno)) link_->note_put_off();
  fail(any ? strerrordesc_np(errno) : "it has no address that SHADOWIB_IB2TCP_NETWORK leads to");
  return false;
}

void Handshake::on_dialed(int fd, std::size_t way, const char* reason) {
  dial_ = nullptr;
  if (fd < 0) {
    fail(reason);
    return;
  }
  fd_ = fd;
  // Until its process has answered: somebody else may have that address.
  link_->first_address = way + 1;
  way_ = way;
  watch_fd(EPOLLIN);
  greet();
}

void Handshake::accept(int fd, StreamKind kind) {
  auto* handshake = new Handshake(fd, kind, nullptr);
  handshake->step_ = Step::kAwaitGreeting;
  g_engine->rendezvous->add_half_open(handshake);
  handshake->start_watching(EPOLLIN);
}

Handshake::Handshake(int fd, StreamKind kind, Link* link) : fd_(fd), kind_(kind), link_(link) {
  ++g_engine->handshakes;
}

Handshake::~Handshake() {
  delete stream_;
  if (fd_ >= 0) g_host->close_descriptor(fd_);
  for (int fd : passed_)
    if (fd >= 0) g_host->close_descriptor(fd);
}

void Handshake::start_watching(std::uint32_t events) {
  watch_fd(events);
  start_timer();
}

void Handshake::watch_fd(std::uint32_t events) {
  watch_ = {[](void* self, std::uint32_t ready) { static_cast<Handshake*>(self)->on_ready(ready); }, this};
  g_engine->watch(watch_, fd_, events, true);
}

void Handshake::start_timer() {
  timeout_.fire = [](void* self) { static_cast<Handshake*>(self)->end_in_silence(); };
  timeout_.owner = this;
  g_engine->arm(timeout_, monotonic_ns() + kHandshakeTimeoutNs);
  g_engine->want_turn();
}

bool Handshake::is_listened_for() const {
  return step_ > Step::kConnecting || (dial_ != nullptr && g_engine->rendezvous->same_host(link_->peer()));
}

void Handshake::abandon() { finish(); }

void Handshake::finish() {
  g_engine->unwatch(watch_);
  g_engine->disarm(timeout_);
  if (dial_ != nullptr) std::exchange(dial_, nullptr)->abandon();
  if (link_ == nullptr) g_engine->rendezvous->remove_half_open(this);
  if (fd_ >= 0) g_host->close_descriptor(fd_);
  fd_ = -1;
  --g_engine->handshakes;
  g_engine->bury(this);
}

void Handshake::fail(const char* reason) {
  Link* link = link_;
  if (link == nullptr) {
    g_engine->statistics.handshakes_refused.add(1);
    log_message(LogLevel::kInfo, "refused an incoming connection: %s", reason);
  }
  if (link != nullptr) link->note_absence(!answered() && !has_been_silent_);
  finish();
  if (link != nullptr) link->on_connect_failed(reason);
}

void Handshake::end_in_silence() {
  if (link_ != nullptr && is_listened_for() && !answered()) {
    link_->note_silence();
    has_been_silent_ = true;
  }
  fail("no answer in time");
}

void Handshake::on_ready(std::uint32_t) {
  while (fd_ >= 0 && advance()) {
  }
}

// One step; true if another may be possible at once.
bool Handshake::advance() {
  bool failed = false;
  switch (step_) {
    case Step::kConnecting: {
      int error = 0;
      socklen_t length = sizeof(error);
      ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length);
      if (error != 0) {
        fail(strerrordesc_np(error));
        return false;
      }
      greet();
      return false;
    }
    case Step::kAwaitGreeting:
      return read_exactly(&greeting_, sizeof(greeting_), &failed) && on_greeting();
    case Step::kAwaitChallenge:
      return read_exactly(&challenge_, sizeof(challenge_), &failed) && on_challenge();
    case Step::kAwaitProof:
      return read_exactly(&proof_, sizeof(proof_), &failed) && on_proof();
    case Step::kAwaitAnswer:
      return read_exactly(&answer_, sizeof(answer_), &failed) && on_answer();
    case Step::kAwaitFabric:  // which tells by itself
      return false;
  }
  return false;
}

bool Handshake::read_exactly(void* to, std::size_t bytes, bool* failed) {
  while (have_ < bytes) {
    iovec part{input_ + have_, bytes - have_};
    alignas(cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (step_ == Step::kAwaitAnswer && kind_ == StreamKind::kShm) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
    }
    UnownedDescriptors unowned;
    ssize_t n = ::recvmsg(fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {
      *failed = true;
      fail(n == 0 ? "it closed the connection" : strerrordesc_np(errno));
      return false;
    }
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      auto count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        int owned = unowned.own(fd);
        if (owned < 0) ::close(fd);
        if (i < 3 && passed_[i] < 0)
          passed_[i] = owned;
        else if (owned >= 0)
          g_host->close_descriptor(owned);
      }
    }
    have_ += static_cast<std::size_t>(n);
  }
  std::memcpy(to, input_, bytes);
  have_ = 0;
  return true;
}

bool Handshake::send_all(const void* from, std::size_t bytes) {
  // A few dozen bytes on a fresh socket: they fit, or the peer is not one of ours.
  if (::send(fd_, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes)) return true;
  fail("it does not read");
  return false;
}

void Handshake::greet() {
  const Endpoint& me = g_engine->rendezvous->self();
  greeting_.magic = kHandshakeMagic;
  greeting_.version = kHandshakeVersion;
  greeting_.kind = kind_;
  greeting_.frame_version = kWireVersion;
  greeting_.lid = me.lid;
  greeting_.cluster = me.cluster;
  greeting_.from_incarnation = me.incarnation;
  greeting_.to_incarnation = link_->peer().incarnation;
  greeting_.slot = g_engine->number_of(*link_);
  std::memcpy(greeting_.from, me.uuid, 16);
  std::memcpy(greeting_.to, link_->peer().uuid, 16);
  random_bytes(greeting_.nonce, sizeof(greeting_.nonce));
  step_ = Step::kAwaitChallenge;
  if (send_all(&greeting_, sizeof(greeting_))) g_engine->rewatch(watch_, EPOLLIN);
}

bool Handshake::on_greeting() {
  const Endpoint& me = g_engine->rendezvous->self();
  if (greeting_.magic != kHandshakeMagic) return fail("it does not speak ib2tcp"), false;
  if (greeting_.version != kHandshakeVersion || greeting_.frame_version != kWireVersion)
    return fail("it speaks another version of the protocol; use one version of shadowib in a job"), false;
  if (greeting_.kind != kind_ || std::memcmp(greeting_.to, me.uuid, 16) != 0)
    return fail("it wants somebody else"), false;
  if (greeting_.cluster > kMaxBackendClusters) return fail("it names a cluster that there cannot be"), false;
  challenge_.magic = kHandshakeMagic;
  challenge_.version = kHandshakeVersion;
  random_bytes(challenge_.nonce, sizeof(challenge_.nonce));
  step_ = Step::kAwaitProof;
  return send_all(&challenge_, sizeof(challenge_));
}

bool Handshake::on_challenge() {
  if (challenge_.magic != kHandshakeMagic || challenge_.version != kHandshakeVersion)
    return fail("it speaks another version of the protocol"), false;
  link_->first_address = way_;
  mac('C', nullptr, proof_.mac);
  step_ = Step::kAwaitAnswer;
  return send_all(&proof_, sizeof(proof_));
}

bool Handshake::on_proof() {
  std::uint8_t expected[32];
  mac('C', nullptr, expected);
  if (!same_proof(expected, proof_.mac)) {
    log_message(LogLevel::kWarn, "a connection could not prove that it belongs to this job; refused");
    fail("wrong key");
    return false;
  }
  Link* link = nullptr;
  const int rc = g_engine->rendezvous->link_for_incoming(greeting_.lid, greeting_.from, &link);
  if (rc == ENOENT) return fail("it is not in the exchange"), false;
  if (rc != 0) {
    if (send_answer(Verdict::kLater, nullptr)) finish();
    return false;
  }
  if (greeting_.cluster != link->peer().cluster) return fail("its record names another cluster"), false;
  if ((greeting_.cluster == 0) != (g_engine->border == nullptr))
    return fail("one of both processes is in no cluster of the federation"), false;
  if (is_of_dead_incarnation()) {
    log_message(LogLevel::kInfo, "refused the process of LID %u: an incarnation of its cluster, or of ours, is over",
                greeting_.lid);
    if (send_answer(Verdict::kDead, nullptr)) finish();
    return false;
  }
  if (!link->accepts_incoming()) {
    if (send_answer(Verdict::kUseOther, nullptr)) finish();
    return false;
  }
  return send_answer(Verdict::kAccepted, link);
}

// As far as this process knows.
bool Handshake::is_of_dead_incarnation() const {
  const Border* border = g_engine->border.get();
  return border != nullptr && (greeting_.from_incarnation != border->incarnation_of(greeting_.cluster - 1u) ||
                               greeting_.to_incarnation != g_engine->rendezvous->self().incarnation);
}

bool Handshake::send_answer(Verdict verdict, Link* link) {
  ShmDescriptors rings;
  Stream* stream = nullptr;
  answer_.verdict = verdict;
  if (verdict == Verdict::kAccepted) {
    answer_.ring_bytes = kind_ == StreamKind::kShm ? kShmRingBytes : 0;
    answer_.slot = g_engine->number_of(*link);
    g_engine->unwatch(watch_);
    stream =
        kind_ == StreamKind::kShm ? make_shm_stream_local(fd_, kShmRingBytes, &rings) : make_stream(*link, false);
    if (stream == nullptr) return fail("no descriptors or memory for its stream"), false;
  }
  mac('S', &answer_, answer_.mac);
  iovec part{&answer_, sizeof(answer_)};
  alignas(cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (rings.memory >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(3 * sizeof(int));
    int fds[3] = {rings.memory, rings.connecting_bell, rings.accepting_bell};
    std::memcpy(CMSG_DATA(c), fds, sizeof(fds));
  }
  bool sent = ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(sizeof(answer_));
  if (rings.memory >= 0) g_host->close_descriptor(rings.memory);
  if (stream != nullptr) fd_ = -1;  // the stream's now
  if (!sent) {
    delete stream;
    fail("it went away");
    return false;
  }
  if (stream == nullptr) return true;
  finish();
  link->on_connected(stream, true);
  return false;
}

bool Handshake::on_answer() {
  std::uint8_t expected[32];
  mac('S', &answer_, expected);
  if (!same_proof(expected, answer_.mac)) {
    log_message(LogLevel::kWarn, "who listens at the address of LID %u cannot prove that it belongs to this job",
                link_->peer().lid);
    return fail("wrong key"), false;
  }
  if (answer_.verdict == Verdict::kLater) {
    link_->note_later();
    return fail("the exchange does not answer it"), false;
  }
  if (answer_.verdict == Verdict::kDead) return fail("an incarnation of its cluster, or of ours, is over"), false;
  if (answer_.verdict != Verdict::kAccepted) return fail("it prefers a connection of its own"), false;
  g_engine->unwatch(watch_);
  Stream* stream = make_stream(*link_, true);
  if (stream == nullptr)
    return fail(kind_ == StreamKind::kShm ? "its shared memory is not sound" : "no stream to it could be made"),
           false;
  fd_ = -1;
  if (kind_ == StreamKind::kOfi && await_fabric(static_cast<FabricStream*>(stream))) return false;
  Link* link = link_;
  finish();
  link->on_connected(stream, false);
  return false;
}

Stream* Handshake::make_stream(const Link& link, bool connecting) {
  switch (kind_) {
    case StreamKind::kTcp:
      return make_tcp_stream(fd_);
    case StreamKind::kShm: {
      ShmDescriptors rings{passed_[0], passed_[1], passed_[2]};
      passed_[0] = passed_[1] = passed_[2] = -1;
      return make_shm_stream_remote(fd_, answer_.ring_bytes, rings);
    }
    case StreamKind::kOfi: {
      FabricEnd asking{greeting_.slot, 0}, asked{answer_.slot, 0};
      std::memcpy(&asking.secret, greeting_.nonce, sizeof(asking.secret));
      std::memcpy(&asked.secret, challenge_.nonce, sizeof(asked.secret));
      const Endpoint& peer = link.peer();
      return g_engine->rendezvous->fabric()->make_stream({peer.fabric_name, peer.fabric_name_bytes,
                                                          connecting ? asking : asked, connecting ? asked : asking,
                                                          connecting, fd_});
    }
  }
  return nullptr;
}

// Providers with connections make one of their own now. True if that is under way.
bool Handshake::await_fabric(FabricStream* stream) {
  if (stream->open()) return false;
  stream_ = stream;
  step_ = Step::kAwaitFabric;
  stream->when_open([](void* self) { static_cast<Handshake*>(self)->on_fabric(); }, this);
  return true;
}

void Handshake::on_fabric() {
  if (!stream_->open()) {
    fail("libfabric made no connection to it");
    return;
  }
  FabricStream* stream = std::exchange(stream_, nullptr);
  Link* link = link_;
  finish();
  link->on_connected(stream, false);
}

void Handshake::mac(char role, const Answer* answer, std::uint8_t out[32]) const {
  keyed_proof(g_engine->rendezvous->key(), role,
              {{&greeting_, sizeof(greeting_)},
               {&challenge_, sizeof(challenge_)},
               {answer, answer != nullptr ? offsetof(Answer, mac) : 0}},
              out);
}

}  // namespace shadowib::ib2tcp
