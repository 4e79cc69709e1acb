// Compresses pages while the program may be stopped: all memory is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hooks/imager/compression.h"

namespace shadowib {

// The libraries are linked into one object beside these functions (hooks/imager/CMakeLists.txt), in which nothing
// else can be seen and no heap can be had. kNone is not for them.
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
