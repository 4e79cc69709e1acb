#include "hooks/imager/processor.h"

#include <cstdio>

namespace shadowib {
namespace {

constexpr int kOfNoLevel = kMostProcessorLevel + 1;

// Only what user code can use.
constexpr ProcessorFeature kFeatures[] = {
    {0, 0, "SSE3", 2, nullptr},
    {0, 9, "SSSE3", 2, "SSSE3"},
    {0, 13, "CMPXCHG16B", 2, nullptr},
    {0, 19, "SSE4.1", 2, "SSE4_1"},
    {0, 20, "SSE4.2", 2, "SSE4_2"},
    {0, 23, "POPCNT", 2, "POPCNT"},
    {7, 0, "LAHF", 2, nullptr},
    {0, 12, "FMA", 3, "FMA"},
    {0, 22, "MOVBE", 3, "MOVBE"},
    {0, 26, "XSAVE", 3, nullptr},
    {0, 28, "AVX", 3, "AVX"},
    {0, 29, "F16C", 3, nullptr},
    {2, 3, "BMI1", 3, "BMI1"},
    {2, 5, "AVX2", 3, "AVX2"},
    {2, 8, "BMI2", 3, "BMI2"},
    {7, 5, "LZCNT", 3, "LZCNT"},
    {2, 16, "AVX512F", 4, "AVX512F"},
    {2, 17, "AVX512DQ", 4, "AVX512DQ"},
    {2, 28, "AVX512CD", 4, "AVX512CD"},
    {2, 30, "AVX512BW", 4, "AVX512BW"},
    {2, 31, "AVX512VL", 4, "AVX512VL"},
    {0, 1, "PCLMULQDQ", kOfNoLevel, nullptr},
    {0, 25, "AES", kOfNoLevel, nullptr},
    {0, 30, "RDRAND", kOfNoLevel, nullptr},
    {2, 0, "FSGSBASE", kOfNoLevel, nullptr},
    {2, 4, "HLE", kOfNoLevel, nullptr},
    {2, 9, "ERMS", kOfNoLevel, "ERMS"},
    {2, 11, "RTM", kOfNoLevel, "RTM"},
    {2, 18, "RDSEED", kOfNoLevel, nullptr},
    {2, 19, "ADX", kOfNoLevel, nullptr},
    {2, 21, "AVX512IFMA", kOfNoLevel, nullptr},
    {2, 23, "CLFLUSHOPT", kOfNoLevel, nullptr},
    {2, 24, "CLWB", kOfNoLevel, nullptr},
    {2, 29, "SHA", kOfNoLevel, nullptr},
    {3, 1, "AVX512VBMI", kOfNoLevel, nullptr},
    {3, 5, "WAITPKG", kOfNoLevel, nullptr},
    {3, 6, "AVX512VBMI2", kOfNoLevel, nullptr},
    {3, 8, "GFNI", kOfNoLevel, nullptr},
    {3, 9, "VAES", kOfNoLevel, nullptr},
    {3, 10, "VPCLMULQDQ", kOfNoLevel, nullptr},
    {3, 11, "AVX512VNNI", kOfNoLevel, nullptr},
    {3, 12, "AVX512BITALG", kOfNoLevel, nullptr},
    {3, 14, "AVX512VPOPCNTDQ", kOfNoLevel, nullptr},
    {3, 22, "RDPID", kOfNoLevel, nullptr},
    {3, 27, "MOVDIRI", kOfNoLevel, nullptr},
    {3, 28, "MOVDIR64B", kOfNoLevel, nullptr},
    {4, 22, "AMX-BF16", kOfNoLevel, nullptr},
    {4, 23, "AVX512FP16", kOfNoLevel, nullptr},
    {4, 24, "AMX-TILE", kOfNoLevel, nullptr},
    {4, 25, "AMX-INT8", kOfNoLevel, nullptr},
    {5, 4, "AVX-VNNI", kOfNoLevel, nullptr},
    {5, 5, "AVX512BF16", kOfNoLevel, nullptr},
    {6, 1, "XSAVEC", kOfNoLevel, "XSAVEC"},
    {7, 6, "SSE4A", kOfNoLevel, nullptr},
    {7, 11, "XOP", kOfNoLevel, nullptr},
    {7, 16, "FMA4", kOfNoLevel, "FMA4"},
    {7, 21, "TBM", kOfNoLevel, nullptr},
};

// Enabled by the system, without which the features are of no use.
constexpr std::uint64_t kStateOfLevel[kMostProcessorLevel + 1] = {0, 0, 0, 6, 0xe6};

bool has(const ProcessorState& p, const ProcessorFeature& f) { return (p.features[f.word] >> f.bit & 1) != 0; }

bool has_level(const ProcessorState& p, int level) {
  if ((kStateOfLevel[level] & ~p.xcr0) != 0) return false;
  for (const ProcessorFeature& f : kFeatures)
    if (f.level <= level && !has(p, f)) return false;
  return true;
}

}  // namespace

const ProcessorFeature* missing_feature(const ProcessorState& wanted, int level, const ProcessorState& here) {
  for (const ProcessorFeature& f : kFeatures)
    if ((level == kAnyProcessorLevel || f.level <= level) && has(wanted, f) && !has(here, f)) return &f;
  return nullptr;
}

int level_of_this_processor() {
  ProcessorState here;
  read_processor_state(&here);
  int level = 1;
  while (level < kMostProcessorLevel && has_level(here, level + 1)) ++level;
  return level;
}

std::string with_processor_level(const std::string& tunables, int level) {
  static constexpr char kName[] = "glibc.cpu.hwcaps=";
  std::string left_out;
  for (const ProcessorFeature& f : kFeatures)
    if (f.level > level && f.of_glibc != nullptr)
      left_out += (left_out.empty() ? "-" : ",-") + std::string(f.of_glibc);
  const std::size_t there = tunables.find(kName);
  if (there == std::string::npos) return tunables + (tunables.empty() ? "" : ":") + kName + left_out;
  if (tunables.find(left_out) != std::string::npos) return tunables;
  return std::string(tunables).insert(there + sizeof(kName) - 1, left_out + ",");
}

std::string describe_processor() {
  ProcessorState p;
  read_processor_state(&p);
  const int level = level_of_this_processor();
  int count = 0;
  for (const ProcessorFeature& f : kFeatures) count += has(p, f);
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

}  // namespace shadowib
