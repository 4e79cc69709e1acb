// One segment of shared memory: making it, and giving it what it is known by.
#pragma once

#include <string>

#include "hooks/imager/descriptors/table.h"
#include "shadowib/base/status.h"

namespace shadowib {

// "cannot restore shared memory (memfd ring): WHAT (ERROR)".
Status shared_memory_failure(Code code, const descriptors::Segment& segment, const std::string& what, int error);

// A file of its size without content. One that has a name gets another as yet, *beside; the caller's to unlink.
Status make_shared_file(const descriptors::Segment& segment, int* fd, std::string* beside);
// Its name instead of `beside`, owner, mode and seals, once everybody has mapped it. A second time it changes
// nothing.
Status finish_shared_file(const descriptors::Segment& segment, int fd, const std::string& beside);
// Whether its name, or the directory it was in, is to be had. kRefused, kNotFound name what is in the way.
Status judge_shared_file(const descriptors::Segment& segment);

// Makes a segment of its size, with its key, and its id where the kernel grants it.
Status make_system_v_segment(const descriptors::Segment& segment, int* shmid);
// Mode, owner and lock, when all have attached it. kRefused if it cannot be locked.
Status finish_system_v_segment(const descriptors::Segment& segment, int shmid);

}  // namespace shadowib
