// What the loader has allocated for a library lies in the malloc arena of the thread that had it loaded, and closing
// the library takes that arena's lock, whoever closes it. A program thread may hold it where it was stopped (H14).
#pragma once

namespace shadowib {

// The calling thread has loaded libraries that a reload will close. Uses the program's malloc.
void note_loader_memory();
// Takes and gives back the lock that closing them needs; waits for whoever holds it. One thread at a time.
void take_lock_of_loader_memory();

}  // namespace shadowib
