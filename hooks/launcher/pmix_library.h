// The functions of libpmix that stand behind ours. libshadowib.so does not need the library: a program that calls
// PMIx has loaded it, often by a plugin and out of everybody else's sight.
#pragma once

#include <pmix.h>

#include "hooks/launcher/stored_value.h"

namespace shadowib {

struct PmixLibrary {
#define SHADOWIB_PMIX_FUNCTION(name) decltype(&::PMIx_##name) name;  // null: the library has none
#include "hooks/launcher/pmix_functions.def"
#undef SHADOWIB_PMIX_FUNCTION
};

// Null if there is none in the process. Stays loaded from the first call on: its thread runs to the process's end if
// a restart has left it without a launcher to say goodbye to.
const PmixLibrary* pmix_library();

// False: a value of that type cannot be told to another process by us.
bool store_value(const pmix_value_t& value, StoredValue* stored);
// Allocated by the program's malloc, as PMIX_VALUE_RELEASE has it; not inside (hooks/threads/stop.h). Null:
// malformed, or no memory.
pmix_value_t* load_value(const StoredValue& stored);
pmix_value_t* copy_value(const PmixLibrary& library, const pmix_value_t& value);
void free_value(const PmixLibrary& library, pmix_value_t* value);

// PMIx_Get from what the library has in this process's memory, whoever is or is not there to be asked.
pmix_status_t get_locally(const PmixLibrary& library, const pmix_proc_t* proc, const char* key,
                          const pmix_info_t* info, std::size_t ninfo, pmix_value_t** value);
bool is_asked_for(const pmix_info_t* info, std::size_t ninfo, const char* attribute);

}  // namespace shadowib
