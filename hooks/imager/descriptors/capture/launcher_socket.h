// The descriptor by which a process is connected to its launcher (note_launcher_descriptor()).
#pragma once

#include "hooks/imager/descriptors/table.h"
#include "shadowib/base/status.h"

namespace shadowib::descriptors {

// Whether `fd` is noted, and still is what it was then. Any thread; no heap.
bool is_launcher_descriptor(int fd);
bool is_left_out(int fd);  // of those, by leave_out_descriptor()

// Leaves nothing in `object` that matching would look at. A capture begins with none.
void begin_launcher_capture();
void capture_launcher_socket(Object* object);

// A socket that is always ready to be written to, swallows what is written, and is never readable.
Status open_silent_socket(const Object& object, int* fd);

}  // namespace shadowib::descriptors
