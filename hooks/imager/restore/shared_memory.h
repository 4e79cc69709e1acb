// Shared memory of a set made again: once for all members that had it, with the content that one of their images has.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hooks/imager/bonds.h"
#include "hooks/imager/descriptors/table.h"
#include "hooks/imager/restore/members.h"

namespace shadowib {

class SharedMemoryPlan {
 public:
  SharedMemoryPlan() = default;
  ~SharedMemoryPlan() { close(); }
  SharedMemoryPlan(const SharedMemoryPlan&) = delete;
  SharedMemoryPlan& operator=(const SharedMemoryPlan&) = delete;

  // In the restart command, before its parts: what members share is of one machine, not of one pid namespace. Files
  // have their names, and what has them now keeps them, until finish().
  Status prepare(const OpenedSet& set);
  // In a part's first process, whose IPC namespace has nothing in it: System V segments, with their ids, and files
  // without a name, which the members can give one.
  Status prepare_in_part(const RestartPart& part);

  struct Backing {
    int fd = -1;     // of a file, for reading and writing
    int shmid = -1;  // else of a System V segment
    std::uint64_t bytes = 0;
  };
  // The memory behind that segment of a member's table; false if there is none.
  bool find(std::uint32_t member, std::uint64_t segment, Backing* backing) const;

  // In a supervisor, when all its members have mapped what they had: names, modes, seals. Nothing is named before.
  Status finish();
  // In the command, when the restart has failed: what was not finished is as it was before.
  void discard();
  // Lets go of it in this process; those who have it keep it.
  void close();

 private:
  struct Made {
    descriptors::Segment segment;
    Backing backing;
    std::string beside;  // the file's name until finish()
    std::uint8_t* attached = nullptr;
    bool in_part = false;  // made by prepare_in_part()
  };
  Status make_system_v(Made* made);
  Status fill(const MemberImage& member, bool in_part);

  std::map<std::string, Made> made_;
  std::vector<std::string> unfinished_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::string> keys_;  // of members' segments
};

// Whether one of the part's members has System V segments, semaphores or queues, whose ids are to be had in an IPC
// namespace of its own.
bool has_system_v(const OpenedSet& set, const RestartPart& part);

// Bonds of all members that have the same memory.
Status find_memory_bonds(const OpenedSet& set, const BondSink& sink);
// Without making anything: `obstacle` gets what is shared with members that are restarted elsewhere, the names that
// somebody else has taken, and the directories that are not there. Fails itself if the tables cannot be understood.
Status judge_shared_memory(const OpenedSet& set, const std::function<void(const Status&)>& obstacle);

}  // namespace shadowib
