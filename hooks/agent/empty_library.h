// A shared object that holds nothing, for the loader to load and to close again.
//
// Closing any library takes locks and frees memory that opening one by name, when it is there already, does not: the
// list of the threads' stacks, the table of thread-local storage, and the scopes that the program's own dlopen calls
// have put aside, which lie in the arenas of whoever called. Whoever wants to know whether a reload would come to its
// end has to close one.
// Source: glibc 2.36, elf/dl-close.c, _dl_close_worker().
#pragma once

namespace shadowib {

// Loads it into the program's link namespace and closes it. False if it could not be loaded (no descriptor, no
// memory). Takes the loader's locks; no file of the installation is needed.
bool open_and_close_empty_library();

}  // namespace shadowib
