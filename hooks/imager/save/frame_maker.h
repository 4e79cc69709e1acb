// Compresses pages while the program may be stopped: all memory is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hooks/imager/compression.h"

namespace shadowib {

// hooks/imager/CMakeLists.txt links the libraries and these functions into one object. It exports these functions
// alone, and has no heap. Do not call them with kNone.
#pragma GCC visibility push(hidden)
extern "C" {
// Bytes of the work space that frames need, aligned to 64.
std::size_t shadowib_frame_work_bytes(Compression compression);
// The state for shadowib_make_frame(). Lies in the work space. nullptr: that is too small.
void* shadowib_start_frames(Compression compression, void* work, std::size_t bytes);
// Bytes of one frame at `to`; 0 if they would be more than `room`. The two do not overlap.
std::size_t shadowib_make_frame(Compression compression, void* state, const void* from, std::size_t bytes, void* to,
                                std::size_t room);
}
#pragma GCC visibility pop

}  // namespace shadowib
