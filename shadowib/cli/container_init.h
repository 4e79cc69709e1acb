// The first process of a container, when that is `shadowib run`.
#pragma once

namespace shadowib::cli {

// Forks if the caller is the first process of its pid namespace, and returns in the child, which is the program to
// be. A member with pid 1 could not be restarted, nor ended by SIGKILL from within. The parent stays as an init: it
// passes signals on, reaps processes, and ends with the child's exit code, 128 + N for signal N. Returns false with
// errno if fork(2) fails. Call it while there is one thread.
bool leave_init_behind();

}  // namespace shadowib::cli
