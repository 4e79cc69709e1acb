#include "shadowib/base/secret_scope.h"

#include <cpuid.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace shadowib {
namespace {

constexpr std::uint64_t kAvxState = 0x6, kAvx512State = 0xe6;  // of XCR0: what the kernel has turned on

std::uint64_t enabled_state() {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0) return 0;
  unsigned int low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low | std::uint64_t{high} << 32;
}

#define EACH_OF_16(clear)                                                                                       \
  clear(0) clear(1) clear(2) clear(3) clear(4) clear(5) clear(6) clear(7) clear(8) clear(9) clear(10) clear(11) \
      clear(12) clear(13) clear(14) clear(15)
#define CLEAR_SSE(n) "pxor %%xmm" #n ", %%xmm" #n "\n\t"
// Those that AVX-512 has beyond AVX.
#define CLEAR_UPPER                                                          \
  "vpxord %%zmm16, %%zmm16, %%zmm16\n\tvpxord %%zmm17, %%zmm17, %%zmm17\n\t" \
  "vpxord %%zmm18, %%zmm18, %%zmm18\n\tvpxord %%zmm19, %%zmm19, %%zmm19\n\t" \
  "vpxord %%zmm20, %%zmm20, %%zmm20\n\tvpxord %%zmm21, %%zmm21, %%zmm21\n\t" \
  "vpxord %%zmm22, %%zmm22, %%zmm22\n\tvpxord %%zmm23, %%zmm23, %%zmm23\n\t" \
  "vpxord %%zmm24, %%zmm24, %%zmm24\n\tvpxord %%zmm25, %%zmm25, %%zmm25\n\t" \
  "vpxord %%zmm26, %%zmm26, %%zmm26\n\tvpxord %%zmm27, %%zmm27, %%zmm27\n\t" \
  "vpxord %%zmm28, %%zmm28, %%zmm28\n\tvpxord %%zmm29, %%zmm29, %%zmm29\n\t" \
  "vpxord %%zmm30, %%zmm30, %%zmm30\n\tvpxord %%zmm31, %%zmm31, %%zmm31\n\t"
#define VECTOR_REGISTERS                                                                                     \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
      "xmm13", "xmm14", "xmm15"

std::atomic<std::uint64_t> g_state{0};

void clear_vector_registers() {
  const std::uint64_t state = g_state.load(std::memory_order_relaxed);
  if ((state & kAvx512State) == kAvx512State) asm volatile(CLEAR_UPPER::: "memory");
  if ((state & kAvxState) == kAvxState)
    asm volatile("vzeroall" ::: VECTOR_REGISTERS);
  else
    asm volatile(EACH_OF_16(CLEAR_SSE)::: VECTOR_REGISTERS);
}

}  // namespace

void SecretScope::note_processor() { g_state.store(enabled_state(), std::memory_order_relaxed); }

SecretScope::SecretScope() {
  const std::uint64_t all = ~0ull;
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before_, sizeof(all));
}

SecretScope::~SecretScope() {
  clear_vector_registers();
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before_, nullptr, sizeof(before_));
}

}  // namespace shadowib
