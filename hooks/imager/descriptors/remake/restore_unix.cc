// Unix sockets: listeners, connected pairs, datagram sockets, with their names and queues.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "hooks/imager/descriptors/remake/restore.h"
#include "hooks/imager/descriptors/socket_options.h"
#include "shadowib/base/log.h"

namespace shadowib::descriptors {
namespace {

constexpr std::size_t kPathStart = offsetof(sockaddr_un, sun_path);

const sockaddr* address_of(const std::string& bytes) { return reinterpret_cast<const sockaddr*>(bytes.data()); }
socklen_t length_of(const std::string& bytes) { return static_cast<socklen_t>(bytes.size()); }

bool is_abstract(const std::string& name) { return name.size() <= kPathStart || name[kPathStart] == '\0'; }

// Relative socket names mean the member's working directory.
class WorkingDirectory {
 public:
  explicit WorkingDirectory(const std::string& path) : before_(::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC)) {
    moved_ = ::chdir(path.c_str()) == 0;
  }
  ~WorkingDirectory() {
    if (moved_ && ::fchdir(before_) != 0)
      log_line(LogLevel::kWarn, "restart: the working directory cannot be restored");
    ::close(before_);
  }
  WorkingDirectory(const WorkingDirectory&) = delete;
  WorkingDirectory& operator=(const WorkingDirectory&) = delete;

 private:
  int before_;
  bool moved_ = false;
};

class UnixRestorer {
 public:
  explicit UnixRestorer(Plan* plan) : plan_(*plan) {}

  Status run() {
    SHADOWIB_TRY(each([](const Object& o) { return !is_stream_end(o) && !is_mutual_datagram(o); },
                      &UnixRestorer::make_single));
    SHADOWIB_TRY(each(is_stream_end, &UnixRestorer::make_stream_pair));
    SHADOWIB_TRY(each(is_mutual_datagram, &UnixRestorer::make_datagram_pair));
    SHADOWIB_TRY(each([](const Object& o) { return o.type == SOCK_DGRAM; }, &UnixRestorer::connect_datagram));
    SHADOWIB_TRY(each([](const Object&) { return true; }, &UnixRestorer::fill));
    SHADOWIB_TRY(each([](const Object&) { return true; }, &UnixRestorer::finish));
    for (const auto& [inode, fd] : gone_peers_) ::close(fd);
    return {};
  }

 private:
  using Step = Status (UnixRestorer::*)(const Holder&);

  static bool is_stream_end(const Object& o) { return o.type != SOCK_DGRAM && o.state == SocketState::kConnected; }
  // Made by socketpair(), as only that connects unnamed ends; or each connected to the other's name: the same result.
  static bool is_mutual_datagram(const Object& o) { return o.type == SOCK_DGRAM && o.counterpart_gone; }

  template <typename Test>
  Status each(Test test, Step step) {
    for (const auto& [inode, holder] : plan_.links.sockets) {
      const Object& o = holder.object();
      if (o.kind == Kind::kUnix && !plan_.is_outside(o) && test(o)) SHADOWIB_TRY((this->*step)(holder));
    }
    return {};
  }

  int fd_of(std::uint64_t inode) const {
    auto at = made_.find(inode);
    return at == made_.end() ? -1 : at->second;
  }

  void made(const Object& o, int fd) {
    made_[o.inode] = plan_.own(fd);
    plan_.set_socket(o.inode, fd);
  }

  const Object* peer_of(const Object& o) const {
    auto at = plan_.links.sockets.find(o.peer_inode);
    return o.peer_inode == 0 || at == plan_.links.sockets.end() ? nullptr : &at->second.object();
  }

  // Binds to the recorded name. A socket file that nobody listens on any more is replaced.
  Status bind_name(int fd, const Holder& holder) {
    const Object& o = holder.object();
    if (o.local.empty()) return {};
    if (is_abstract(o.local))
      return ::bind(fd, address_of(o.local), length_of(o.local)) == 0
                 ? Status()
                 : restore_failure(Code::kRefused, o, "its name cannot be had", errno);
    WorkingDirectory directory(holder.table->working_directory);
    std::string path = o.local.c_str() + kPathStart;
    SHADOWIB_TRY(clear_stale_name(o, path));
    if (::bind(fd, address_of(o.local), length_of(o.local)) != 0)
      return restore_failure(Code::kRefused, o, "its name cannot be bound", errno);
    if (o.path_present)
      ::chmod(path.c_str(), o.mode & 07777);
    else
      ::unlink(path.c_str());
    return {};
  }

  Status clear_stale_name(const Object& o, const std::string& path) {
    struct stat st {};
    if (::lstat(path.c_str(), &st) != 0) return {};
    if (!S_ISSOCK(st.st_mode)) return restore_failure(Code::kRefused, o, "its path is not a socket any more", 0);
    int probe = ::socket(AF_UNIX, o.type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool refused = ::connect(probe, address_of(o.local), length_of(o.local)) != 0 && errno == ECONNREFUSED;
    ::close(probe);
    if (!refused) return restore_failure(Code::kBusy, o, "another process uses that socket now; stop it first", 0);
    ::unlink(path.c_str());
    return {};
  }

  Status new_socket(const Object& o, int* fd) {
    *fd = ::socket(AF_UNIX, o.type | SOCK_CLOEXEC, 0);
    if (*fd < 0) return restore_failure(Code::kIo, o, "socket fails", errno);
    apply_early_options(*fd, o.options);
    return {};
  }

  // A listener, or a socket that is not connected or can be connected by name.
  Status make_single(const Holder& holder) {
    const Object& o = holder.object();
    const Object* peer = peer_of(o);
    if (o.type == SOCK_DGRAM && peer != nullptr && peer->peer_inode == o.inode) return make_datagram_pair(holder);
    int fd = -1;
    SHADOWIB_TRY(new_socket(o, &fd));
    made(o, fd);
    SHADOWIB_TRY(bind_name(fd, holder));
    if (o.state == SocketState::kListening && ::listen(fd, o.backlog) != 0)
      return restore_failure(Code::kIo, o, "listen fails", errno);
    return {};
  }

  // Unnamed pairs need no listener; a lost name of a connected end is worth a warning only.
  Status make_unlistened_pair(const Holder& holder, const Holder* peer, int ends[2]) {
    const Object& o = holder.object();
    if (::socketpair(AF_UNIX, o.type | SOCK_CLOEXEC, 0, ends) != 0)
      return restore_failure(Code::kIo, o, "socketpair fails", errno);
    Status own = bind_name(ends[0], holder);
    Status other = peer != nullptr ? bind_name(ends[1], *peer) : Status();
    for (const Status& s : {own, other})
      if (!s.ok()) log_line(LogLevel::kWarn, "restart: a connected socket comes back unnamed: %s", s.text());
    return {};
  }

  // Through the listener that has the accepted end's name, so that getpeername tells the same as before.
  Status make_listened_pair(const Holder& accepted, const Holder* connecting, int listener, int ends[2]) {
    const Object& o = accepted.object();
    SHADOWIB_TRY(new_socket(o, &ends[1]));
    if (connecting != nullptr) SHADOWIB_TRY(bind_name(ends[1], *connecting));
    {
      WorkingDirectory directory(accepted.table->working_directory);
      if (::connect(ends[1], address_of(o.local), length_of(o.local)) != 0)
        return restore_failure(Code::kIo, o, "connecting to its restored listener fails", errno);
    }
    for (;;) {
      ends[0] = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (ends[0] < 0) return restore_failure(Code::kIo, o, "accept fails", errno);
      ucred who{};
      socklen_t length = sizeof(who);
      ::getsockopt(ends[0], SOL_SOCKET, SO_PEERCRED, &who, &length);
      if (who.pid == ::getpid()) return {};
      ::close(ends[0]);  // a stranger was quicker: it may connect again when the job runs
    }
  }

  int listener_named(const Table& table, const std::string& name) const {
    auto at = name.empty() ? plan_.links.unix_names.end() : plan_.links.unix_names.find(unix_key(table, name));
    if (at == plan_.links.unix_names.end()) return -1;
    return plan_.links.sockets.at(at->second).object().state == SocketState::kListening ? fd_of(at->second) : -1;
  }

  Status make_stream_pair(const Holder& holder) {
    const Object& o = holder.object();
    if (fd_of(o.inode) >= 0) return {};
    const Object* peer = peer_of(o);
    const Holder* peer_holder = peer != nullptr ? &plan_.links.sockets.at(o.peer_inode) : nullptr;
    int ends[2] = {-1, -1};
    if (int listener = listener_named(*holder.table, o.local); listener >= 0) {
      SHADOWIB_TRY(make_listened_pair(holder, peer_holder, listener, ends));
    } else if (listener = peer != nullptr ? listener_named(*peer_holder->table, peer->local) : -1; listener >= 0) {
      SHADOWIB_TRY(make_listened_pair(*peer_holder, &holder, listener, ends));
      std::swap(ends[0], ends[1]);
    } else {
      SHADOWIB_TRY(make_unlistened_pair(holder, peer_holder, ends));
    }
    made(o, ends[0]);
    if (peer != nullptr)
      made(*peer, ends[1]);
    else
      gone_peers_[o.inode] = ends[1];
    return {};
  }

  Status make_datagram_pair(const Holder& holder) {
    const Object& o = holder.object();
    if (fd_of(o.inode) >= 0) return {};
    const Object* peer = peer_of(o);
    int ends[2];
    SHADOWIB_TRY(
        make_unlistened_pair(holder, peer != nullptr ? &plan_.links.sockets.at(o.peer_inode) : nullptr, ends));
    made(o, ends[0]);
    if (peer != nullptr)
      made(*peer, ends[1]);
    else
      gone_peers_[o.inode] = ends[1];
    return {};
  }

  Status connect_datagram(const Holder& holder) {
    const Object& o = holder.object();
    const Object* peer = peer_of(o);
    if (o.state != SocketState::kConnected || peer == nullptr || peer->peer_inode == o.inode) return {};
    WorkingDirectory directory(plan_.links.sockets.at(o.peer_inode).table->working_directory);
    if (::connect(fd_of(o.inode), address_of(peer->local), length_of(peer->local)) == 0) return {};
    return restore_failure(Code::kIo, o, "connecting it to its peer fails", errno);
  }

  Status fill(const Holder& holder) {
    const Object& o = holder.object();
    if (o.queue.empty()) return {};
    int to = fd_of(o.inode);
    if (o.type != SOCK_DGRAM) {
      if (o.state != SocketState::kConnected)
        return restore_failure(Code::kCorrupt, o, "bytes without a connection", 0);
      const Object* peer = peer_of(o);
      return fill_stream(peer != nullptr ? fd_of(peer->inode) : gone_peers_.at(o.inode), to, o);
    }
    for (const Message& m : o.queue) SHADOWIB_TRY(send_datagram(holder, m));
    return {};
  }

  // A socket that has the name of one that is gone for as long as it sends. The name leads nowhere again then.
  int gone_sender(const Holder& holder, const std::string& name) {
    WorkingDirectory directory(holder.table->working_directory);
    const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (::bind(fd, address_of(name), length_of(name)) != 0)
      log_line(LogLevel::kWarn, "restart: %s: a datagram in flight comes back without its sender's name (%s)",
               describe_object(holder.object()).c_str(), std::strerror(errno));
    else if (!is_abstract(name))
      ::unlink(name.c_str() + kPathStart);
    return fd;
  }

  Status send_datagram(const Holder& holder, const Message& m) {
    const Object& o = holder.object();
    const Object* peer = peer_of(o);
    int from = -1;
    bool temporary = false;
    const auto named = plan_.links.unix_names.find(unix_key(*holder.table, m.source));
    if (named != plan_.links.unix_names.end()) {
      from = fd_of(named->second);
    } else if (!m.source.empty()) {
      from = gone_sender(holder, m.source);
      temporary = true;
    } else if (auto gone = gone_peers_.find(o.inode); gone != gone_peers_.end()) {
      from = gone->second;
    } else if (peer != nullptr && peer->local.empty()) {
      from = fd_of(peer->inode);
    } else {
      from = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
      temporary = true;
    }
    WorkingDirectory directory(holder.table->working_directory);
    bool connected = !temporary && (gone_peers_.contains(o.inode) ||
                                    (peer != nullptr && fd_of(peer->inode) == from && peer->peer_inode == o.inode));
    ssize_t n;
    int error;
    {
      MoreRoom room(from, fd_of(o.inode), Kind::kUnix);
      n = ::sendto(from, m.data.data(), m.data.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                   connected ? nullptr : address_of(o.local), connected ? 0 : length_of(o.local));
      error = errno;
    }
    if (temporary) ::close(from);
    if (n == static_cast<ssize_t>(m.data.size())) return {};
    return restore_failure(
        Code::kRefused, o,
        "a datagram in flight cannot be sent again; raise net.unix.max_dgram_qlen or net.core.wmem_max", error);
  }

  Status finish(const Holder& holder) {
    const Object& o = holder.object();
    int fd = fd_of(o.inode);
    auto gone = gone_peers_.find(o.inode);
    // A peer that closes without having read leaves ECONNRESET behind.
    if (gone != gone_peers_.end() && o.error_pending && o.type != SOCK_DGRAM)
      (void)::send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (o.shut_write) ::shutdown(fd, SHUT_WR);
    if (o.shut_read) ::shutdown(fd, SHUT_RD);
    if (const Option* failed = apply_options(fd, o.options))
      log_line(LogLevel::kWarn, "restart: %s: option %d of level %d cannot be set again", describe_object(o).c_str(),
               failed->name, failed->level);
    set_status_flags(fd, o.flags);
    return {};
  }

  Plan& plan_;
  std::map<std::uint64_t, int> made_;        // inode -> descriptor
  std::map<std::uint64_t, int> gone_peers_;  // inode of the survivor -> the end to be closed
};

}  // namespace

Status restore_unix(Plan* plan) { return UnixRestorer(plan).run(); }

}  // namespace shadowib::descriptors
