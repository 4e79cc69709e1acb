// The kernel's side of librdmacm: what its device file /dev/infiniband/rdma_cm answers, in this process.
//
// librdmacm of rdma-core writes commands (rdma/rdma_user_cm.h, ABI version 4) into a file and finds the answer in its
// own memory when write returns. Here the file is an eventfd and write is ours (entry/imports.h). So every function
// of librdmacm, rsockets included, is rdma-core's own, and what would be a kernel's state is in this process and its
// images.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace shadowib::cm {

// As open(2): the descriptor, or -1 with errno.
int open_device_file();
bool is_device_file(int fd);
// As close(2), on one of them.
int close_device_file(int fd);
// As write(2), on any descriptor: a command, if it is one of them.
ssize_t write_any_file(int fd, const void* data, std::size_t bytes);

// At exit: tells peers that what is connected is so no more.
void leave_connections();

}  // namespace shadowib::cm
