// The facts of the processor that an image records and a restart asks for.
//
// A program chooses its code by the features it finds, so by default a restart asks for all of them. A user who means
// to go on elsewhere tells glibc's loader beforehand to find no more than a level of the x86-64 psABI has (shadowib
// run --cpu). The image then asks for no more.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "hooks/raw/x86_64/processor_state.h"

namespace shadowib {

inline constexpr int kAnyProcessorLevel = 0;  // whatever the machine has
inline constexpr int kMostProcessorLevel = 4;

// "x86-64" is 1, "x86-64-v2" to "x86-64-v4" are 2 to 4; -1: another text. Async-signal-safe.
inline int processor_level(const char* text) {
  constexpr char kFirst[] = "x86-64";
  if (std::strncmp(text, kFirst, sizeof(kFirst) - 1) != 0) return -1;
  text += sizeof(kFirst) - 1;
  if (text[0] == '\0') return 1;
  return text[0] == '-' && text[1] == 'v' && text[2] >= '2' && text[2] <= '4' && text[3] == '\0' ? text[2] - '0' : -1;
}

struct ProcessorFeature {
  int word, bit;  // in ProcessorState::features
  const char* name;
  int level;             // of the psABI, the first that has it; 5: none has
  const char* of_glibc;  // its name among glibc's tunables; null: glibc does not choose by it
};

// The first feature that `wanted` has, of those that level asks for (kAnyProcessorLevel: of all), and `here` has not;
// null: there is none.
const ProcessorFeature* missing_feature(const ProcessorState& wanted, int level, const ProcessorState& here);

// The highest level this processor has whole.
int level_of_this_processor();

// GLIBC_TUNABLES, as it is and with what it has to say for the loader to find no more than the level has:
// "glibc.cpu.hwcaps=-AVX2,...".
std::string with_processor_level(const std::string& tunables, int level);

// "x86-64-v3, 32 features recorded, extended state e7 AVX AVX-512": for people.
std::string describe_processor();

}  // namespace shadowib
