// Directories that a launcher gives to its ranks for files of theirs (Open MPI: /tmp/ompi.HOST.UID/pid.N/…), and
// takes away when it ends. A rank makes files there later, too: for windows in shared memory, for collectives.
#pragma once

#include <string>
#include <vector>

namespace shadowib {

// This user's, and not one for everybody, like /tmp.
bool is_session_directory(const char* path);

// All that this user has at `roots` and below, each after the one that it is in. Directories on a root's path need no
// care here: making a root makes them.
std::vector<std::string> find_session_directories(const std::vector<std::string>& roots);

// Makes them again where they are gone, for their owner only. One that cannot be made is a warning: perhaps the rank
// needs it no more. Adds to `made` what was made, outermost first.
void make_session_directories(const std::vector<std::string>& directories, std::vector<std::string>* made);
// Takes away those that were made, unless something is in them.
void remove_session_directories(std::vector<std::string>* made);

}  // namespace shadowib
