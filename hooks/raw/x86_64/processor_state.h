// The answers of cpuid and xgetbv about the processor this runs on. For the program's process and for commands: no
// libc.
#pragma once

#include <cpuid.h>

#include <cstdint>

namespace shadowib {

// Components of the extended state, as bits of XCR0.
inline constexpr int kStateComponents = 32;

struct ProcessorState {
  // cpuid 1 ecx, edx; 7.0 ebx, ecx, edx; 7.1 eax; 0xd.1 eax; 0x80000001 ecx
  std::uint32_t features[8];
  std::uint64_t xcr0;
  // Where each component lies in an XSAVE area in its standard form: makers differ. 0: it is not enabled, or is one
  // of the first two, whose place is the same everywhere.
  std::uint32_t state_offsets[kStateComponents];
};

inline void read_processor_state(ProcessorState* p) {
  *p = {};
  unsigned a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d) != 0) {
    p->features[0] = c, p->features[1] = d;
    if ((c & bit_OSXSAVE) != 0) {
      std::uint32_t low, high;
      __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
      p->xcr0 = low | static_cast<std::uint64_t>(high) << 32;
    }
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) p->features[2] = b, p->features[3] = c, p->features[4] = d;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) p->features[5] = a;
  if (__get_cpuid_count(0xd, 1, &a, &b, &c, &d) != 0) p->features[6] = a;
  if (__get_cpuid(0x80000001, &a, &b, &c, &d) != 0) p->features[7] = c;
  for (unsigned i = 2; i < kStateComponents; ++i)
    if ((p->xcr0 >> i & 1) != 0 && __get_cpuid_count(0xd, i, &a, &b, &c, &d) != 0) p->state_offsets[i] = b;
}

}  // namespace shadowib
