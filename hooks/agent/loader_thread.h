// A thread of ours that may take the loader's and malloc's locks, so that nobody else of ours has to.
//
// Reloading a backend at a restart needs dlmopen and dlclose in the program's link namespace, whose locks a program
// thread may hold where it was stopped (H14). The agent therefore rehearses them here before it saves; if the
// rehearsal hangs, the threads are released and stopped again. The thread is exempt, parked for the image and
// restored like the agent.
#pragma once

#include "shadowib/base/status.h"

namespace shadowib {

// Starts the thread (join_job does). Once per process.
Status loader_thread_start();

// Runs fn(arg) on the loader thread and returns its Status; kTimeout if it did not end in time (it goes on, and the
// next call waits for it within its own time). For the agent thread, one call at a time.
Status run_on_loader_thread(Status (*fn)(void*), void* arg, int timeout_ms);

// Takes and gives back the locks a reload needs; kTimeout: a stopped thread holds one of them.
Status loader_rehearse(int timeout_ms);

// Parks the loader thread for the image, and lets it go on after it (both in the original and in a restarted
// process).
Status loader_thread_park(int timeout_ms);
void loader_thread_unpark();

// In a forked child, where the thread does not exist.
void loader_thread_forget();

}  // namespace shadowib
