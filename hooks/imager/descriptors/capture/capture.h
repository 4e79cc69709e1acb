// The parts of capture_descriptors(), one family of descriptors each. In-process: no program heap, no stdio.
#pragma once

#include <sys/stat.h>

#include <map>
#include <string>
#include <vector>

#include "hooks/imager/descriptors/table.h"
#include "hooks/raw/proc.h"
#include "shadowib/base/status.h"

namespace shadowib::descriptors {

// Each fills `object` from descriptor `fd`, or refuses. kind-independent fields (flags, inode, owner) are set
// already.
// `info` is the text of /proc/self/fdinfo. A file of memory, or one without a name, becomes a segment of `table`.
Status capture_file(int fd, const std::string& target, std::string_view info, Object* object, Table* table);
// The file locks of each descriptor, by its number; no entry for a descriptor without.
using Locks = std::map<int, std::vector<FileLock>>;
Status find_locks(const std::vector<int>& fds, const DescriptorInfos& infos, Locks* locks);
// For files of /proc: the thread or process that the file tells of.
Status capture_process_file(int fd, const std::string& target, Object* object);
Status capture_character_device(int fd, const std::string& target, Object* object);
// /dev/ptmx. The bytes in the pty and the holders of its ends come later, by capture_ptys().
Status capture_pty_master(int fd, const std::string& target, Object* object);
void capture_terminal(int fd, Object* object);
Status capture_pipe(int fd, const std::string& target, Object* object);
Status capture_anonymous(int fd, const std::string& target, std::string_view info, Object* object);
bool is_eventfd(std::string_view info);
Status capture_eventfd(int fd, std::string_view info, Object* object);
Status capture_socket(int fd, Object* object);

// The segments that this process has mapped: before any descriptor is looked at.
Status capture_shared_memory(Table* table);
// System V semaphores, queues, and segments that are not attached: after capture_shared_memory().
Status capture_system_v(Table* table);
// When a file was made, by CLOCK_REALTIME, whoever has written since. Where the kernel does not know (tmpfs
// before 5.18): when it was last changed.
timespec time_made(int fd);
// Whether a file that was made then may be memory that is still being made.
bool just_made(std::int64_t made_s, std::int64_t now_s);
// True if the content of this regular file, open at `fd`, is to be in the image.
bool is_memory_file(int fd, const std::string& target, const struct stat& st, const Table& table);
Status capture_memory_file(int fd, const std::string& target, const struct stat& st, Object* object, Table* table);

// Once all descriptors are listed: the ptys among them, and the controlling terminal.
Status capture_ptys(Table* table);

// Reads the entries of an epoll set into `object`, those on owned descriptors left out: the shim, which put them
// there, has others after a restart and adds these itself.
Status capture_epoll_entries(int fd, Object* object);

// The bytes waiting in a socket, left there. `object` has domain, type and state.
Status capture_socket_queue(int fd, Object* object);

// In the member, stopped: its process group, its session, and its children. kRefused: one of them cannot be made
// again even if it is a member.
Status capture_family(Table* table);

}  // namespace shadowib::descriptors
