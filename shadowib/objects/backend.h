// The backend below: loaded into a link namespace of its own, reloaded afresh by a restart.
#pragma once

#include "shadowib/abi/backend.h"
#include "shadowib/base/status.h"

namespace shadowib {

// The table of the loaded backend. Valid after load_backend().
extern BackendOps g_backend __attribute__((visibility("hidden")));
bool backend_loaded();
// Whether the log of messages to other clusters is three quarters full.
bool border_log_fills();

// Backends that are loaded from now on get this as HostServices::trace.
void trace_borders(void (*trace)(const BorderEvent* event));

// Chooses and loads: `choice` is auto, verbs, ib2tcp, null, or the absolute path of a backend library. auto: verbs if
// this machine has an RDMA device, else ib2tcp. Idempotent. kUsage, kNotFound (with path and loader's message).
Status load_backend(const char* choice);

// Abandons the loaded copy (no function of it is called) and loads `choice` afresh. Called by the loader thread of a
// restart.
Status reload_backend(const char* choice);

// In a forked child: the inherited copy is not usable (its descriptors and memory are gone); the next load is a fresh
// one.
void forget_backend_after_fork();

// Fills the table from the system's libibverbs (SHADOWIB_IBVERBS=FILE, of the program or of the restart command, or
// libibverbs.so.1) in its own namespace.
Status load_verbs_backend(const HostServices* host, BackendOps* ops, void** handle);

// If `handle` is that library's: closes it and the providers it has loaded. False if it is another backend's.
bool close_verbs_backend(void* handle);

// True if /sys/class/infiniband lists a device that is not iWARP's.
bool machine_has_rdma_device();
// Names of such devices, in no order; of more than `capacity` some. Returns how many.
int list_rdma_devices(char (*names)[IBV_SYSFS_NAME_MAX], int capacity);

}  // namespace shadowib
