// Shared memory of a job: what the members' tables (descriptors.h) tell of it, who writes its content into which
// image, and who else has it.
//
// Every segment is saved once, by the member that can see most of it, and among equals by the one of lowest index; on
// each machine, since that is what shares memory. Its content is read while all threads of all members are parked.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "shadowib/base/status.h"

namespace shadowib {

// One segment of a member's table, in the table's order, as save_image needs it.
struct SharedMemory {
  std::uint64_t device, inode;  // as /proc/self/maps tells
  bool system_v;
  bool in_memory;            // of tmpfs: what is not resident (where nothing is swapped) is zero
  std::uint64_t low, bytes;  // of its content [low, bytes) goes into this image; bytes 0: another member's does
  int fd;                    // to read it from; or, if -1,
  std::uint64_t view;        // where `low` is mapped for that,
  bool view_is_ours;         // by us, or by the program
};

// In the command, phase 60: what each member that has shared memory is to write. Lines of text, for
// SharedMemorySource. kRefused names what is shared with processes outside the job, as far as the tables tell, and
// what nobody can read.
Status assign_shared_memory(const std::map<std::uint32_t, std::string>& tables,
                            std::map<std::uint32_t, std::string>* duties);

// In the member, from the command's word until the image is written.
class SharedMemorySource {
 public:
  // `table` is the member's own, `duty` what the command has for it, empty if it has no shared memory. kRefused names
  // memory that a process outside the job has too (as far as /proc shows), or what cannot be read.
  Status open(const std::string& table, const std::string& duty);
  // Not in a restarted process, where there is nothing of it.
  void close();
  const std::vector<SharedMemory>& list() const { return list_; }

 private:
  std::vector<SharedMemory> list_;
};

// A file by device and inode, as stat has them.
using FileNumbers = std::pair<std::uint64_t, std::uint64_t>;

// Looks for a process that has one of `files` mapped or open, other than this one and those that `knows` by the inode
// of their pid namespace and their number in it. *who is set to "process 77 (name)", or is empty if there is none
// that can be seen.
void find_user(const std::set<FileNumbers>& files, const std::function<bool(std::uint64_t, int)>& knows,
               FileNumbers* file, std::string* who);

}  // namespace shadowib
