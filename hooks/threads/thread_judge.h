// Judges state that Linux keeps per thread and an image holds once for all threads: credentials, directories,
// descriptors, namespaces. Seccomp filters are judged as well, since no image can hold them.
//
// A process is started in a place: a container has filters and namespaces. A restart gets those of its own place.
// Filters and namespaces that the program has added would be lost, so they are refused.
#pragma once

#include "hooks/threads/stop.h"
#include "shadowib/base/status.h"

namespace shadowib {

// Notes the calling thread's filters and namespaces as the place's. The library does it when it is loaded; call it
// again in a restarted process.
void note_place();
// Whether the process was started under a seccomp filter.
bool place_has_filter();

// Compares every thread with the calling one and with the place. kRefused names the thread, what differs and a
// remedy. Sends no signal and changes nothing, so it may come before threads are stopped. No heap.
// `again`: threads are stopped now and were judged a moment ago. Leaves out namespaces, which take longest to read.
Status judge_threads(bool again = false);

// Judges state that only a parked thread tells of itself. threads[0..count) as parked_threads() lists them.
Status judge_parked_threads(const ParkedThread* threads, int count);

}  // namespace shadowib
