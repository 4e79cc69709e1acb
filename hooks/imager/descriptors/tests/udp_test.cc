// UDP sockets across checkpoint and restart.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "hooks/imager/descriptors/tests/test_job.h"
#include "hooks/imager/descriptors/tests/test_sockets.h"

namespace shadowib::test {
namespace {

TEST(Udp, BoundAndConnectedWithinTheJob) {
  Job job;
  std::uint16_t port = 0;
  job.make = [&]() -> std::string {
    EXPECT_STEP(::socket(AF_INET, SOCK_DGRAM, 0) == 3);
    sockaddr_in in = loopback(0);
    EXPECT_STEP(::bind(3, reinterpret_cast<sockaddr*>(&in), sizeof(in)) == 0);
    port = port_of(3, ::getsockname);
    return "";
  };
  job.before = [&](int member) -> std::string {
    if (member == 0) return "";
    ::close(3);
    put(::socket(AF_INET, SOCK_DGRAM, 0), 4);
    sockaddr_in in = loopback(port);
    EXPECT_STEP(::connect(4, reinterpret_cast<sockaddr*>(&in), sizeof(in)) == 0);
    EXPECT_STEP(put(::socket(AF_NETLINK, SOCK_RAW, 0), 5) == 5);
    return "";
  };
  job.resumed = job.restarted = [](int member) -> std::string {
    if (member == 1) EXPECT_STEP(say(4, "datagram"));
    if (member == 0) EXPECT_STEP(read_some(3, 8) == "datagram");
    meet();
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

}  // namespace
}  // namespace shadowib::test
