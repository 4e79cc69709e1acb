// Libraries a backend builds on that know nothing of shadowib: libfabric and what it brings.
//
// They open descriptors, map devices, install signal handlers and start threads at will, and all of that would be
// taken for the program's. So their own imports of these functions lead to us (base/imports.h): what they open is
// owned, handlers are not installed, threads are refused.
//
// Such a library outlives a restart, and with it the backend's link namespace. Its destructors could not be run: its
// descriptors and peers are gone. A namespace that still holds something is never given back, and the loader has
// sixteen. The next copy of the backend is loaded beside it and makes new objects; the old ones stay in the library's
// heap, which is the image's like the program's.
#pragma once

#include <dlfcn.h>

namespace shadowib {

// Loads `name` into the link namespace of `beside`, a handle of the loader's; again: takes what it has loaded by
// itself since in hand, too. One such library a process. Signal dispositions that its constructors change are put
// back. nullptr if it cannot be loaded (dlerror() says why). Not inside Inside: takes the loader's lock.
void* open_foreign_library(void* beside, const char* name);

// After a restart, and in a forked child: what it had opened is gone, and the numbers may be somebody else's.
void abandon_foreign_descriptors();

// The namespace that holds one, where the next backend goes; LM_ID_NEWLM if none does.
Lmid_t namespace_of_foreign_library();

}  // namespace shadowib
