// What the kernel keeps for single threads and an image holds for all of them together: credentials, directories,
// descriptors, namespaces. And seccomp filters, which no image can hold.
//
// The place is what the process was started in. A filter or a namespace of a container is the place's: a restart gets
// the one of its own place. What the program has added to it would be lost, and is refused.
#pragma once

#include "hooks/threads/stop.h"
#include "shadowib/base/status.h"

namespace shadowib {

// Notes the calling thread's filters and namespaces as the place's. The library does it when it is loaded; call it
// again in a restarted process.
void note_place();

// Compares every thread with the calling one and with the place. kRefused names the thread, what differs and a
// remedy. Sends no signal and changes nothing, so it may come before threads are stopped. No heap.
Status judge_threads();

// The same for what only a parked thread tells of itself: threads[0..count) as parked_threads() lists them.
Status judge_parked_threads(const ParkedThread* threads, int count);

}  // namespace shadowib
