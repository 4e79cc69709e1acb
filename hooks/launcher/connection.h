// The descriptors by which a process is connected to its launcher.
#pragma once

#include <string>
#include <vector>

namespace shadowib {

// The address in the last part of "577765376.0;tcp4://127.0.0.1:36397", as a sockaddr; empty: none.
std::string address_in_uri(const std::string& uri);

// Tells the imager of each descriptor that is connected to an address of PMIX_SERVER_URI* (imager/descriptors.h).
// Inside.
void note_launcher_connection();

// Hydra's proxy leaves its own descriptors, and those of ranks it has started before, open in what it starts. Tells
// the imager of those, beside the standard streams, that the process at the other end of `fd` has open as well.
// Inside.
void leave_out_inherited(int fd);

// slurmstepd leaves open, in all tasks that it starts, the socket that its PMIx plugin listens at. Tells the imager
// of listening sockets that the process which started `launch` has open as well. If that process belongs to another
// user and does not show its descriptors, sockets made by another user count. Inside.
void leave_out_listeners(const std::string& launch);

}  // namespace shadowib
