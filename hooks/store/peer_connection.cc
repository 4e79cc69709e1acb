#include "hooks/store/peer_connection.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "shadowib/base/keyed_proof.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

constexpr std::uint32_t kMagic = 0x4b424953;  // "SIBK"
constexpr std::uint16_t kVersion = 2;
constexpr std::size_t kMostFields = 4 << 20;  // bytes of a message
constexpr std::int64_t kAddressNs = 3'000'000'000, kSilenceNs = 60'000'000'000;

struct Hello {  // of either side
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t reserved = 0;
  std::uint8_t nonce[32] = {};
};
static_assert(sizeof(Hello) == 40);

Hello new_hello() {
  Hello hello;
  for (std::size_t at = 0; at < sizeof(hello.nonce);)
    if (const ssize_t n = ::getrandom(hello.nonce + at, sizeof(hello.nonce) - at, 0); n > 0)
      at += static_cast<std::size_t>(n);
  return hello;
}

const std::uint8_t* bytes_of(const std::string& key) { return reinterpret_cast<const std::uint8_t*>(key.data()); }

Status lost(int error) {
  return Status::of(Code::kIo, error, "the keeper has gone (%.60s)", error == 0 ? "closed" : std::strerror(error));
}

int open_socket(const PeerAddress& address) {
  sockaddr_in6 six{};
  sockaddr_in four{};
  const bool is_four = ::inet_pton(AF_INET, address.host.c_str(), &four.sin_addr) == 1;
  if (!is_four && ::inet_pton(AF_INET6, address.host.c_str(), &six.sin6_addr) != 1) return errno = EINVAL, -1;
  four.sin_family = AF_INET, six.sin6_family = AF_INET6;
  four.sin_port = six.sin6_port = htons(static_cast<std::uint16_t>(address.port));
  const int fd = ::socket(is_four ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const sockaddr* to = is_four ? reinterpret_cast<sockaddr*>(&four) : reinterpret_cast<sockaddr*>(&six);
  if (::connect(fd, to, is_four ? sizeof(four) : sizeof(six)) == 0 || errno == EINPROGRESS) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

}  // namespace

PeerConnection::PeerConnection(int fd) : fd_(fd) {
  const int on = 1, idle_s = 10, interval_s = 5, probes = 6;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // A lost host says nothing. No TCP_USER_TIMEOUT: a peer whose disk is slow takes no bytes for a while.
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

PeerConnection::~PeerConnection() { ::close(fd_); }

Status PeerConnection::wait(short events) {
  const std::int64_t silent_ns = monotonic_ns() + silence_ns_;
  for (;;) {
    const std::int64_t now = monotonic_ns(), left = std::min(deadline_ns_, silent_ns) - now;
    if (left <= 0 && now < deadline_ns_)
      return Status::of(Code::kTimeout, ETIMEDOUT,
                        "the keeper has given no sign of life for %.0f s; see whether it or its host is stopped",
                        static_cast<double>(silence_ns_) / 1e9);
    if (left <= 0) return Status(Code::kTimeout, ETIMEDOUT, "the keeper does not answer in time");
    pollfd watched{fd_, events, 0};
    const int ready = ::poll(&watched, 1, static_cast<int>(std::min<std::int64_t>(left / 1'000'000 + 1, 1 << 30)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return lost(errno);
  }
}

Status PeerConnection::send_bytes(const void* from, std::size_t bytes) {
  const char* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t n = ::send(fd_, at, bytes, MSG_NOSIGNAL);
    if (n > 0) {
      at += n;
      bytes -= static_cast<std::size_t>(n);
    } else if (n < 0 && errno == EAGAIN) {
      SHADOWIB_TRY(wait(POLLOUT));
    } else if (errno != EINTR) {
      return lost(errno);
    }
  }
  return {};
}

Status PeerConnection::receive_bytes(void* to, std::size_t bytes) {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = ::recv(fd_, at, bytes, 0);
    if (n > 0) {
      at += n;
      bytes -= static_cast<std::size_t>(n);
    } else if (n == 0) {
      return lost(0);
    } else if (errno == EAGAIN) {
      SHADOWIB_TRY(wait(POLLIN));
    } else if (errno != EINTR) {
      return lost(errno);
    }
  }
  return {};
}

Status PeerConnection::send_file(int file, std::uint64_t offset, std::uint64_t bytes) {
  off_t at = static_cast<off_t>(offset);
  while (bytes > 0) {
    const ssize_t n = ::sendfile(fd_, file, &at, std::min<std::uint64_t>(bytes, 1 << 20));
    if (n == 0) return Status(Code::kCorrupt, 0, "the piece became shorter");
    if (n > 0)
      bytes -= static_cast<std::uint64_t>(n);
    else if (errno == EAGAIN)
      SHADOWIB_TRY(wait(POLLOUT));
    else if (errno != EINTR)
      return lost(errno);
  }
  return {};
}

Status PeerConnection::send(const Fields& fields) {
  const std::string text = encode_fields(fields);
  const auto bytes = static_cast<std::uint32_t>(text.size());
  SHADOWIB_TRY(send_bytes(&bytes, sizeof(bytes)));
  return send_bytes(text.data(), text.size());
}

Status PeerConnection::send_sign() {
  constexpr std::uint32_t kNothing = 0;
  return send_bytes(&kNothing, sizeof(kNothing));
}

Status PeerConnection::receive(Fields* fields) {
  std::uint32_t bytes = 0;
  while (bytes == 0) SHADOWIB_TRY(receive_bytes(&bytes, sizeof(bytes)));
  if (bytes > kMostFields) return Status::of(Code::kVersion, 0, "a message of %u bytes from a keeper", bytes);
  std::string text(bytes, '\0');
  SHADOWIB_TRY(receive_bytes(text.data(), bytes));
  return decode_fields(text, fields) ? Status() : Status(Code::kVersion, 0, "the keeper speaks another protocol");
}

Status PeerConnection::prove(const std::string& key) {
  const Hello mine = new_hello();
  Hello theirs;
  std::uint8_t proof[kProofBytes], expected[kProofBytes];
  SHADOWIB_TRY(send_bytes(&mine, sizeof(mine)));
  SHADOWIB_TRY(receive_bytes(&theirs, sizeof(theirs)));
  if (theirs.magic != kMagic) return Status(Code::kVersion, 0, "it is no keeper");
  if (theirs.version != kVersion)
    return Status(Code::kVersion, 0, "the keeper is of another shadowib; use one version in a job");
  keyed_proof(bytes_of(key), 'C', {{&mine, sizeof(mine)}, {&theirs, sizeof(theirs)}}, proof);
  SHADOWIB_TRY(send_bytes(proof, sizeof(proof)));
  SHADOWIB_TRY(receive_bytes(proof, sizeof(proof)));
  keyed_proof(bytes_of(key), 'S', {{&mine, sizeof(mine)}, {&theirs, sizeof(theirs)}}, expected);
  return same_proof(proof, expected) ? Status() : Status(Code::kPermission, EACCES, "it does not know the job's key");
}

Status PeerConnection::demand_proof(const std::string& key) {
  const Hello mine = new_hello();
  Hello theirs;
  std::uint8_t proof[kProofBytes], expected[kProofBytes];
  SHADOWIB_TRY(receive_bytes(&theirs, sizeof(theirs)));
  if (theirs.magic != kMagic) return Status(Code::kVersion, 0, "it speaks no protocol of keepers");
  SHADOWIB_TRY(send_bytes(&mine, sizeof(mine)));
  SHADOWIB_TRY(receive_bytes(proof, sizeof(proof)));
  keyed_proof(bytes_of(key), 'C', {{&theirs, sizeof(theirs)}, {&mine, sizeof(mine)}}, expected);
  if (!same_proof(proof, expected)) return Status(Code::kPermission, EACCES, "it does not know the job's key");
  keyed_proof(bytes_of(key), 'S', {{&theirs, sizeof(theirs)}, {&mine, sizeof(mine)}}, proof);
  return send_bytes(proof, sizeof(proof));
}

Status PeerConnection::connect(const std::vector<PeerAddress>& addresses, const std::string& key,
                               std::int64_t deadline_ns, std::unique_ptr<PeerConnection>* connection) {
  if (key.size() != kJobKeyBytes) return Status(Code::kCorrupt, 0, "the job's key has not 32 bytes");
  Status status(Code::kIo, EADDRNOTAVAIL, "the keeper has published no address");
  std::string tried;
  for (const PeerAddress& address : addresses) {
    tried += (tried.empty() ? "" : ", ") + address.host + " port " + std::to_string(address.port);
    const int fd = open_socket(address);
    if (fd < 0) {
      status = Status::of(Code::kIo, errno, "%.100s: %.60s", tried.c_str(), std::strerror(errno));
      continue;
    }
    std::unique_ptr<PeerConnection> made(new PeerConnection(fd));
    made->set_deadline(std::min(deadline_ns, monotonic_ns() + kAddressNs));
    if (status = made->prove(key); status.ok()) {
      made->set_deadline(deadline_ns);
      made->set_silence(kSilenceNs);
      *connection = std::move(made);
      return {};
    }
    status = Status::of(status.code(), status.error(), "%.150s: %.150s", tried.c_str(), status.text());
  }
  return status;
}

Status PeerConnection::accept(int fd, const std::string& key, std::int64_t deadline_ns,
                              std::unique_ptr<PeerConnection>* connection) {
  std::unique_ptr<PeerConnection> made(new PeerConnection(fd));
  made->set_deadline(deadline_ns);
  if (key.size() != kJobKeyBytes) return Status(Code::kCorrupt, 0, "the job's key has not 32 bytes");
  SHADOWIB_TRY(made->demand_proof(key));
  *connection = std::move(made);
  return {};
}

}  // namespace shadowib
