#include "hooks/imager/restore/processor_check.h"

#include <cpuid.h>

#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "hooks/imager/processor.h"

namespace shadowib {
namespace {

struct Feature {
  int word, bit;
  const char* name;
};

// Words as in ProcessRecord::cpu_features: cpuid 1 ecx, edx; 7.0 ebx, ecx, edx; 7.1 eax. Only what user code can use.
constexpr Feature kFeatures[] = {
    {0, 0, "SSE3"},
    {0, 1, "PCLMULQDQ"},
    {0, 9, "SSSE3"},
    {0, 12, "FMA"},
    {0, 13, "CMPXCHG16B"},
    {0, 19, "SSE4.1"},
    {0, 20, "SSE4.2"},
    {0, 22, "MOVBE"},
    {0, 23, "POPCNT"},
    {0, 25, "AES"},
    {0, 26, "XSAVE"},
    {0, 28, "AVX"},
    {0, 29, "F16C"},
    {0, 30, "RDRAND"},
    {2, 0, "FSGSBASE"},
    {2, 3, "BMI1"},
    {2, 4, "HLE"},
    {2, 5, "AVX2"},
    {2, 8, "BMI2"},
    {2, 9, "ERMS"},
    {2, 11, "RTM"},
    {2, 16, "AVX512F"},
    {2, 17, "AVX512DQ"},
    {2, 18, "RDSEED"},
    {2, 19, "ADX"},
    {2, 21, "AVX512IFMA"},
    {2, 23, "CLFLUSHOPT"},
    {2, 24, "CLWB"},
    {2, 28, "AVX512CD"},
    {2, 29, "SHA"},
    {2, 30, "AVX512BW"},
    {2, 31, "AVX512VL"},
    {3, 1, "AVX512VBMI"},
    {3, 5, "WAITPKG"},
    {3, 6, "AVX512VBMI2"},
    {3, 8, "GFNI"},
    {3, 9, "VAES"},
    {3, 10, "VPCLMULQDQ"},
    {3, 11, "AVX512VNNI"},
    {3, 12, "AVX512BITALG"},
    {3, 14, "AVX512VPOPCNTDQ"},
    {3, 22, "RDPID"},
    {3, 27, "MOVDIRI"},
    {3, 28, "MOVDIR64B"},
    {4, 22, "AMX-BF16"},
    {4, 23, "AVX512FP16"},
    {4, 24, "AMX-TILE"},
    {4, 25, "AMX-INT8"},
    {5, 4, "AVX-VNNI"},
    {5, 5, "AVX512BF16"},
};

// What glibc's loader saves when it binds a function at its first call, into as much of the stack as it found it to
// need when the program started. A processor with more of these enabled writes more. Source: glibc, STATE_SAVE_MASK.
constexpr std::uint64_t kSavedByLoader = 0xee;

bool has(const ProcessorState& p, const char* name) {
  for (const Feature& f : kFeatures)
    if (std::strcmp(f.name, name) == 0) return (p.features[f.word] & 1u << f.bit) != 0;
  return false;
}

bool has_all(const ProcessorState& p, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (!has(p, name)) return false;
  return true;
}

// Levels of the psABI, as far as the words that are recorded tell.
int level_of(const ProcessorState& p) {
  if (!has_all(p, {"SSE3", "SSSE3", "CMPXCHG16B", "SSE4.1", "SSE4.2", "POPCNT"})) return 1;
  if (!has_all(p, {"AVX", "AVX2", "BMI1", "BMI2", "F16C", "FMA", "MOVBE", "XSAVE"}) || (p.xcr0 & 6) != 6) return 2;
  if (!has_all(p, {"AVX512F", "AVX512BW", "AVX512CD", "AVX512DQ", "AVX512VL"}) || (p.xcr0 & 0xe0) != 0xe0) return 3;
  return 4;
}

}  // namespace

ProcessorState this_processor() {
  ProcessorState p{};
  unsigned a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d)) {
    p.features[0] = c, p.features[1] = d;
    if ((c & bit_OSXSAVE) != 0) {
      std::uint32_t low, high;
      __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
      p.xcr0 = low | static_cast<std::uint64_t>(high) << 32;
    }
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) p.features[2] = b, p.features[3] = c, p.features[4] = d;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) p.features[5] = a;
  return p;
}

std::string describe_processor() {
  const ProcessorState p = this_processor();
  const int level = level_of(p);
  int count = 0;
  for (const Feature& f : kFeatures) count += (p.features[f.word] >> f.bit & 1) != 0;
  char text[160];
  std::snprintf(text, sizeof(text), "x86-64%s, %d features recorded, extended state %lx%s%s%s",
                level == 1   ? ""
                : level == 2 ? "-v2"
                : level == 3 ? "-v3"
                             : "-v4",
                count, p.xcr0, (p.xcr0 & 4) != 0 ? " AVX" : "", (p.xcr0 & 0xe0) != 0 ? " AVX-512" : "",
                (p.xcr0 & 0x60000) != 0 ? " AMX" : "");
  return text;
}

Status check_processor(const LoadedImage& image) {
  const ProcessorState here = this_processor();
  const ProcessRecord& p = image.process;
  for (const Feature& f : kFeatures)
    if ((p.cpu_features[f.word] & ~here.features[f.word] & 1u << f.bit) != 0)
      return Status::of(Code::kRefused, 0,
                        "member %u ran on a processor with %s, which this one has not; restart on a "
                        "machine that has it",
                        image.header.member, f.name);
  if ((p.xcr0 & ~here.xcr0) != 0)
    return Status::of(Code::kRefused, 0,
                      "member %u ran with processor state %lx enabled, here only %lx is; restart on a "
                      "machine with the same vector extensions",
                      image.header.member, p.xcr0, here.xcr0);
  if (p.xcr0 != 0 && (here.xcr0 & ~p.xcr0 & kSavedByLoader) != 0)
    return Status::of(
        Code::kRefused, 0,
        "member %u ran with processor state %lx enabled, here %lx is: its loader would overwrite its stack "
        "when it saves the registers; restart on a machine with the same vector extensions",
        image.header.member, p.xcr0, here.xcr0);
  return {};
}

}  // namespace shadowib
