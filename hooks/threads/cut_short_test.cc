// What becomes of a transfer that a stop has met half done, by the registers that the thread goes on with.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "hooks/threads/blocked_call.h"

namespace shadowib {
namespace {

// A thread that was seen blocked in recv with MSG_WAITALL, and has kReceived bytes of kWanted when the stop comes.
class Interrupted {
 public:
  static constexpr greg_t kWanted = 100, kReceived = 30, kAt = 0x1002;
  Interrupted(int fd, int flags) {
    greg_t* regs = context_.uc_mcontext.gregs;
    regs[REG_RDI] = fd;
    regs[REG_RSI] = kAt;
    regs[REG_RDX] = kWanted;
    regs[REG_R10] = flags | MSG_WAITALL;
    regs[REG_RIP] = kAt;
    regs[REG_RAX] = kReceived;
    seen_.number = SYS_recvfrom;
    seen_.program_counter = kAt;
    const int in_order[] = {REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9};
    for (int i = 0; i < 6; ++i) seen_.arguments[i] = static_cast<std::uint64_t>(regs[in_order[i]]);
    InterruptedCall call(&context_, &seen_);
    call.go_on();
  }
  greg_t reg(int index) const { return context_.uc_mcontext.gregs[index]; }

 private:
  ucontext_t context_{};
  BlockedSyscall seen_;
};

class SocketPair {
 public:
  explicit SocketPair(int type) { EXPECT_EQ(socketpair(AF_UNIX, type, 0, fds_), 0); }
  ~SocketPair() {
    close(fds_[0]);
    close(fds_[1]);
  }
  int get() const { return fds_[0]; }

 private:
  int fds_[2];
};

TEST(CutShort, WhatWasReceivedInPartIsFollowedByTheRest) {
  const SocketPair pair(SOCK_STREAM);
  const Interrupted cut(pair.get(), 0);
  EXPECT_EQ(cut.reg(REG_RSI), Interrupted::kAt + Interrupted::kReceived);
  EXPECT_EQ(cut.reg(REG_RDX), Interrupted::kWanted - Interrupted::kReceived);
}

TEST(CutShort, WhatWasOnlyLookedAtIsLookedAtAgainFromItsBeginning) {
  const SocketPair pair(SOCK_STREAM);
  const Interrupted cut(pair.get(), MSG_PEEK);
  EXPECT_EQ(cut.reg(REG_RIP), Interrupted::kAt - 2);
  EXPECT_EQ(cut.reg(REG_RAX), SYS_recvfrom);
  EXPECT_EQ(cut.reg(REG_RSI), Interrupted::kAt);
  EXPECT_EQ(cut.reg(REG_RDX), Interrupted::kWanted);
}

TEST(CutShort, ADatagramIsWholeHoweverShort) {
  for (const int type : {SOCK_DGRAM, SOCK_SEQPACKET}) {
    const SocketPair pair(type);
    const Interrupted cut(pair.get(), 0);
    EXPECT_EQ(cut.reg(REG_RIP), Interrupted::kAt);
    EXPECT_EQ(cut.reg(REG_RAX), Interrupted::kReceived);
  }
}

TEST(CutShort, TheRestHasTheRestOfItsSocketsTime) {
  constexpr std::int64_t kSeconds = 100;
  const SocketPair pair(SOCK_STREAM);
  timeval time{kSeconds, 0};
  socklen_t length = sizeof(time);
  setsockopt(pair.get(), SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
  {
    const TimedCallScope scope(SYS_recvfrom, kSeconds * 1000000000, {pair.get(), SO_RCVTIMEO});
    t_timed_call.deadline_ns -= (kSeconds - 10) * 1000000000;  // ten seconds are left
    const Interrupted cut(pair.get(), 0);
    ASSERT_EQ(getsockopt(pair.get(), SOL_SOCKET, SO_RCVTIMEO, &time, &length), 0);
    EXPECT_LE(time.tv_sec, 10);
  }
  ASSERT_EQ(getsockopt(pair.get(), SOL_SOCKET, SO_RCVTIMEO, &time, &length), 0);
  EXPECT_EQ(time.tv_sec, kSeconds);
}

}  // namespace
}  // namespace shadowib
