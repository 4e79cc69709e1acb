// The parts of capture_descriptors(), one family of descriptors each. In-process: no program heap, no stdio.
#pragma once

#include <sys/stat.h>

#include <string>
#include <vector>

#include "hooks/imager/descriptors/table.h"
#include "shadowib/base/status.h"

namespace shadowib::descriptors {

// Each fills `object` from descriptor `fd`, or refuses. kind-independent fields (flags, inode, owner) are set
// already.
Status capture_file(int fd, const std::string& target, Object* object);
Status capture_character_device(int fd, const std::string& target, Object* object);
Status capture_pipe(int fd, const std::string& target, Object* object);
Status capture_anonymous(int fd, const std::string& target, Object* object);
Status capture_socket(int fd, Object* object);

// Reads the entries of an epoll set into `object`, those on owned descriptors left out: the shim, which put them
// there, has others after a restart and adds these itself.
Status capture_epoll_entries(int fd, Object* object);

// The bytes waiting in a socket, left there. `object` has domain, type and state.
Status capture_socket_queue(int fd, Object* object);

}  // namespace shadowib::descriptors
