// What of the processor an image records and a restart asks for.
#pragma once

#include <cstdint>
#include <string>

namespace shadowib {

struct ProcessorState {
  std::uint32_t features[8];  // as ProcessRecord::cpu_features
  std::uint64_t xcr0;         // as ProcessRecord::xcr0
};

// Of the processor this runs on.
ProcessorState this_processor();

// "x86-64-v3, 32 features, extended state e7 (AVX, AVX-512)": for people.
std::string describe_processor();

}  // namespace shadowib
