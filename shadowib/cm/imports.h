// How the shim comes between librdmacm and the kernel: by librdmacm's own table of imported functions.
//
// librdmacm opens /dev/infiniband/rdma_cm by open, fstat, write and close of libc. Interposing write for the whole
// process would put a check into every write of every program, and would miss librdmacm where it is loaded with
// RTLD_LOCAL or only the drop-in directory is used. Its own entries of these functions are turned to ours instead,
// before its first use of them: it always asks for the list of devices first.
#pragma once

namespace shadowib::cm {

// If librdmacm is loaded and not turned yet. Not inside Inside: takes the loader's lock.
void turn_librdmacm();

}  // namespace shadowib::cm
