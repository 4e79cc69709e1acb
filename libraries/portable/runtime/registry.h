// The tables of all object files that are loaded now.
//
// Threads: constructors and dlopen may run in any thread; a mutex guards the list.
#pragma once

#include <string>
#include <vector>

#include "libraries/portable/tables.h"

namespace shadowib::portable {

// Modules in the order of their files' names, so the same in each process of one program.
std::vector<const Module*> modules();

// The instrumented or address-taken function that begins at `address`, or null.
const Function* function_at(const void* address);

// True if code of `function` can be left and entered.
inline bool has_sites(const Function* function) { return function && function->site_count > 0; }

}  // namespace shadowib::portable
