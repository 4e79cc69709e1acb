// The saver: a copy of this process that writes the image while the program goes on.
//
// The program does not see it: it is no child to wait(), and raises no SIGCHLD. It ends with the program.
// Threads: the program's first only, with the stack left.
#pragma once

#include <string>

namespace shadowib::portable {

// Calls write() in a saver. It returns why nothing was written, or an empty text; it tells that itself. Returns
// false, and has done nothing, where there can be no such process, as under qemu-user: the caller then writes itself.
bool begin_saver(std::string (*write)());

// True until end_saver() or look_at_saver() have found its end.
bool saver_runs();

enum class Saved { kNothingNew, kWritten, kRefused, kDied };
// The outcome of a saver, once it has ended. end_saver() waits for that, look_at_saver() does not. kDied: nobody was
// told, and `reason` says why.
Saved look_at_saver(std::string* reason);
Saved end_saver(std::string* reason);

}  // namespace shadowib::portable
