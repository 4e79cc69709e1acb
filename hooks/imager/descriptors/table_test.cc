// The table's encoding, against itself and against bytes that are not to be trusted.
#include "hooks/imager/descriptors/table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <pty.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/tests/test_job.h"
#include "hooks/imager/shared_memory.h"

namespace shadowib::descriptors {
namespace {

// A table with something of every family, captured from a real process.
std::string rich_table() {
  test::Job job;
  job.members = 1;
  job.before = [](int) -> std::string {
    int p[2];
    EXPECT_STEP(::pipe(p) == 0 && ::write(p[1], "pipe", 4) == 4);
    EXPECT_STEP(::socketpair(AF_UNIX, SOCK_DGRAM, 0, p) == 0 && ::send(p[0], "dgram", 5, 0) == 5);
    EXPECT_STEP(::socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0 && ::send(p[0], "stream", 6, 0) == 6);
    int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(in);
    EXPECT_STEP(::bind(listener, reinterpret_cast<sockaddr*>(&in), length) == 0 && ::listen(listener, 1) == 0);
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&in), &length);
    int client = ::socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_STEP(::connect(client, reinterpret_cast<sockaddr*>(&in), length) == 0);
    EXPECT_STEP(::accept(listener, nullptr, nullptr) >= 0 && ::send(client, "tcp", 3, 0) == 3);
    int event = ::eventfd(1, 0), epoll = ::epoll_create1(0);
    epoll_event e{};
    EXPECT_STEP(::epoll_ctl(epoll, EPOLL_CTL_ADD, event, &e) == 0);
    EXPECT_STEP(::open("/dev/zero", O_RDONLY) >= 0 && ::open("/", O_RDONLY) >= 0);
    EXPECT_STEP(::open("/proc/self/exe", O_RDONLY) >= 0);
    char locked[] = "/tmp/shadowib-table-XXXXXX";
    struct flock range {};
    range.l_type = F_WRLCK;
    range.l_len = 8;
    const int file = ::mkstemp(locked);
    EXPECT_STEP(::fcntl(file, F_SETLK, &range) == 0 && ::flock(file, LOCK_EX) == 0);
    int master = -1, slave = -1;
    EXPECT_STEP(::openpty(&master, &slave, nullptr, nullptr, nullptr) == 0 && ::write(master, "line\nrest", 9) == 9);
    int memory = ::memfd_create("memory", 0), segment = ::shmget(IPC_PRIVATE, 4096, 0600);
    EXPECT_STEP(::ftruncate(memory, 4096) == 0 && ::shmat(segment, nullptr, 0) != reinterpret_cast<void*>(-1));
    EXPECT_STEP(::shmctl(segment, IPC_RMID, nullptr) == 0);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(3);
    siginfo_t info{};
    EXPECT_STEP(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
    return "";
  };
  test::Capture capture = test::checkpoint(job);
  EXPECT_EQ(capture.failure, "");
  return capture.tables[0];
}

TEST(Table, EncodesWhatItDecodes) {
  std::string bytes = rich_table(), again;
  Table table;
  ASSERT_TRUE(decode_table(bytes, &table).ok());
  EXPECT_GE(table.descriptors.size(), 15u);
  ASSERT_EQ(table.children.size(), 1u);
  encode_table(table, &again);
  EXPECT_EQ(again, bytes);
  table.shared_files = {{0, 1, 0}, {3, 2, 0}};
  encode_table(table, &again);
  ASSERT_TRUE(decode_table(again, &table).ok());
  ASSERT_EQ(table.shared_files.size(), 2u);
  EXPECT_EQ(table.shared_files[1].member, 3u);
  EXPECT_EQ(table.shared_files[1].object, 2u);
  EXPECT_TRUE(match_descriptors({{0, bytes}}).ok());
  EXPECT_EQ(match_descriptors({{1, bytes}}).code(), Code::kCorrupt) << "another member's table";
}

// What the reader says of the rich table once it was changed.
Status read_after(const std::function<void(Table*)>& change) {
  Table table;
  EXPECT_TRUE(decode_table(rich_table(), &table).ok());
  change(&table);
  std::string bytes;
  encode_table(table, &bytes);
  return decode_table(bytes, &table);
}

TEST(Table, EveryTruncationIsRefused) {
  std::string bytes = rich_table();
  Table table;
  for (std::size_t length = 0; length < bytes.size(); ++length)
    ASSERT_FALSE(decode_table(bytes.substr(0, length), &table).ok()) << length;
  EXPECT_EQ(decode_table(bytes + "x", &table).code(), Code::kCorrupt);
  ++bytes[8];
  EXPECT_EQ(decode_table(bytes, &table).code(), Code::kVersion);
}

// As tables were before they told of shared memory, of what is in pseudo-terminals, of children, and of senders that
// are gone.
TEST(Table, TheVersionsBeforeAreRead) {
  Table table;
  ASSERT_TRUE(decode_table(rich_table(), &table).ok());
  table.segments.clear();
  const auto last = std::find_if(table.objects.begin(), table.objects.end(),
                                 [](const Object& o) { return o.kind == Kind::kMemory; });
  ASSERT_NE(last, table.objects.end());
  last->kind = Kind::kFile;
  std::string bytes;
  encode_table(table, &bytes, 2);
  Table before;
  const Status status = decode_table(bytes, &before);
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(before.objects.size(), table.objects.size());
  EXPECT_TRUE(before.segments.empty());
  for (const std::uint32_t version : {3u, 4u}) {
    encode_table(table, &bytes, version);
    ASSERT_TRUE(decode_table(bytes, &before).ok());
    EXPECT_EQ(before.objects.size(), table.objects.size());
    EXPECT_TRUE(before.children.empty());
  }
  for (Object& o : table.objects)
    for (Message& m : o.queue) m.sender_gone = 1;
  encode_table(table, &bytes, 5);
  ASSERT_TRUE(decode_table(bytes, &before).ok());
  EXPECT_EQ(before.children.size(), table.children.size());
  for (const Object& o : before.objects)
    for (const Message& m : o.queue) EXPECT_EQ(m.sender_gone, 0);
  encode_table(table, &bytes, 7);
  ASSERT_TRUE(decode_table(bytes, &before).ok());
  for (const Object& o : before.objects) EXPECT_TRUE(o.locks.empty());
  table.shared_files = {{0, 1, 0}};
  encode_table(table, &bytes, 10);
  ASSERT_TRUE(decode_table(bytes, &before).ok());
  EXPECT_TRUE(before.shared_files.empty());
}

TEST(Table, FileLocksAreSomeThereMayBe) {
  const auto with = [](const FileLock& lock, Kind kind) {
    return read_after([&](Table* table) {
      for (Object& o : table->objects)
        if (o.kind == kind) o.locks = {lock};
    });
  };
  EXPECT_TRUE(with({LockKind::kRecord, 1, 0, 8, 15}, Kind::kFile).ok());
  EXPECT_TRUE(with({LockKind::kFlock, 0, 77}, Kind::kDirectory).ok());
  EXPECT_EQ(with({LockKind::kRecord, 1, 0, 8, 15}, Kind::kPipe).code(), Code::kCorrupt);
  EXPECT_EQ(with({LockKind::kNone}, Kind::kFile).code(), Code::kCorrupt);
  EXPECT_EQ(with({static_cast<LockKind>(4)}, Kind::kFile).code(), Code::kCorrupt);
  EXPECT_EQ(with({LockKind::kRecord, 2}, Kind::kFile).code(), Code::kCorrupt);
  EXPECT_EQ(with({LockKind::kRecord, 1, 0, 15, 8}, Kind::kFile).code(), Code::kCorrupt);
  EXPECT_EQ(with({LockKind::kRecord, 1, 0, 1ull << 63}, Kind::kFile).code(), Code::kCorrupt);
}

TEST(Table, ChildrenAreSomeThereMayBe) {
  const auto fault = [](const std::function<void(Table*)>& change) { return read_after(change).code(); };
  EXPECT_EQ(fault([](Table*) {}), Code::kOk);
  EXPECT_EQ(fault([](Table* t) { t->children[0].pid = 1; }), Code::kCorrupt);
  EXPECT_EQ(fault([](Table* t) { t->children.push_back(t->children[0]); }), Code::kCorrupt);
  EXPECT_EQ(fault([](Table* t) { t->children[0].ended = 0; }), Code::kCorrupt);
  EXPECT_EQ(fault([](Table* t) { t->children[0].wait_status = 0x7f; }), Code::kCorrupt);
  EXPECT_EQ(fault([](Table* t) { t->children[0].wait_status = SIGKILL | 1 << 8; }), Code::kCorrupt);
  EXPECT_EQ(fault([](Table* t) { t->children[0].wait_status = 1 << 16; }), Code::kCorrupt);
  EXPECT_EQ(fault([](Table* t) { t->children[0].wait_status = SIGSTOP; }), Code::kCorrupt);
  EXPECT_EQ(fault([](Table* t) { t->children[0].wait_status = SIGTERM; }), Code::kOk);
}

// A restart would refuse such a set for ever: one IPC namespace cannot be that of two pid namespaces.
TEST(Table, IdsOfSystemVAreOfOnePidNamespace) {
  const auto judged = [](std::uint64_t processes, const std::function<void(Table*)>& share) {
    std::map<std::uint32_t, std::string> encoded;
    for (std::uint32_t member : {0, 1}) {
      Table table;
      table.member = member;
      table.pid = 77;
      table.kernel = "one";
      table.processes = member == 0 ? 5 : processes;
      share(&table);
      encode_table(table, &encoded[member]);
    }
    const Status matched = match_descriptors(encoded);
    std::map<std::uint32_t, std::string> duties;
    return matched.ok() ? assign_shared_memory(encoded, &duties) : matched;
  };
  const std::function<void(Table*)> shares[] = {
      [](Table* t) { t->queues.push_back({.space = 1, .id = 4, .capacity = 16384, .messages = {}}); },
      [](Table* t) {
        t->semaphores.push_back({.space = 1, .id = 4, .semaphores = {{5, 0, 0}}});
      },
      [](Table* t) {
        Segment s;
        s.kind = SegmentKind::kSystemV;
        s.space = 1;
        s.id = 4;
        s.inode = 4;
        s.bytes = 4096;
        s.low = 0;
        s.exact = 1;
        t->segments.push_back(s);
      },
  };
  for (const auto& share : shares) {
    EXPECT_EQ(judged(5, share).text(), std::string());
    const Status refused = judged(6, share);
    EXPECT_EQ(refused.code(), Code::kRefused);
    EXPECT_NE(std::string(refused.text()).find("members 0 and 1 share System V"), std::string::npos)
        << refused.text();
  }
}

TEST(Table, SemaphoresAndQueues) {
  Table table, read;
  table.pid = 77;
  table.semaphores.push_back(
      {.space = 1, .key = 2, .id = 3, .used = 1, .semaphores = {{5, 77, -2}, {32767, 0, 32767}}});
  table.queues.push_back({.space = 1, .id = 4, .capacity = 16384, .sender = 77, .messages = {{7, "text"}, {1, ""}}});
  std::string bytes, again;
  encode_table(table, &bytes);
  ASSERT_TRUE(decode_table(bytes, &read).ok());
  encode_table(read, &again);
  EXPECT_EQ(again, bytes);
  ASSERT_EQ(read.semaphores.size(), 1u);
  EXPECT_EQ(read.semaphores[0].semaphores[0].adjustment, -2);
  ASSERT_EQ(read.queues.size(), 1u);
  EXPECT_EQ(read.queues[0].messages[0].data, "text");
  EXPECT_TRUE(match_descriptors({{0, bytes}}).ok());
  encode_table(table, &bytes, 8);
  ASSERT_TRUE(decode_table(bytes, &read).ok());
  EXPECT_TRUE(read.semaphores.empty() && read.queues.empty());

  // A process that is no member uses them, too.
  const auto refusal = [&](const std::function<void(Table*)>& change) {
    Table changed = table;
    change(&changed);
    encode_table(changed, &bytes);
    return std::string(match_descriptors({{0, bytes}}).text());
  };
  EXPECT_NE(
      refusal([](Table* t) { t->semaphores[0].semaphores[1].user = 78; }).find("System V semaphore set 3 (key 0x2)"),
      std::string::npos);
  EXPECT_NE(refusal([](Table* t) { t->queues[0].receiver = 78; }).find("process 78 uses it too"), std::string::npos);

  const auto fault = [&](const std::function<void(Table*)>& change) {
    Table changed = table;
    change(&changed);
    encode_table(changed, &bytes);
    return decode_table(bytes, &read).code();
  };
  EXPECT_EQ(fault([](Table* t) { t->semaphores[0].semaphores.clear(); }), Code::kCorrupt);
  EXPECT_EQ(fault([](Table* t) { t->semaphores[0].semaphores[0].value = 32768; }), Code::kCorrupt);
  EXPECT_EQ(fault([](Table* t) { t->semaphores[0].semaphores[0].adjustment = -32769; }), Code::kCorrupt);
  EXPECT_EQ(fault([](Table* t) { t->semaphores[0].id = -1; }), Code::kCorrupt);
  EXPECT_EQ(fault([](Table* t) { t->queues[0].messages[0].type = 0; }), Code::kCorrupt);
}

// A hostile table must not have files made elsewhere, nor say twice what is once.
TEST(Table, SharedMemoryIsWhereItMayBe) {
  const auto fault = [](const std::function<void(Table*)>& change) { return std::string(read_after(change).text()); };
  for (const char* path :
       {"/etc/passwd", "/dev/shm/../../etc/passwd", "/dev/shm/", "/dev/shm/./x", "/dev/shm//x", "x"})
    EXPECT_NE(fault([path](Table* t) {
                t->segments[0].kind = SegmentKind::kNamed;
                t->segments[0].path = path;
              }).find("outside /dev/shm"),
              std::string::npos)
        << path;
  for (const char* path : {"/tmp/../etc/passwd", "/proc/self/mem", "/dev/sda", "tmp/x", "/tmp//x", "/"})
    EXPECT_NE(fault([path](Table* t) {
                t->segments[0].kind = SegmentKind::kSession;
                t->segments[0].path = path;
              }).find("where there can be none"),
              std::string::npos)
        << path;
  EXPECT_NE(fault([](Table* t) { t->segments.push_back(t->segments[0]); }).find("twice"), std::string::npos);
  EXPECT_NE(fault([](Table* t) { t->segments[0].kind = static_cast<SegmentKind>(7); }).find("unknown kind"),
            std::string::npos);
  EXPECT_NE(fault([](Table* t) { t->segments[0].bytes = ~0ull; }).find("impossible size"), std::string::npos);
  EXPECT_NE(fault([](Table* t) { t->segments.clear(); }).find("of no shared memory"), std::string::npos);
}

// Whatever the bytes are: an answer, never a crash, and no memory beyond a few times the table's size.
TEST(Table, MutatedBytesNeverCrash) {
  const std::string bytes = rich_table();
  unsigned seed = 20261120;
  std::mt19937 random(seed);
  int believed = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string mutated = bytes;
    for (unsigned n = random() % 4 + 1; n > 0; --n) {
      std::size_t at = random() % mutated.size();
      unsigned how = random() % 4;
      if (how == 0) mutated[at] = static_cast<char>(random());
      if (how == 1) mutated[at] = static_cast<char>(mutated[at] ^ (1 << random() % 8));
      if (how == 2) std::memset(mutated.data() + at, 0xff, std::min<std::size_t>(8, mutated.size() - at));
      if (how == 3) mutated.erase(at, random() % 16);
      if (mutated.empty()) mutated = "x";
    }
    std::string text;
    (void)match_descriptors({{0, mutated}});
    std::map<std::uint32_t, std::string> duties;
    (void)assign_shared_memory({{0, mutated}}, &duties);
    (void)assign_comparisons({{0, mutated}}, &duties);
    believed += print_descriptors(mutated, round % 2 == 0, &text).ok();
  }
  EXPECT_GT(believed, 0) << "seed " << seed << ": no mutation got past the decoder, so nothing behind it was tried";
}

TEST(Print, LinesAndJson) {
  std::string bytes = rich_table(), lines, json;
  ASSERT_TRUE(print_descriptors(bytes, false, &lines).ok());
  EXPECT_NE(lines.find("queued 3 bytes"), std::string::npos) << lines;
  EXPECT_NE(lines.find("listening"), std::string::npos);
  ASSERT_TRUE(print_descriptors(bytes, true, &json).ok());
  EXPECT_EQ(json[0], '[');
  EXPECT_NE(json.find("\"type\": \"eventfd\""), std::string::npos) << json;
}

}  // namespace
}  // namespace shadowib::descriptors
