// The extended state (vector registers and the like) of interrupted code, made fit for this processor.
//
// It lies where the kernel put it when a signal came: in an XSAVE area on the stack that the handler ran on, from
// which the handler's return takes it back. Kernels read it as their own processor has it, and give up all but the
// oldest part of it without a word if it is larger than theirs; components lie elsewhere on processors of other
// makers.
#pragma once

#include "hooks/imager/processor.h"
#include "hooks/imager/restore/image_memory.h"

namespace shadowib {

// Components, as bits of XCR0, beside the two that every processor has.
std::uint64_t known_extended_state();

// Whether areas of `from` have to be changed for `to`.
bool extended_state_differs(const ProcessorState& from, const ProcessorState& to);

// Most that an area has, with the magic number at its end.
inline constexpr std::uint64_t kMostExtendedStateBytes = (16 << 10) + 4;

// How many bytes the area at `area` has with its magic number, of which 512 are there; 0: it is none, by what it
// says.
std::uint64_t extended_state_bytes(const std::uint8_t* area, const ProcessorState& from);

// Changes a whole area; it may become smaller. kRefused names what has a value and does not exist, or has no room,
// here.
Status fit_extended_state(const ProcessorState& from, const ProcessorState& to, std::vector<std::uint8_t>* area);

// All areas in the memory of an image, wherever they are.
Status fit_extended_states(const LoadedImage& image, int fd, const ProcessorState& from, const ProcessorState& to,
                           std::vector<MemoryPatch>* patches);

}  // namespace shadowib
