// Where images lie that stay near their members: PLACE/shadowib-UID/<job>/<set id>/, on each host its own.
//
// PLACE is a directory that others may write to, such as /dev/shm. So the directory of the user must be the user's
// own: nobody else may have made it, and no link may lead elsewhere. Below it all is private.
//
// For members and commands, any thread. Opens by system calls; paths use the heap of the caller.
#pragma once

#include <string>
#include <string_view>

#include "shadowib/base/status.h"

namespace shadowib {

// In a set's near directory: a symbolic link to the checkpoint directory that the set belongs to.
inline constexpr char kNearHome[] = "home";

// PLACE/shadowib-UID of the calling user, and what lies below it.
std::string near_root(std::string_view place);
std::string near_set_path(std::string_view place, std::string_view job, std::string_view set_id);

// Checks PLACE/shadowib-UID, and makes it if `make`. kPermission: somebody else owns it, others may enter, or it is a
// link. kIo with errno: no such place, no space.
Status check_near_root(const std::string& place, bool make);

// Makes and opens the directory of a set below PLACE, with its link to `directory`. *fd is the caller's, not owned.
Status make_near_set(const std::string& place, const std::string& job, const std::string& set_id,
                     const std::string& directory, int* fd);
// Syncs the directories from the set's up to PLACE, so that what make_near_set() made survives a power failure.
Status sync_near_set(const std::string& place, const std::string& job, const std::string& set_id);
// Removes an image of a set that is given up, and the directories that are empty then. Tells no failure: gc finds it.
void remove_near_image(const std::string& place, const std::string& job, const std::string& set_id,
                       const std::string& file);

}  // namespace shadowib
