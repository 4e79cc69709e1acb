// The near tier as a command sees it: the place on this host, and the sets that have images there.
#pragma once

#include <string>
#include <vector>

#include "hooks/store/store_spec.h"
#include "shadowib/base/status.h"

namespace shadowib {

// True if the directory lies in memory (tmpfs, ramfs). kIo: there is none.
Status is_in_memory(const std::string& place, bool* in_memory);

// The place can take images of that store here: it is there, on the right kind of file system, writable, and its
// directory for this user is the user's own; makes that. kUsage, kIo, kPermission.
Status check_near_place(const StoreSpec& spec, const std::string& place);

// A directory of images below a place.
struct NearSet {
  std::string place, path, job, set_id;
};
// All that belong to the checkpoint directory `directory`, in no order. None if there is no such place.
Status list_near_sets(const std::string& place, const std::string& directory, std::vector<NearSet>* sets);
// A piece under way is `.FILE.part-XXXXXXXX` beside the others, and locked (flock) by whoever writes it.
inline constexpr char kPartMark[] = ".part-";
// Removes pieces under way in a set's directory whose writers have ended, and adds their paths to *removed.
Status remove_parts(const std::string& path, bool dry_run, std::vector<std::string>* removed);
// Removes what this host has of a set, and the directories above it that are empty then.
Status remove_near_set(const std::string& place, const std::string& job, const std::string& set_id);

}  // namespace shadowib
