#include "shadowib/base/secret_scope.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <ucontext.h>

#include <cstring>

namespace shadowib {
namespace {

constexpr unsigned char kSecret[64] = "a password of sixty-four bytes, as a vector register may hold!";

bool g_found, g_handled;

// Whether a signal's frame holds the secret, or a piece of it that a register may have taken.
void look(int, siginfo_t*, void* context) {
  const auto* state =
      static_cast<const char*>(static_cast<void*>(static_cast<ucontext_t*>(context)->uc_mcontext.fpregs));
  constexpr std::size_t kPiece = 12;
  std::uint32_t size = 0;  // as the area itself says (_fpx_sw_bytes)
  std::memcpy(&size, state + 464 + 4, sizeof(size));
  if (size < 512 || size > 16384) size = 512;
  // Of FXSAVE's area the 16 registers: what is behind them stays as it was on the stack.
  g_found = ::memmem(state + 160, 256, kSecret + 16, kPiece) != nullptr ||
            ::memmem(state + 512, size - 512, kSecret + 16, kPiece) != nullptr;
  g_handled = true;
}

// Its middle, in every register that there is: a copy may have used any.
void take_up_secret() {
  asm volatile("movdqu %0, %%xmm3\n\tmovdqu %0, %%xmm12" ::"m"(kSecret[16]) : "xmm3", "xmm12");
  if (__builtin_cpu_supports("avx512f")) asm volatile("vmovdqu64 %0, %%zmm27" ::"m"(kSecret[0]));
}

// What a frame leaves out stays as it was on the stack: nothing of earlier frames, nor of a function's binding, where
// the loader saves all registers. So no other test's secret is in them, and what is called with one in them is bound
// here.
__attribute__((noinline)) void make_stack_clean() {
  const SecretScope nothing_left;
  ::kill(::getpid(), 0);
  char below[64 << 10];
  ::explicit_bzero(below, sizeof(below));
}

class Scope : public testing::Test {
 protected:
  void SetUp() override {
    SecretScope::note_processor();
    struct sigaction action {};
    action.sa_sigaction = look;
    action.sa_flags = SA_SIGINFO;
    ASSERT_EQ(::sigaction(SIGUSR1, &action, &before_), 0);
    make_stack_clean();
    g_found = g_handled = false;
  }
  void TearDown() override { ::sigaction(SIGUSR1, &before_, nullptr); }
  struct sigaction before_ {};
};

TEST_F(Scope, ASignalsFrameWouldHoldWhatRegistersDo) {
  const pid_t pid = ::getpid();
  take_up_secret();
  ::kill(pid, SIGUSR1);
  EXPECT_TRUE(g_handled);
  EXPECT_TRUE(g_found) << "the other test shows nothing here";
}

TEST_F(Scope, NoSignalComesBeforeItsEndAndNothingIsLeftThen) {
  const pid_t pid = ::getpid();
  sigset_t blocked, after;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR2);
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
  bool early = false;
  {
    const SecretScope scope;
    take_up_secret();
    ::kill(pid, SIGUSR1);
    early = g_handled;
    take_up_secret();
  }
  ::kill(pid, 0);  // ThreadSanitizer hands signals on at the next call that it knows
  EXPECT_FALSE(early);
  EXPECT_TRUE(g_handled);
  EXPECT_FALSE(g_found);
  ::sigprocmask(SIG_UNBLOCK, &blocked, &after);
  EXPECT_EQ(::sigismember(&after, SIGUSR2), 1) << "what the program had blocked stays so";
  EXPECT_EQ(::sigismember(&after, SIGUSR1), 0);
}

}  // namespace
}  // namespace shadowib
