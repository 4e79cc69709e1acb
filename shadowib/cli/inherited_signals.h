// Signals as the caller of this command has left them. A program that the command becomes or starts gets them back.
#pragma once

namespace shadowib::cli {

// Call it first in main(). SIGCHLD gets its default action: where a parent ignores it, the kernel reaps children, and
// waitpid(2) does not find them.
void note_inherited_signals();

// Before execve(2), also in a forked child: mask and actions as at note_inherited_signals().
void give_back_inherited_signals();

}  // namespace shadowib::cli
