// One member's descriptors, as the capture writes them and the commands read them.
//
// A Descriptor is a number; an Object is the open file description behind it, so two numbers made by dup() point at
// the same Object. Encoded little-endian with explicit lengths; decode_table() believes nothing it reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowib/base/status.h"

namespace shadowib::descriptors {

// Values are stored in images: append only.
enum class Kind : std::uint32_t {
  kFile = 1,
  kDirectory = 2,
  kDevice = 3,    // null, zero, full, random, urandom, and /dev/tty
  kTerminal = 4,  // of the command, as stdio, or the slave of a pseudo-terminal of the job
  kPipe = 5,
  kFifo = 6,
  kEventfd = 7,
  kTimerfd = 8,
  kSignalfd = 9,
  kEpoll = 10,
  kTcp = 11,
  kUdp = 12,
  kUnix = 13,
  kNetlink = 14,
  kLauncher = 15,    // the connection to what started the process
  kMemory = 16,      // of a Segment, which has the same device and inode
  kPty = 17,         // the master of a pseudo-terminal; slaves are kTerminal, with the same device and rdev
  kThreadFile = 18,  // what /proc has of a thread of the member's, a file or directory. Since version 7
};
inline constexpr std::uint32_t kLastKind = 18;
const char* kind_name(Kind kind);

struct Object;
bool is_pty_slave(const Object& object);

// A run of queued bytes; for datagrams and packets one message each.
struct Message {
  std::string source;  // sockaddr of the sender (Unix datagrams), else empty
  std::string data;
  std::uint8_t sender_gone = 0;  // nobody is to be reached by `source` any more. Since version 6.
};

struct Option {
  std::int32_t level = 0;
  std::int32_t name = 0;
  std::string value;
};

struct EpollEntry {
  std::int32_t fd = -1;
  std::uint32_t events = 0;
  std::uint64_t data = 0;
};

// A process that has an end of a pseudo-terminal open, as far as /proc tells.
struct PtyUser {
  std::uint64_t space = 0;  // its pid namespace (inode number)
  std::int32_t pid = 0;     // in there
  std::uint8_t slave = 0;
  std::string name;
};

enum class SocketState : std::uint8_t {
  kFresh = 0,  // made, perhaps bound or (UDP) connected
  kListening = 1,
  kConnected = 2,  // perhaps shut down in one or both directions
  kFinished = 3,   // TCP: both directions closed, the connection is over; the descriptor is still open
};

// Values are stored in images: append only.
enum class LockKind : std::uint8_t {
  kNone = 0,         // in no table
  kFlock = 1,        // flock(2): of the description, of the whole file
  kRecord = 2,       // F_SETLK: of the process
  kDescription = 3,  // F_OFD_SETLK: of the description
};
inline constexpr std::uint64_t kEndOfFile = ~0ull;

// A lock on a file, as the member that holds it sees it. Since version 8.
struct FileLock {
  LockKind kind = LockKind::kNone;
  std::uint8_t exclusive = 0;
  std::int32_t taker = 0;                     // kFlock: pid of the process that took it, whose children inherit it
  std::uint64_t start = 0, end = kEndOfFile;  // first and last byte; no end: all that there will ever be
  bool operator==(const FileLock&) const = default;
};

struct Object {
  Kind kind = Kind::kFile;
  std::int32_t flags = 0;  // F_GETFL
  std::uint64_t device = 0, inode = 0, rdev = 0;
  std::uint32_t mode = 0;
  std::string path;
  std::uint64_t offset = 0, size = 0;
  std::int32_t stdio = -1;  // 0, 1, 2: this is what standard input, output, error led to
  std::int32_t owner_type = 0, owner_pid = 0, signal = 0;  // F_SETOWN, F_SETSIG; pid 0: none

  std::uint64_t capacity = 0;         // pipe
  std::uint8_t counterpart_gone = 0;  // pipe, socket: nobody holds the other end any more
  std::uint8_t error_pending = 0;     // socket: ECONNRESET waits to be reported
  std::vector<Message> queue;         // pipe, socket: what is there to read

  std::uint64_t count = 0;       // eventfd count, timerfd ticks, signalfd mask
  std::uint64_t identity = 0;    // eventfd-id, 0 unknown
  std::uint32_t kind_flags = 0;  // EFD_SEMAPHORE; timerfd settime flags
  std::int32_t clock = 0;        // timerfd; value_ns is the time left, or the absolute time (TFD_TIMER_ABSTIME)
  std::uint64_t value_ns = 0, interval_ns = 0;
  std::vector<EpollEntry> entries;

  std::int32_t domain = 0, type = 0, protocol = 0;
  SocketState state = SocketState::kFresh;
  std::uint8_t shut_read = 0, shut_write = 0;  // shutdown() by this side
  std::uint8_t peer_shut = 0;                  // the other side closed its direction: end of file after the queue
  std::string local, remote;                   // sockaddr; empty: none
  std::uint64_t peer_inode = 0;                // Unix
  std::int32_t backlog = 0;                    // listener
  std::uint64_t undrained = 0;                 // TCP: bytes the receiver has not got
  std::uint8_t path_present = 0;               // Unix: the name is in the file system
  std::vector<Option> options;

  // Master of a pseudo-terminal; queue is what the slave has put out. Since version 4.
  std::uint32_t pty_flags = 0;  // kPty… of pty.h
  std::string modes, window;    // TerminalModes, struct winsize
  std::vector<Message> input;  // to be read at the slave; where lines count a line each, those without an end as well
  std::uint8_t unfinished = 0;  // the last of them
  std::vector<PtyUser> users;
  std::vector<FileLock> locks;  // files, directories and memory

  std::uint8_t inherited = 0;  // pipe, socket: given by whoever started the job (note_inherited). Since version 10
};

struct Descriptor {
  std::int32_t fd = -1;
  std::uint32_t object = 0;
  std::uint8_t close_on_exec = 0;
};

// Values are stored in images: append only.
enum class SegmentKind : std::uint32_t {
  kAnonymous = 1,  // MAP_SHARED | MAP_ANONYMOUS
  kMemfd = 2,
  kNamed = 3,     // a file in /dev/shm
  kUnlinked = 4,  // a file without a name: of /dev/shm, or of any other file system
  kSystemV = 5,
  kSession = 6,  // a file in a directory of the launcher's, which goes when that does
};
inline constexpr std::uint64_t kOutOfReach = ~0ull;

// Memory that processes may share, as one member sees it. Its content is in the image of one of those who have it.
struct Segment {
  SegmentKind kind = SegmentKind::kAnonymous;
  std::uint64_t device = 0, inode = 0;
  std::uint64_t mapped_device = 0;  // as /proc/self/maps tells, which some file systems have otherwise than stat
  std::string path;                 // kNamed, kSession and kUnlinked: where it is, or was; kMemfd: its name
  std::uint32_t mode = 0, user = 0, group = 0;
  std::uint64_t bytes = 0;  // its size, or if that cannot be seen (exact is 0) as far as it is mapped
  std::uint8_t exact = 0;
  std::uint64_t low = kOutOfReach;  // the member can read it from here on
  std::uint32_t seals = 0;          // kMemfd
  // kSystemV: of its IPC namespace the inode; attachments of this member, and of all processes.
  std::uint64_t space = 0;
  std::int32_t key = 0, id = 0;
  std::uint8_t removed = 0;  // IPC_RMID, to go with the last who has it attached
  std::uint64_t attached_here = 0, attached = 0;

  bool has_name() const { return kind == SegmentKind::kNamed || kind == SegmentKind::kSession; }
  // A file, of a file system that need not be in memory.
  bool may_be_on_disk() const {
    return kind == SegmentKind::kSession || (kind == SegmentKind::kUnlinked && !path.starts_with("/dev/shm/"));
  }
};

struct Semaphore {
  std::uint16_t value = 0;
  std::int32_t user = 0;        // the last process to operate on it, if it lives and is no restart's
  std::int32_t adjustment = 0;  // SEM_UNDO of this member
};

// System V semaphores that a member uses.
struct SemaphoreSet {
  std::uint64_t space = 0;  // IPC namespace (inode number)
  std::int32_t key = 0, id = 0;
  std::uint32_t mode = 0, user = 0, group = 0;
  std::uint8_t used = 0;  // sem_otime is set: programs take it for a sign that the set is ready
  std::vector<Semaphore> semaphores;
};

struct QueuedMessage {
  std::int64_t type = 0;
  std::string data;
};

// A System V message queue that a member uses.
struct MessageQueue {
  std::uint64_t space = 0;
  std::int32_t key = 0, id = 0;
  std::uint32_t mode = 0, user = 0, group = 0;
  std::uint64_t capacity = 0;             // msg_qbytes
  std::int32_t sender = 0, receiver = 0;  // the last of each, if it lives and is no restart's
  std::vector<QueuedMessage> messages;
};

// A child process of the member, as it sees it.
struct Child {
  std::int32_t pid = 0, group = 0, session = 0;
  std::uint8_t ended = 0;        // and nobody has waited for it yet
  std::int32_t wait_status = 0;  // of one that has ended, as waitpid(2) tells it
  std::string name;
};

// Object `object` of member `member` has the open file description of this number; of others in the list with this
// number, too. Objects in no list were not compared.
struct SharedFile {
  std::uint32_t member = 0, object = 0, description = 0;
};

struct Table {
  std::uint32_t member = 0;
  std::int32_t pid = 0;
  std::string kernel;           // boot id: inode numbers of pipes and sockets are one kernel's
  std::uint64_t network = 0;    // its network namespace (inode number): loopback addresses are one namespace's
  std::uint64_t processes = 0;  // its pid namespace (inode number)
  std::string working_directory;
  std::vector<Descriptor> descriptors;  // ascending by number
  std::vector<Object> objects;
  std::vector<Segment> segments;  // since version 3
  // Controlling terminal, if it is a slave of a pseudo-terminal: its device and rdev, else 0. Since version 4.
  std::uint64_t terminal_device = 0, terminal = 0;
  std::int32_t foreground = 0;  // its process group in the foreground
  // Since version 5.
  std::int32_t group = 0, session = 0;
  std::vector<Child> children;  // ascending by pid
  // Since version 9.
  std::vector<SemaphoreSet> semaphores;
  std::vector<MessageQueue> queues;
  std::vector<SharedFile> shared_files;  // as this member has found out for itself and others. Since version 11

  // The lowest number that leads to object `index`, -1 if none.
  int first_fd(std::uint32_t index) const;
  // The segment of the file with these numbers, -1 if there is none.
  int segment_of_file(std::uint64_t device, std::uint64_t inode) const;
};

inline constexpr std::uint32_t kTableVersion = 11;
// Tests write versions from before.
void encode_table(const Table& table, std::string* bytes, std::uint32_t version = kTableVersion);
// kCorrupt or kVersion, with the reason. On success all indices, kinds and addresses are within bounds.
Status decode_table(const std::string& bytes, Table* table);

// "tcp 127.0.0.1:5000 -> 10.0.0.1:80", "file /home/x/data", "unix @name": for messages and print.
std::string describe_object(const Object& object);
// "memfd ring", "System V segment 7 (key 0x4d2)", "/dev/shm/x", "anonymous shared memory 4711".
std::string describe_segment(const Segment& segment);
// "System V semaphore set 7 (key 0x4d2)", "System V message queue 7 (key 0)".
std::string describe_semaphores(const SemaphoreSet& set);
std::string describe_queue(const MessageQueue& queue);
// "127.0.0.1:80", "[::1]:80", "/path", "@abstract", "unnamed".
std::string describe_address(const std::string& address);

}  // namespace shadowib::descriptors
