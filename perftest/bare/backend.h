// The backend ib2tcp behind the verbs of a process, without the shim. The shim's overhead is measured against it.
//
// libibverbs-bare.so exports what libibverbs.so.1 does and gives the program the backend's own objects, whose
// functions it calls through them. Nothing is logged, translated or settled; no checkpoint can be taken. The
// processes of a job name one directory, private to them, in SHADOWIB_BARE_DIR, where they find each other as members
// of a job do.
#pragma once

#include "shadowib/abi/backend.h"

namespace shadowib::bare {

// Loads it at the first call, in a link namespace of its own as the shim does. nullptr with errno, and told on
// stderr.
const BackendOps* backend();

// As backend(), by callers that hold an object of it.
const BackendOps& ops();

// Lends the backend the thread that moves data while the program computes, as the shim does. 0 or an errno.
int start_helper();

// Has the libraries that look for devices' files find them (imports.cc), those that are loaded by now.
void turn_program_imports();

}  // namespace shadowib::bare
