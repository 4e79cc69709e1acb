// Processes that a rank has the launcher spawn (MPI_Comm_spawn). They are to be members, as the rank is.
#pragma once

#include <pmix.h>

#include <cstddef>

namespace shadowib {

// Copies of `apps` whose environments have what `shadowib run` has put into ours: the preload library, the job and
// its options. A variable that an app names itself stays as it is. Null: this process is in no job, or there is no
// memory; pass `apps` on then. From malloc, as the library may enlarge the environments. Not inside
// (hooks/threads/stop.h).
pmix_app_t* apps_in_job(const pmix_app_t apps[], std::size_t napps);
// Frees them; null does nothing. Not inside.
void free_apps_in_job(pmix_app_t* apps, std::size_t napps);

}  // namespace shadowib
