#include "hooks/imager/descriptors/table.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <set>
#include <tuple>
#include <type_traits>

#include "hooks/imager/descriptors/pty.h"

namespace shadowib::descriptors {
namespace {

constexpr char kMagic[8] = {'S', 'I', 'B', 'F', 'D', 'T', 'A', 'B'};
constexpr std::uint32_t kWithoutSharedFiles = 10, kWithoutInherited = 9, kWithoutIpc = 8, kWithoutLocks = 7,
                        kWithoutGoneSenders = 5, kWithoutFamily = 4, kWithoutPtys = 3,
                        kWithoutSegments = 2;  // these are still read
constexpr int kHighestFd = 1 << 20;
constexpr std::size_t kMostInPty = 1 << 16;  // four buffers of the kernel's, of 4 and 8 KiB

struct Writer {
  std::string* out;
  std::uint32_t version;
  bool ok = true;
  template <typename T>
  void scalar(T& value) {
    out->append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void operator()(std::string& value) {
    std::uint64_t length = value.size();
    scalar(length);
    out->append(value);
  }
  template <typename T>
  std::size_t count(std::vector<T>& items) {
    std::uint32_t n = static_cast<std::uint32_t>(items.size());
    scalar(n);
    return n;
  }
};

struct Reader {
  const std::string* in;
  std::size_t at = 0;
  std::uint32_t version = 0;
  bool ok = true;
  template <typename T>
  void scalar(T& value) {
    if (!ok || in->size() - at < sizeof(T)) {
      ok = false;
      return;
    }
    std::memcpy(&value, in->data() + at, sizeof(T));
    at += sizeof(T);
  }
  void operator()(std::string& value) {
    std::uint64_t length = 0;
    scalar(length);
    if (!ok || length > in->size() - at) {
      ok = false;
      return;
    }
    value.assign(*in, at, length);
    at += length;
  }
  template <typename T>
  std::size_t count(std::vector<T>& items) {
    std::uint32_t n = 0;
    scalar(n);
    // An element takes at least nine bytes, so a forged count cannot make us allocate more than the table's size.
    if (!ok || n > (in->size() - at) / 9) {
      ok = false;
      return 0;
    }
    items.resize(n);
    return n;
  }
};

template <typename A, typename T>
requires(std::is_integral_v<T> || std::is_enum_v<T>) void visit(A& a, T& value) { a.scalar(value); }
template <typename A>
void visit(A& a, std::string& value) {
  a(value);
}
template <typename A, typename... Fields>
void visit_all(A& a, Fields&... fields) {
  (visit(a, fields), ...);
}
template <typename A>
void visit(A& a, Message& m) {
  visit_all(a, m.source, m.data);
  if (a.version > kWithoutGoneSenders) visit(a, m.sender_gone);
}
template <typename A>
void visit(A& a, Option& o) {
  visit_all(a, o.level, o.name, o.value);
}
template <typename A>
void visit(A& a, EpollEntry& e) {
  visit_all(a, e.fd, e.events, e.data);
}
template <typename A>
void visit(A& a, PtyUser& u) {
  visit_all(a, u.space, u.pid, u.slave, u.name);
}
template <typename A>
void visit(A& a, FileLock& l) {
  visit_all(a, l.kind, l.exclusive, l.taker, l.start, l.end);
}
template <typename A>
void visit(A& a, Descriptor& d) {
  visit_all(a, d.fd, d.object, d.close_on_exec);
}
template <typename A, typename T>
void visit_vector(A& a, std::vector<T>& items) {
  std::size_t n = a.count(items);
  for (std::size_t i = 0; i < n && a.ok; ++i) visit(a, items[i]);
}
template <typename A>
void visit(A& a, Object& o) {
  visit_all(a, o.kind, o.flags, o.device, o.inode, o.rdev, o.mode, o.path, o.offset, o.size, o.stdio, o.owner_type,
            o.owner_pid, o.signal, o.capacity, o.counterpart_gone, o.error_pending);
  visit_vector(a, o.queue);
  visit_all(a, o.count, o.identity, o.kind_flags, o.clock, o.value_ns, o.interval_ns);
  visit_vector(a, o.entries);
  visit_all(a, o.domain, o.type, o.protocol, o.state, o.shut_read, o.shut_write, o.peer_shut, o.local, o.remote,
            o.peer_inode, o.backlog, o.undrained, o.path_present);
  visit_vector(a, o.options);
  if (a.version <= kWithoutPtys) return;
  visit_all(a, o.pty_flags, o.modes, o.window, o.unfinished);
  visit_vector(a, o.input);
  visit_vector(a, o.users);
  if (a.version <= kWithoutLocks) return;
  visit_vector(a, o.locks);
  if (a.version > kWithoutInherited) visit(a, o.inherited);
}
template <typename A>
void visit(A& a, Child& c) {
  visit_all(a, c.pid, c.group, c.session, c.ended, c.wait_status, c.name);
}
template <typename A>
void visit(A& a, Segment& s) {
  visit_all(a, s.kind, s.device, s.inode, s.mapped_device, s.path, s.mode, s.user, s.group, s.bytes, s.exact, s.low,
            s.seals, s.space, s.key, s.id, s.removed, s.attached_here, s.attached);
}
template <typename A>
void visit(A& a, Semaphore& s) {
  visit_all(a, s.value, s.user, s.adjustment);
}
template <typename A>
void visit(A& a, SemaphoreSet& s) {
  visit_all(a, s.space, s.key, s.id, s.mode, s.user, s.group, s.used);
  visit_vector(a, s.semaphores);
}
template <typename A>
void visit(A& a, QueuedMessage& m) {
  visit_all(a, m.type, m.data);
}
template <typename A>
void visit(A& a, MessageQueue& q) {
  visit_all(a, q.space, q.key, q.id, q.mode, q.user, q.group, q.capacity, q.sender, q.receiver);
  visit_vector(a, q.messages);
}
template <typename A>
void visit(A& a, SharedFile& f) {
  visit_all(a, f.member, f.object, f.description);
}
template <typename A>
void visit(A& a, Table& t) {
  visit_all(a, t.member, t.pid, t.kernel, t.network, t.processes, t.working_directory);
  visit_vector(a, t.descriptors);
  visit_vector(a, t.objects);
  if (a.version > kWithoutSegments) visit_vector(a, t.segments);
  if (a.version > kWithoutPtys) visit_all(a, t.terminal_device, t.terminal, t.foreground);
  if (a.version <= kWithoutFamily) return;
  visit_all(a, t.group, t.session);
  visit_vector(a, t.children);
  if (a.version <= kWithoutIpc) return;
  visit_vector(a, t.semaphores);
  visit_vector(a, t.queues);
  if (a.version > kWithoutSharedFiles) visit_vector(a, t.shared_files);
}

bool valid_address(const std::string& address, int domain) {
  if (address.empty()) return true;
  if (address.size() < sizeof(sa_family_t) || address.size() > sizeof(sockaddr_storage)) return false;
  sa_family_t family;
  std::memcpy(&family, address.data(), sizeof(family));
  if (family != domain) return false;
  if (family == AF_INET) return address.size() == sizeof(sockaddr_in);
  if (family == AF_INET6) return address.size() == sizeof(sockaddr_in6);
  return family == AF_NETLINK || (family == AF_UNIX && address.size() <= sizeof(sockaddr_un));
}

bool has_nul(const std::string& text) { return text.find('\0') != std::string::npos; }

bool is_socket(Kind kind) {
  return kind == Kind::kTcp || kind == Kind::kUdp || kind == Kind::kUnix || kind == Kind::kNetlink;
}

const char* pty_fault(const Object& o) {
  if ((o.pty_flags & kPtyContents) == 0) return nullptr;
  if (o.modes.size() != sizeof(TerminalModes) || o.window.size() != sizeof(winsize))
    return "modes or window of a terminal are none";
  std::size_t bytes = 0;
  for (const auto* queue : {&o.queue, &o.input})
    for (const Message& m : *queue) bytes += m.data.size() + 1;
  return bytes > kMostInPty ? "more in a terminal than the kernel keeps there" : nullptr;
}

const char* lock_fault(const Object& o) {
  for (const FileLock& l : o.locks) {
    if (l.kind < LockKind::kFlock || l.kind > LockKind::kDescription || l.exclusive > 1)
      return "unknown kind of file lock";
    if (l.start > l.end || l.start > INT64_MAX || (l.end != kEndOfFile && l.end > INT64_MAX))
      return "file lock of an impossible range";
  }
  const bool lockable = o.kind == Kind::kFile || o.kind == Kind::kDirectory || o.kind == Kind::kMemory;
  return o.locks.empty() || lockable ? nullptr : "file lock on what is no file";
}

const char* object_fault(const Object& o) {
  auto kind = static_cast<std::uint32_t>(o.kind);
  if (kind < 1 || kind > kLastKind) return "unknown kind of object";
  if (o.stdio < -1 || o.stdio > 2) return "standard stream out of range";
  if (has_nul(o.path)) return "path with a NUL byte";
  if (const char* fault = lock_fault(o)) return fault;
  if (o.kind == Kind::kPty) return pty_fault(o);
  if (is_socket(o.kind)) {
    if (static_cast<unsigned>(o.state) > 3) return "unknown socket state";
    bool inet = o.domain == AF_INET || o.domain == AF_INET6;
    if ((o.kind == Kind::kTcp || o.kind == Kind::kUdp) && !inet) return "IP socket of another family";
    if (o.kind == Kind::kUnix && o.domain != AF_UNIX) return "Unix socket of another family";
    if (!valid_address(o.local, o.domain) || !valid_address(o.remote, o.domain)) return "malformed socket address";
    if (o.kind == Kind::kTcp && o.state == SocketState::kConnected && (o.local.empty() || o.remote.empty()))
      return "TCP connection without addresses";
    for (const Message& m : o.queue)
      if (!valid_address(m.source, o.domain)) return "malformed sender address";
    for (const Option& option : o.options)
      if (option.value.size() > 64) return "oversized socket option";
  }
  return nullptr;
}

// A file is made by this name, so it must not lead elsewhere.
bool is_straight(std::string_view path) {
  if (path.empty() || path[0] != '/' || path.size() > 4000) return false;
  for (std::size_t at = 1, end = 0; end != std::string::npos; at = end + 1) {
    end = path.find('/', at);
    const std::string_view part = path.substr(at, end == std::string::npos ? end : end - at);
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

bool is_below_shm(const std::string& path) { return path.starts_with("/dev/shm/") && is_straight(path); }

bool is_below_kernels(const std::string& path) {
  return path.starts_with("/dev/") || path.starts_with("/proc/") || path.starts_with("/sys/");
}

const char* segment_fault(const Segment& s) {
  const auto kind = static_cast<std::uint32_t>(s.kind);
  if (kind < 1 || kind > 6) return "unknown kind of shared memory";
  if (has_nul(s.path)) return "path with a NUL byte";
  if (s.kind == SegmentKind::kNamed && !is_below_shm(s.path)) return "shared memory outside /dev/shm";
  if (s.kind == SegmentKind::kSession && (!is_straight(s.path) || is_below_kernels(s.path)))
    return "a file of a launcher's session where there can be none";
  if (s.kind == SegmentKind::kUnlinked && (s.path.empty() || s.path[0] != '/')) return "a file's path is none";
  if (s.bytes > 1ull << 60 || (s.low > s.bytes && s.low != kOutOfReach)) return "shared memory of impossible size";
  return nullptr;
}

const char* segments_fault(const Table& t) {
  std::set<std::tuple<bool, std::uint64_t, std::uint64_t>> seen;
  for (const Segment& s : t.segments) {
    if (const char* fault = segment_fault(s)) return fault;
    const bool numbered = s.kind == SegmentKind::kSystemV;
    if (!seen.emplace(numbered, numbered ? s.space : s.device, numbered ? static_cast<std::uint32_t>(s.id) : s.inode)
             .second)
      return "shared memory listed twice";
  }
  for (const Object& o : t.objects)
    if (o.kind == Kind::kMemory && !seen.contains({false, o.device, o.inode}))
      return "descriptor of no shared memory";
  return nullptr;
}

// If nobody handles it.
bool ends_a_process(int signal) {
  for (const int other : {SIGCHLD, SIGCONT, SIGURG, SIGWINCH, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU})
    if (signal == other) return false;
  return signal <= 64;
}

const char* family_fault(const Table& t) {
  std::int32_t last = 1;
  for (const Child& c : t.children) {
    if (c.pid <= last) return "child processes not ascending or out of range";
    const int status = c.wait_status, signal = status & 0x7f;
    if (c.ended > 1 || (c.ended == 0 && status != 0)) return "end of a process that lives";
    if (c.ended != 0 && !(signal == 0 ? (status & ~0xff00) == 0 : status == signal && ends_a_process(signal)))
      return "end of a process that is none";
    last = c.pid;
  }
  return nullptr;
}

const char* ipc_fault(const Table& t) {
  constexpr int kMost = 32767;  // SEMVMX, SEMAEM
  for (const SemaphoreSet& s : t.semaphores) {
    if (s.id < 0 || s.semaphores.empty() || s.semaphores.size() > 65535) return "a set of semaphores that is none";
    for (const Semaphore& one : s.semaphores)
      if (one.value > kMost || one.adjustment > kMost || one.adjustment < -kMost - 1)
        return "a semaphore out of range";
  }
  for (const MessageQueue& q : t.queues) {
    if (q.id < 0) return "a message queue that is none";
    for (const QueuedMessage& m : q.messages)
      if (m.type <= 0) return "a message of no type";
  }
  return nullptr;
}

const char* table_fault(const Table& t) {
  if (has_nul(t.working_directory)) return "path with a NUL byte";
  int last = -1;
  for (const Descriptor& d : t.descriptors) {
    if (d.fd <= last || d.fd >= kHighestFd) return "descriptor numbers not ascending or out of range";
    if (d.object >= t.objects.size()) return "descriptor without object";
    last = d.fd;
  }
  for (const Object& o : t.objects)
    if (const char* fault = object_fault(o)) return fault;
  std::vector<bool> reached(t.objects.size());
  for (const Descriptor& d : t.descriptors) reached[d.object] = true;
  for (bool r : reached)
    if (!r) return "object without descriptor";
  if (const char* fault = family_fault(t)) return fault;
  if (const char* fault = ipc_fault(t)) return fault;
  return segments_fault(t);
}

std::string describe_numbered(const char* what, std::int32_t id, std::int32_t key) {
  char text[64];
  std::snprintf(text, sizeof(text), "System V %s %d (key %#x)", what, id, static_cast<unsigned>(key));
  return text;
}

}  // namespace

int Table::first_fd(std::uint32_t index) const {
  for (const Descriptor& d : descriptors)
    if (d.object == index) return d.fd;
  return -1;
}

int Table::segment_of_file(std::uint64_t device, std::uint64_t inode) const {
  for (std::size_t i = 0; i < segments.size(); ++i)
    if (segments[i].kind != SegmentKind::kSystemV && segments[i].device == device && segments[i].inode == inode)
      return static_cast<int>(i);
  return -1;
}

bool is_pty_slave(const Object& o) {
  constexpr unsigned kSlaves = 136;  // Unix 98; their numbers are minor numbers
  return o.kind == Kind::kTerminal && major(o.rdev) == kSlaves;
}

const char* kind_name(Kind kind) {
  static const char* const kNames[] = {
      "?",       "file",     "directory",       "device", "terminal", "pipe", "fifo",    "eventfd",
      "timerfd", "signalfd", "epoll",           "tcp",    "udp",      "unix", "netlink", "launcher",
      "memory",  "pty",      "file of a thread"};
  auto i = static_cast<std::uint32_t>(kind);
  return i <= kLastKind ? kNames[i] : kNames[0];
}

void encode_table(const Table& table, std::string* bytes, std::uint32_t version) {
  std::size_t queued = 0;
  for (const Object& o : table.objects)
    for (const auto* queue : {&o.queue, &o.input})
      for (const Message& m : *queue) queued += m.data.size();
  bytes->clear();
  bytes->reserve(queued + 4096 + table.objects.size() * 1024);
  bytes->append(kMagic, sizeof(kMagic));
  Writer writer{bytes, version};
  writer.scalar(writer.version);
  visit(writer, const_cast<Table&>(table));
}

Status decode_table(const std::string& bytes, Table* table) {
  if (bytes.size() < sizeof(kMagic) + 4 || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0)
    return Status(Code::kCorrupt, 0, "descriptor table: no table here (magic bytes missing)");
  Reader reader{&bytes, sizeof(kMagic)};
  reader.scalar(reader.version);
  if (reader.version < kWithoutSegments || reader.version > kTableVersion)
    return Status::of(Code::kVersion, 0, "descriptor table: format %u, this shadowib reads %u to %u", reader.version,
                      kWithoutSegments, kTableVersion);
  *table = Table();
  visit(reader, *table);
  if (!reader.ok) return Status::of(Code::kCorrupt, 0, "descriptor table: ends early, at byte %zu", reader.at);
  if (reader.at != bytes.size())
    return Status::of(Code::kCorrupt, 0, "descriptor table: %zu bytes too many", bytes.size() - reader.at);
  if (const char* fault = table_fault(*table)) return Status::of(Code::kCorrupt, 0, "descriptor table: %s", fault);
  return {};
}

std::string describe_address(const std::string& address) {
  sockaddr_storage storage{};
  std::memcpy(&storage, address.data(), address.size() < sizeof(storage) ? address.size() : sizeof(storage));
  char text[INET6_ADDRSTRLEN + 16] = "unnamed", host[INET6_ADDRSTRLEN] = "";
  if (address.size() >= sizeof(sockaddr_in) && storage.ss_family == AF_INET) {
    auto* in = reinterpret_cast<sockaddr_in*>(&storage);
    ::inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
    std::snprintf(text, sizeof(text), "%s:%u", host, ntohs(in->sin_port));
  } else if (address.size() >= sizeof(sockaddr_in6) && storage.ss_family == AF_INET6) {
    auto* in = reinterpret_cast<sockaddr_in6*>(&storage);
    ::inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof(host));
    std::snprintf(text, sizeof(text), "[%s]:%u", host, ntohs(in->sin6_port));
  } else if (storage.ss_family == AF_UNIX && address.size() > offsetof(sockaddr_un, sun_path)) {
    std::string name = address.substr(offsetof(sockaddr_un, sun_path));
    if (name[0] == '\0')
      name[0] = '@';
    else
      name = name.c_str();
    return name;
  }
  return text;
}

std::string describe_semaphores(const SemaphoreSet& s) { return describe_numbered("semaphore set", s.id, s.key); }
std::string describe_queue(const MessageQueue& q) { return describe_numbered("message queue", q.id, q.key); }

std::string describe_segment(const Segment& s) {
  char key[16];
  std::snprintf(key, sizeof(key), "%#x", static_cast<unsigned>(s.key));
  switch (s.kind) {
    case SegmentKind::kAnonymous:
      return "anonymous shared memory " + std::to_string(s.inode);
    case SegmentKind::kMemfd:
      return "memfd " + s.path;
    case SegmentKind::kNamed:
    case SegmentKind::kSession:
      return s.path;
    case SegmentKind::kUnlinked:
      return "deleted file " + s.path;
    case SegmentKind::kSystemV:
      return "System V segment " + std::to_string(s.id) + " (key " + key + ")";
  }
  return "shared memory";
}

std::string describe_object(const Object& o) {
  std::string text = kind_name(o.kind);
  if (o.kind == Kind::kPipe) return text + ":[" + std::to_string(o.inode) + "]";
  if (is_socket(o.kind)) {
    if (!o.local.empty()) text += " " + describe_address(o.local);
    if (o.state == SocketState::kListening) text += " listening";
    if (!o.remote.empty()) text += " -> " + describe_address(o.remote);
    return text;
  }
  if (!o.path.empty()) text += " " + o.path;
  return text;
}

}  // namespace shadowib::descriptors
