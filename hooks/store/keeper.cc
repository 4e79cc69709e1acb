#include "hooks/store/keeper.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <thread>

#include "hooks/job/near_directory.h"
#include "hooks/job/phase.h"
#include "hooks/store/files.h"
#include "hooks/store/keeper_client.h"
#include "hooks/store/near_place.h"
#include "hooks/store/pieces.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/processes.h"
#include "shadowib/base/this_host.h"

namespace shadowib {
namespace {

constexpr std::uint32_t kMostPeers = 64;
constexpr std::int64_t kProofNs = 5'000'000'000, kIdleNs = 600'000'000'000, kTransferNs = 3600'000'000'000;
constexpr std::int64_t kSignNs = 1'000'000'000;
constexpr std::uint32_t kTurnsBetweenLooks = 5;

// While it lives the peer is told each second that its request is being carried out. Nobody else may send.
class SignsOfLife {
 public:
  explicit SignsOfLife(PeerConnection& peer) : thread_([this, &peer] { tell(peer); }) {}
  ~SignsOfLife() {
    done_ = 1;
    futex_wake(&done_, 1);
    thread_.join();
  }
  SignsOfLife(const SignsOfLife&) = delete;
  SignsOfLife& operator=(const SignsOfLife&) = delete;

 private:
  void tell(PeerConnection& peer) {
    for (std::int64_t due_ns = monotonic_ns() + kSignNs; done_.load() == 0;) {
      if (const std::int64_t left_ns = due_ns - monotonic_ns(); left_ns > 0) {
        futex_wait(&done_, 0, left_ns);
        continue;
      }
      if (!peer.send_sign().ok()) return;  // whoever asked has gone, and hears of it by the reply
      due_ns = monotonic_ns() + kSignNs;
    }
  }

  std::atomic<std::uint32_t> done_{0};
  std::thread thread_;
};

// One request of a peer that has proved the key.
class Service {
 public:
  Service(const KeeperOptions& options, PeerConnection& peer) : options_(options), peer_(peer) {}

  Status answer(const Fields& request) {
    const std::string& operation = field_text(request, "op");
    set_ = {field_text(request, "place"), options_.job, field_text(request, "set")};
    if (operation == "get" && names_set()) return get(request);
    Fields fields;
    Status status;
    {
      SignsOfLife signs(peer_);
      status = carry_out(operation, request, &fields);
    }
    return reply(status, fields);
  }

 private:
  bool names_set() const { return !set_.place.empty() && set_.place[0] == '/' && valid_set_id(set_.set_id); }

  Status carry_out(const std::string& operation, const Fields& request, Fields* fields) {
    if (operation == "ping") return {};
    if (operation == "collect") return collect(field_number(request, "dry_run") != 0, fields);
    if (!names_set()) return Status(Code::kVersion, 0, "the request names no set");
    if (operation == "look") return look(field_text(request, "pieces"), fields);
    if (operation == "check") return check(field_text(request, "pieces"), fields);
    if (operation == "pull") return pull(request);
    if (operation == "hash") return hash(request, fields);
    if (operation == "make") return make(request, fields);
    if (operation == "drop") return remove_near_set(set_.place, set_.job, set_.set_id);
    return Status::of(Code::kVersion, 0, "the keeper knows no request '%.40s'", operation.c_str());
  }

  Status reply(const Status& status, Fields fields = {}) {
    fields.merge(fields_of_status(status));
    return peer_.send(fields);
  }

  Status collect(bool dry_run, Fields* fields) {
    std::vector<std::string> removed;
    const Status status = options_.collect ? options_.collect(dry_run, &removed) : Status();
    for (std::size_t i = 0; i < removed.size(); ++i) (*fields)["removed" + std::to_string(i)] = removed[i];
    return status;
  }

  // A piece whole, or `bytes` of it from `offset` on.
  Status get(const Fields& request) {
    const std::string& file = field_text(request, "file");
    int fd = -1;
    std::uint64_t size = 0;
    Status status = fault_point(Phase::kGive);
    if (status.ok())
      status = valid_piece_name(file) ? open_piece(set_, file, &fd, &size)
                                      : Status(Code::kVersion, 0, "the request names no piece");
    if (!status.ok()) return reply(status);
    const std::uint64_t offset = field_number(request, "offset");
    const std::uint64_t bytes = request.contains("bytes") ? field_number(request, "bytes") : size;
    if (offset > size || bytes > size - offset) {
      ::close(fd);
      return reply(Status::of(Code::kCorrupt, 0, "%.60s is shorter", file.c_str()));
    }
    status = reply({}, {{"bytes", std::to_string(bytes)}});
    if (status.ok()) status = peer_.send_file(fd, offset, bytes);
    ::close(fd);
    return status;
  }

  // Tells of each piece whether it is here, by its size.
  Status look(const std::string& text, Fields* fields) {
    std::vector<Piece> pieces;
    SHADOWIB_TRY(decode_pieces(text, &pieces));
    std::string& there = (*fields)["there"];
    for (const Piece& piece : pieces)
      if (has_piece(set_, piece)) there += (there.empty() ? "" : " ") + piece.file;
    return {};
  }

  // Tells of each piece whether it is here and right.
  Status check(const std::string& text, Fields* fields) {
    std::vector<Piece> pieces;
    SHADOWIB_TRY(decode_pieces(text, &pieces));
    std::string& good = (*fields)["good"];
    for (const Piece& piece : pieces)
      if (check_piece(set_, piece).ok()) good += (good.empty() ? "" : " ") + piece.file;
    return {};
  }

  // What the segments of this host's blob hold.
  Status hash(const Fields& request, Fields* fields) {
    ParityGroup group;
    SegmentHashes hashes;
    SHADOWIB_TRY(decode_group(request, &group));
    const std::uint64_t row = field_number(request, "row");
    if (row >= group.hosts.size()) return Status(Code::kVersion, 0, "the request names no host");
    SHADOWIB_TRY(hash_segments(set_, group, static_cast<int>(row), &hashes));
    std::string& text = (*fields)["hashes"];
    for (const std::string& hash : hashes) text += (text.empty() ? "" : " ") + hash;
    return {};
  }

  // Makes a piece of a group from those on other hosts.
  Status make(const Fields& request, Fields* fields) {
    ParityGroup group;
    std::vector<Piece> pieces;
    PieceHosts hosts;
    SHADOWIB_TRY(decode_group(request, &group));
    SHADOWIB_TRY(decode_pieces(field_text(request, "piece"), &pieces));
    SHADOWIB_TRY(decode_piece_hosts(field_text(request, "from"), &hosts));
    if (pieces.size() != 1) return Status(Code::kVersion, 0, "the request names no piece");
    SHADOWIB_TRY(make_piece(options_.directory, set_, group, hosts, told_hashes(request, group),
                            monotonic_ns() + kTransferNs, &pieces.front(), &(*fields)["failed"]));
    (*fields)["piece"] = encode_pieces(pieces);
    return {};
  }

  static std::vector<SegmentHashes> told_hashes(const Fields& request, const ParityGroup& group) {
    std::vector<SegmentHashes> hashes(group.hosts.size());
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      std::istringstream words(field_text(request, ("hashes" + std::to_string(i)).c_str()));
      for (std::string word; words >> word;) hashes[i].push_back(word);
    }
    return hashes;
  }

  Status pull(const Fields& request) {
    std::vector<Piece> pieces;
    KeeperInfo from;
    SHADOWIB_TRY(decode_pieces(field_text(request, "pieces"), &pieces));
    SHADOWIB_TRY(find_keeper(options_.directory, options_.job, field_text(request, "from"), &from));
    return fetch_pieces(options_.directory, from, set_, pieces, monotonic_ns() + kTransferNs);
  }

  const KeeperOptions& options_;
  PeerConnection& peer_;
  NearSetId set_;
};

class Keeper {
 public:
  explicit Keeper(const KeeperOptions& options) : options_(options) {}
  ~Keeper() {
    for (const pollfd& listener : listeners_) ::close(listener.fd);
    for (const int lock : {found_, only_}) close_owned_descriptor(lock);
  }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  Status run() {
    ::signal(SIGPIPE, SIG_IGN);  // sendfile() raises it when a peer has gone
    const std::string path = keeper_lock_path(options_.directory, options_.job, this_host());
    SHADOWIB_TRY(take_lock(path + ".only", &only_));
    KeeperInfo info{.host = this_host(),
                    .name = host_name(),
                    .domain = options_.domain.empty() ? this_machine() : options_.domain,
                    .pid = ::getpid()};
    SHADOWIB_TRY(listen(&info.addresses));
    SHADOWIB_TRY(publish_keeper(options_.directory, options_.job, info));
    // Last: the lock says that what stands beside it is this keeper's, and no earlier one's.
    SHADOWIB_TRY(take_lock(path, &found_));
    if (options_.ready) options_.ready();
    for (std::uint32_t turn = 1;; ++turn) {
      // Whoever comes then waits in a listener's queue, until somebody goes.
      if (const std::uint32_t peers = peers_.load(); peers >= kMostPeers)
        futex_wait(&peers_, peers, options_.turn_ms * std::int64_t{1'000'000});
      else if (::poll(listeners_.data(), listeners_.size(), options_.turn_ms) > 0)
        for (const pollfd& listener : listeners_)
          if ((listener.revents & POLLIN) != 0) take(listener.fd);
      if (turn % kTurnsBetweenLooks != 0) continue;
      if (!still_found()) break;
      if (peers_.load() == 0 && !options_.wanted()) break;
    }
    while (peers_.load() != 0) futex_wait(&peers_, peers_.load(), 1'000'000'000);
    return {};
  }

 private:
  Status take_lock(const std::string& path, int* lock) const {
    *lock = hold_alive_lock(path);
    if (*lock >= 0) return {};
    if (errno == EAGAIN || errno == EWOULDBLOCK)
      return Status::of(Code::kBusy, errno, "job %.64s has a keeper on this host already", options_.job.c_str());
    return file_error(errno, "lock", path);
  }

  // Its lock has not been removed with the job's directory.
  bool still_found() const {
    struct stat mine {
    }, there{};
    const std::string path = keeper_lock_path(options_.directory, options_.job, this_host());
    return ::fstat(found_, &mine) == 0 && ::stat(path.c_str(), &there) == 0 && mine.st_ino == there.st_ino;
  }

  Status listen(std::vector<PeerAddress>* addresses) {
    for (const HostAddress& address : options_.addresses) SHADOWIB_TRY(listen_at(address.address, addresses));
    Status status = listen_at(kLoopback4, addresses);
    return addresses->empty() ? status : Status();
  }

  Status listen_at(const IpAddress& address, std::vector<PeerAddress>* addresses) {
    sockaddr_in6 six{};
    sockaddr_in four{};
    six.sin6_family = AF_INET6, four.sin_family = AF_INET;
    std::memcpy(&six.sin6_addr, address.data(), 16);
    std::memcpy(&four.sin_addr, address.data() + 12, 4);
    const bool is_four = is_ipv4(address);
    auto* name = is_four ? reinterpret_cast<sockaddr*>(&four) : reinterpret_cast<sockaddr*>(&six);
    socklen_t bytes = is_four ? sizeof(four) : sizeof(six);
    const int fd = ::socket(is_four ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || ::bind(fd, name, bytes) != 0 || ::listen(fd, kMostPeers) != 0 ||
        ::getsockname(fd, name, &bytes) != 0) {
      const Status status = Status::of(Code::kIo, errno, "cannot listen on %.60s: %.60s", text_of(address).c_str(),
                                       std::strerror(errno));
      if (fd >= 0) ::close(fd);
      return status;
    }
    listeners_.push_back({fd, POLLIN, 0});
    addresses->push_back({text_of(address), ntohs(is_four ? four.sin_port : six.sin6_port)});
    return {};
  }

  void take(int listener) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    ++peers_;
    std::thread([this, fd] {
      serve(fd);
      --peers_;
      futex_wake(&peers_, 1);
    }).detach();
  }

  void serve(int fd) {
    std::string key;
    std::unique_ptr<PeerConnection> peer;
    // Read for each: a restart gives the job another key.
    (void)read_job_key(options_.directory, options_.job, &key).ok();
    if (!PeerConnection::accept(fd, key, monotonic_ns() + kProofNs, &peer).ok()) return;
    for (Fields request;; request.clear()) {
      peer->set_deadline(monotonic_ns() + kIdleNs);
      if (!peer->receive(&request).ok()) return;
      peer->set_deadline(monotonic_ns() + kTransferNs);
      if (!Service(options_, *peer).answer(request).ok()) return;
    }
  }

  const KeeperOptions& options_;
  int only_ = -1;   // the lock of the host's one keeper
  int found_ = -1;  // the lock of one whose addresses stand beside it
  std::vector<pollfd> listeners_;
  std::atomic<std::uint32_t> peers_{0};
};

}  // namespace

Status run_keeper(const KeeperOptions& options) { return Keeper(options).run(); }

}  // namespace shadowib
