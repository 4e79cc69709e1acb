// Memory of the program's malloc is given back to the arena it is of, and with that arena's lock, whoever gives it
// back. A program thread may hold it where it was stopped (H14). So threads that the loader, and the shim, have
// allocated for are noted. Closing a library frees memory of the thread that opened it. A thread's table of
// thread-local storage, which grows as libraries come, belongs to the thread that created it.
#pragma once

namespace shadowib {

// Notes the arena of the calling thread, which gets one here if it has none yet. Again: its arena of now. With very
// many threads the first are forgotten. Uses the program's malloc.
void note_malloc_arena();
// Takes and gives back the lock of each; waits for whoever holds it. One thread at a time.
void take_locks_of_noted_arenas();

}  // namespace shadowib
