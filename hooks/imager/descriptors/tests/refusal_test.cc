// What cannot be captured is refused by descriptor number, type and pid, before anything is written; the process goes
// on.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <mqueue.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/tests/test_job.h"
#include "hooks/imager/descriptors/tests/test_sockets.h"

namespace shadowib::test {
namespace {

std::string with_errno(const char* call) { return std::string("SKIP: ") + call + ": " + ::strerror(errno); }

// Namespaces of the process's own, by way of a user namespace if it is nobody special.
bool own_namespaces(int which) {
  if (::geteuid() == 0) return ::unshare(which) == 0;
  auto write_line = [](const char* path, const std::string& line) {
    int f = ::open(path, O_WRONLY);
    bool written = ::write(f, line.data(), line.size()) == static_cast<ssize_t>(line.size());
    ::close(f);
    return written;
  };
  std::string user = "0 " + std::to_string(::geteuid()) + " 1", group = "0 " + std::to_string(::getegid()) + " 1";
  return ::unshare(CLONE_NEWUSER | which) == 0 && write_line("/proc/self/uid_map", user) &&
         write_line("/proc/self/setgroups", "deny") && write_line("/proc/self/gid_map", group);
}

int privileged_socket(int domain, int protocol) {
  int fd = ::socket(domain, SOCK_RAW, protocol);
  if (fd < 0 && errno == EPERM && own_namespaces(CLONE_NEWNET)) fd = ::socket(domain, SOCK_RAW, protocol);
  return fd;
}

// `open_it` makes descriptor 9 in the only member; the refusal must name it. "SKIP: why" where the kernel lacks it.
// `passes`: the command is told to try again in a moment.
void expect_refused(const std::string& type, const Step& open_it, const Step& unharmed = nullptr,
                    bool passes = false) {
  SCOPED_TRACE(type);
  std::string reason_file = scratch_directory() + "/skip";
  ::unlink(reason_file.c_str());
  Job job;
  job.members = 1;
  job.before = [&](int member) -> std::string {
    std::string words = open_it(member);
    if (!words.starts_with("SKIP")) return words;
    int f = ::open(reason_file.c_str(), O_CREAT | O_WRONLY, 0600);
    ssize_t n = ::write(f, words.data(), words.size());
    ::close(f);
    return n > 0 ? "" : "write";
  };
  job.resumed = unharmed;
  Capture capture = checkpoint(job);
  if (::access(reason_file.c_str(), F_OK) == 0) {
    int f = ::open(reason_file.c_str(), O_RDONLY);
    GTEST_SKIP() << read_some(f, 200);
  }
  ASSERT_EQ(capture.failure, "");
  EXPECT_EQ(capture.passing.contains(0), passes);
  std::string text = capture.refusals.contains(0) ? capture.refusals[0] : "";
  if (text.empty()) {
    Status matched = match_descriptors(capture.tables);
    EXPECT_EQ(matched.code(), Code::kRefused);
    text = matched.text();
  }
  EXPECT_NE(text.find("descriptor 9 "), std::string::npos) << text;
  EXPECT_NE(text.find(type), std::string::npos) << text;
  EXPECT_NE(text.find("of pid "), std::string::npos) << text;
}

// A step that puts the result of `call` at 9.
template <typename Call>
Step opens(Call call) {
  return [call](int) -> std::string {
    int fd = call();
    if (fd < 0) return with_errno("this call");
    EXPECT_STEP(put(fd, 9) == 9);
    return "";
  };
}

void expect_refused_for_now(const std::string& type, const Step& open_it) {
  expect_refused(type, open_it, nullptr, true);
}

TEST(Refused, Inotify) {
  expect_refused("inotify", opens([] { return ::inotify_init1(0); }));
}
TEST(Refused, Fanotify) {
  expect_refused("fanotify", opens([] { return ::fanotify_init(FAN_REPORT_FID | FAN_CLASS_NOTIF, O_RDONLY); }));
}
TEST(Refused, IoUring) {
  expect_refused("io_uring", opens([] {
                   io_uring_params parameters{};
                   return static_cast<int>(::syscall(SYS_io_uring_setup, 4, &parameters));
                 }));
}
TEST(Refused, MessageQueue) {
  const std::string name = "/shadowib-test-" + std::to_string(::getpid());
  expect_refused("POSIX message queue", opens([&] {
                   mq_attr attributes{};
                   attributes.mq_maxmsg = 2;
                   attributes.mq_msgsize = 16;
                   const int fd = ::mq_open(name.c_str(), O_CREAT | O_RDWR, 0600, &attributes);
                   ::mq_unlink(name.c_str());
                   return fd;
                 }));
}
TEST(Refused, SocketsByTheirNames) {
  constexpr int kMptcp = 262;
  const int fd = ::socket(AF_INET, SOCK_STREAM, kMptcp);
  if (fd >= 0) {
    ::close(fd);
    expect_refused("Multipath TCP socket", opens([] { return ::socket(AF_INET, SOCK_STREAM, kMptcp); }));
  }
  expect_refused("UDP-Lite socket", opens([] { return ::socket(AF_INET, SOCK_DGRAM, IPPROTO_UDPLITE); }));
}
TEST(Refused, Userfaultfd) {
  expect_refused("userfaultfd",
                 opens([] { return static_cast<int>(::syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY)); }));
}
TEST(Refused, Pidfd) {
  expect_refused("pidfd", opens([] { return static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)); }));
}
TEST(Refused, FileOfAnotherProcess) {
  const std::string path = "/proc/" + std::to_string(::getpid()) + "/status";
  expect_refused("file " + path, opens([&] { return ::open(path.c_str(), O_RDONLY); }));
}
TEST(Refused, FileOfAnotherProcesssThread) {
  int told[2];
  ASSERT_EQ(::pipe(told), 0);
  const pid_t outsider = ::fork();
  if (outsider == 0) {
    std::thread([&] {
      const long tid = ::syscall(SYS_gettid);
      if (::write(told[1], &tid, sizeof(tid)) == sizeof(tid)) ::pause();
    }).join();
    ::_exit(1);
  }
  long tid = 0;
  ASSERT_EQ(::read(told[0], &tid, sizeof(tid)), static_cast<ssize_t>(sizeof(tid)));
  const std::string path = "/proc/" + std::to_string(outsider) + "/task/" + std::to_string(tid) + "/comm";
  expect_refused_for_now("file " + path, opens([&] { return ::open(path.c_str(), O_RDONLY); }));
  ::kill(outsider, SIGKILL);
  ::waitpid(outsider, nullptr, 0);
  for (int fd : told) ::close(fd);
}
TEST(Refused, Secretmem) {
  expect_refused("secretmem", opens([] { return static_cast<int>(::syscall(SYS_memfd_secret, 0)); }));
}
TEST(Refused, HugePages) {
  expect_refused("hugetlb", opens([] { return ::memfd_create("huge", MFD_HUGETLB); }));
}
TEST(Refused, RawSocket) {
  expect_refused("raw socket", opens([] { return privileged_socket(AF_INET, IPPROTO_ICMP); }));
}
TEST(Refused, PacketSocket) {
  expect_refused("packet socket", opens([] { return privileged_socket(AF_PACKET, 0); }));
}
TEST(Refused, BoundNetlinkSocket) {
  expect_refused_for_now("netlink", opens([] {
                           int fd = ::socket(AF_NETLINK, SOCK_RAW, 0);
                           sockaddr address{};
                           address.sa_family = AF_NETLINK;
                           char whole[12] = {};
                           std::memcpy(whole, &address.sa_family, sizeof(address.sa_family));
                           return ::bind(fd, reinterpret_cast<sockaddr*>(whole), sizeof(whole)) == 0 ? fd : -1;
                         }));
}
TEST(Refused, DeletedFileOfMoreThanAnImageTakes) {
  expect_refused("deleted file", opens([] {
                   int fd = ::open(scratch_directory().c_str(), O_TMPFILE | O_RDWR, 0600);
                   return ::fallocate(fd, 0, 0, (1ll << 30) + 4096) == 0 ? fd : -1;
                 }));
}
TEST(Refused, DeletedDirectory) {
  std::string path = scratch_directory() + "/deleted";
  expect_refused("deleted directory", opens([&] {
                   ::mkdir(path.c_str(), 0700);
                   int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY);
                   ::rmdir(path.c_str());
                   return fd;
                 }));
}
TEST(Refused, ReplacedFile) {
  std::string path = scratch_directory() + "/replaced";
  expect_refused("replaced", opens([&] {
                   int fd = ::open(path.c_str(), O_CREAT | O_RDWR, 0600);
                   ::link(path.c_str(), (path + ".kept").c_str());
                   ::unlink(path.c_str());
                   ::close(::open(path.c_str(), O_CREAT | O_RDWR, 0600));
                   return fd;
                 }));
}

TEST(Refused, LeasesNotificationsAndLocksOnOtherThings) {
  const std::string path = scratch_directory() + "/leased";
  expect_refused("lease on " + path, [&](int) {
    return put(::open(path.c_str(), O_CREAT | O_RDWR, 0600), 9) == 9 && ::fcntl(9, F_SETLEASE, F_WRLCK) == 0
               ? ""
               : "F_SETLEASE";
  });
  expect_refused("directory watched by F_NOTIFY, " + scratch_directory(), [&](int) {
    return put(::open(scratch_directory().c_str(), O_RDONLY | O_DIRECTORY), 9) == 9 &&
                   ::signal(SIGIO, SIG_IGN) != SIG_ERR && ::fcntl(9, F_NOTIFY, DN_CREATE | DN_MULTISHOT) == 0
               ? ""
               : "F_NOTIFY";
  });
  int p[2];
  expect_refused("exclusive flock on pipe",
                 [&](int) { return ::pipe(p) == 0 && put(p[1], 9) == 9 && ::flock(9, LOCK_EX) == 0 ? "" : "flock"; });
}

TEST(Refused, Devices) {
  expect_refused("pty /dev/pts/", opens([] { return ::posix_openpt(O_RDWR | O_NOCTTY); }));
}
// Some device plays uverbs0, in a mount namespace of the member's own.
TEST(Refused, UnshadowedUverbs) {
  expect_refused("RDMA device /dev/infiniband/uverbs0", [](int) -> std::string {
    bool apart = own_namespaces(CLONE_NEWNS) && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    if (!apart) return with_errno("a mount namespace");
    int source = -1;
    for (const char* path : {"/dev/fuse", "/dev/net/tun", "/dev/kmsg", "/dev/hwrng", "/dev/rtc0"})
      if (source < 0 && ::access(path, R_OK) == 0) source = ::open(path, O_PATH);
    if (source < 0) return "SKIP: no readable device that is not a pseudo device";
    EXPECT_STEP(::mount("none", "/dev", "tmpfs", 0, "mode=0755") == 0);
    EXPECT_STEP(::mkdir("/dev/infiniband", 0755) == 0);
    ::close(::open("/dev/infiniband/uverbs0", O_CREAT | O_WRONLY, 0600));
    std::string from = "/proc/self/fd/" + std::to_string(source);
    EXPECT_STEP(::mount(from.c_str(), "/dev/infiniband/uverbs0", nullptr, MS_BIND, nullptr) == 0);
    ::close(source);
    int fd = ::open("/dev/infiniband/uverbs0", O_RDONLY | O_NONBLOCK);
    if (fd < 0) return with_errno("opening a device that was bound to that name");
    EXPECT_STEP(put(fd, 9) == 9);
    return "";
  });
}

TEST(Refused, DescriptorInFlight) {
  for (int type : {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM}) {
    auto send_descriptor = [type](int) -> std::string {
      int p[2];
      EXPECT_STEP(::socketpair(AF_UNIX, type, 0, p) == 0);
      put(p[0], 9);
      put(p[1], 10);
      EXPECT_STEP(::send(10, "before", 6, 0) == 6);
      char control[CMSG_SPACE(sizeof(int))] = {}, byte = 'x';
      iovec part{&byte, 1};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      int zero = 0;
      std::memcpy(CMSG_DATA(header), &zero, sizeof(zero));
      EXPECT_STEP(::sendmsg(10, &message, 0) == 1);
      return "";
    };
    auto still_there = [](int) -> std::string {
      EXPECT_STEP(::fcntl(11, F_GETFD) < 0 && "the look installed a descriptor");
      char byte[16], control[64];
      EXPECT_STEP(::recv(9, byte, 6, 0) == 6);
      iovec part{byte, sizeof(byte)};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      EXPECT_STEP(::recvmsg(9, &message, 0) == 1 && CMSG_FIRSTHDR(&message) != nullptr);
      return "";
    };
    expect_refused("SCM_RIGHTS", send_descriptor, still_there);
  }
}

TEST(Refused, EpollOfAClosedNumber) {
  expect_refused("epoll", [](int) -> std::string {
    put(::epoll_create1(0), 9);
    int event = ::eventfd(0, 0), copy = ::dup(event);
    epoll_event e{};
    EXPECT_STEP(::epoll_ctl(9, EPOLL_CTL_ADD, event, &e) == 0 && copy >= 0);
    ::close(event);
    return "";
  });
}

int tcp_listener(std::uint16_t* port) {
  int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in in = loopback(0);
  socklen_t length = sizeof(in);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&in), sizeof(in)) != 0 || ::listen(fd, 5) != 0) return -1;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&in), &length);
  *port = ntohs(in.sin_port);
  return fd;
}

int tcp_client(std::uint16_t port) {
  int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in in = loopback(port);
  return ::connect(fd, reinterpret_cast<sockaddr*>(&in), sizeof(in)) == 0 ? fd : -1;
}

TEST(Refused, TcpToAnOutsider) {
  std::uint16_t port = 0;
  int outside = tcp_listener(&port);
  int accepted = -1;
  std::string name = "-> 127.0.0.1:" + std::to_string(port);
  expect_refused(name, opens([&] { return tcp_client(port); }), [&](int) -> std::string {
    EXPECT_STEP(::send(9, "unharmed", 8, MSG_NOSIGNAL) == 8);
    return "";
  });
  accepted = ::accept(outside, nullptr, nullptr);
  EXPECT_GE(accepted, 0);
  ::close(accepted);
  ::close(outside);
}

TEST(Refused, TcpInABacklogOrHalfMade) {
  expect_refused_for_now("listening", [](int) -> std::string {
    std::uint16_t port = 0;
    put(tcp_listener(&port), 9);
    EXPECT_STEP(tcp_client(port) >= 0);
    return "";
  });
}

TEST(Refused, TcpUrgentData) {
  expect_refused("tcp", [](int) -> std::string {
    std::uint16_t port = 0;
    int listener = tcp_listener(&port), client = tcp_client(port);
    EXPECT_STEP(put(::accept(listener, nullptr, nullptr), 9) == 9);
    EXPECT_STEP(::send(client, "!", 1, MSG_OOB) == 1);
    return "";
  });
}

// Where a receiver may have no more than a page, so that nothing widens it.
TEST(Refused, TcpBytesThatDoNotFitTheReceiver) {
  constexpr char kPattern[] = "0123456789";
  expect_refused(
      "do not fit the receiver's queue",
      [&](int) -> std::string {
        if (!own_namespaces(CLONE_NEWNET)) return with_errno("unshare");
        ifreq loopback_device{};
        std::strcpy(loopback_device.ifr_name, "lo");
        loopback_device.ifr_flags = IFF_UP;
        const int any = ::socket(AF_INET, SOCK_DGRAM, 0);
        EXPECT_STEP(::ioctl(any, SIOCSIFFLAGS, &loopback_device) == 0);
        ::close(any);
        const int limits = ::open("/proc/sys/net/ipv4/tcp_rmem", O_WRONLY);
        if (::write(limits, "4096 4096 4096", 14) != 14) return with_errno("tcp_rmem");
        ::close(limits);
        std::uint16_t port = 0;
        const int listener = tcp_listener(&port);
        EXPECT_STEP(put(tcp_client(port), 9) == 9);
        EXPECT_STEP(put(::accept(listener, nullptr, nullptr), 10) == 10);
        ::close(listener);
        std::string bytes;
        while (bytes.size() < 32768) bytes += kPattern;
        EXPECT_STEP(::send(9, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 8192);
        return "";
      },
      [&](int) -> std::string {
        EXPECT_STEP(read_some(10, 20) == std::string(kPattern) + kPattern);
        return "";
      });
}

TEST(Refused, UnixToAnOutsiderOrInABacklog) {
  // The peer is held by a process that is no member.
  expect_refused("unix", [](int) -> std::string {
    int p[2];
    EXPECT_STEP(::socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0);
    put(p[0], 9);
    EXPECT_STEP(start_outsider([] {
      ::alarm(2);
      ::close(9);
      ::pause();
    }));
    ::close(p[1]);
    return "";
  });
  // The same of who has sent a datagram, and could be sent an answer.
  expect_refused("a sender outside the job", [](int) -> std::string {
    const std::string name = scratch_directory() + "/named";
    sockaddr_un address{}, own{};
    address.sun_family = own.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.c_str(), name.size());
    put(::socket(AF_UNIX, SOCK_DGRAM, 0), 9);
    EXPECT_STEP(::bind(9, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    const int sender = ::socket(AF_UNIX, SOCK_DGRAM, 0);
    EXPECT_STEP(::bind(sender, reinterpret_cast<sockaddr*>(&own), sizeof(sa_family_t)) == 0);
    EXPECT_STEP(::sendto(sender, "x", 1, 0, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 1);
    EXPECT_STEP(start_outsider([] {
      ::alarm(2);
      ::pause();
    }));
    ::close(sender);
    return "";
  });
  expect_refused_for_now("listening", [](int) -> std::string {
    std::string name = scratch_directory() + "/backlog";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.c_str(), name.size());
    put(::socket(AF_UNIX, SOCK_STREAM, 0), 9);
    EXPECT_STEP(::bind(9, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && ::listen(9, 3) == 0);
    int client = put(::socket(AF_UNIX, SOCK_STREAM, 0), 12);
    EXPECT_STEP(::connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    return "";
  });
}

TEST(Refused, UdpToAnOutsiderOrWithDatagrams) {
  expect_refused("udp", opens([] {
                   int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
                   sockaddr_in in = loopback(9);
                   return ::connect(fd, reinterpret_cast<sockaddr*>(&in), sizeof(in)) == 0 ? fd : -1;
                 }));
  expect_refused_for_now("udp", opens([] {
                           int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
                           sockaddr_in in = loopback(0);
                           socklen_t length = sizeof(in);
                           ::bind(fd, reinterpret_cast<sockaddr*>(&in), length);
                           ::getsockname(fd, reinterpret_cast<sockaddr*>(&in), &length);
                           ::sendto(fd, "", 0, 0, reinterpret_cast<sockaddr*>(&in), length);
                           return fd;
                         }));
}

TEST(Refused, EmptyDatagramEachTime) {
  expect_refused("unix", [](int) -> std::string {
    int p[2];
    EXPECT_STEP(::socketpair(AF_UNIX, SOCK_DGRAM, 0, p) == 0);
    put(p[0], 9);
    EXPECT_STEP(::send(p[1], "", 0, 0) == 0);
    std::string table;
    EXPECT_STEP(capture_descriptors(0, &table).code() == Code::kRefused);  // looks at it once already
    return "";
  });
}

TEST(Refused, PipeToAnOutsider) {
  expect_refused("pipe", [](int) -> std::string {
    int q[2];
    EXPECT_STEP(::pipe(q) == 0);
    put(q[0], 9);
    EXPECT_STEP(start_outsider([] {
      ::alarm(2);
      ::pause();
    }));
    ::close(q[1]);
    return "";
  });
}

TEST(Refused, OtherTerminal) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);  // of this process, which is no member
  ASSERT_TRUE(master >= 0 && ::unlockpt(master) == 0);
  const std::string name = ::ptsname(master);
  expect_refused("/dev/pts/", opens([&name] { return ::open(name.c_str(), O_RDWR | O_NOCTTY); }));
  ::close(master);
}

TEST(Unharmed, PrepareIsUndoneByAbandon) {
  std::uint16_t port = 0;
  int listener = tcp_listener(&port), client = tcp_client(port), server = ::accept(listener, nullptr, nullptr);
  int cork = 1;
  ::setsockopt(client, IPPROTO_TCP, TCP_CORK, &cork, sizeof(cork));
  ASSERT_EQ(::send(client, "corked", 6, 0), 6);
  int copy = ::dup(client);
  ASSERT_TRUE(prepare_descriptors().ok());
  int low = 0;
  socklen_t length = sizeof(low);
  ::getsockopt(server, SOL_SOCKET, SO_RCVLOWAT, &low, &length);
  EXPECT_GT(low, 1) << "the window was not opened";
  abandon_descriptors();
  abandon_descriptors();
  ::getsockopt(server, SOL_SOCKET, SO_RCVLOWAT, &low, &length);
  EXPECT_EQ(low, 1);
  int value = 0;
  ::getsockopt(client, IPPROTO_TCP, TCP_CORK, &value, &length);
  EXPECT_EQ(value, 1);
  ::getsockopt(client, IPPROTO_TCP, TCP_NODELAY, &value, &length);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(read_some(server, 6), "corked");
  for (int fd : {listener, client, server, copy}) ::close(fd);
}

}  // namespace
}  // namespace shadowib::test
