// The shim comes between some libraries and the kernel by their own tables of imported functions.
//
// librdmacm opens /dev/infiniband/rdma_cm by open, fstat, write and close of libc. UCX's libuct_ib asks by stat and
// access whether a device's file is there. Interposing write for the whole process would put a check into every
// write of every program. It would also miss a library that is loaded with RTLD_LOCAL, or where only the drop-in
// directory is used. So the entries of these functions in these libraries are turned to ours instead, before their
// first use: both ask for the list of devices first.
#pragma once

namespace shadowib {

// In those that are loaded and not turned yet. Not inside Inside: takes the loader's lock.
void turn_program_imports();

}  // namespace shadowib
