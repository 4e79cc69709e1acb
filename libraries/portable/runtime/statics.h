// Static variables of C++ functions, and their destructors at the end of the process. Threads: the program's first.
#pragma once

namespace shadowib::portable {

// Before an image's values come: which statics this process has made itself.
void note_statics();
// Then: registers the destructors of those that the image's process had made, in the order in which it made them.
void register_statics();

}  // namespace shadowib::portable
