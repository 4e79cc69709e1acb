// The state of the system's verbs library beside its heap: descriptors of /dev/infiniband/uverbsN and mappings of it.
// Both are the backend's, no part of an image, and shielded from the program.
#pragma once

#include "shadowib/abi/backend.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {

// Moves *fd up, out of the program's way. False with errno: it is as before.
bool own_library_descriptor(const UnownedDescriptors& unowned, int* fd);

// Before the library closes it: *fd becomes one that is nobody's.
void return_library_descriptor(const HostServices* host, int* fd);

// Declares every mapping of a device of /dev/infiniband as no part of an image, and those of the last call that are
// gone no longer. Threads are stopped. 0 or an errno.
int own_device_mappings(const HostServices* host);
// A library is loaded anew: what that of the image, or of the parent, had mapped is not there, and no longer
// declared.
void forget_device_mappings();

}  // namespace shadowib
