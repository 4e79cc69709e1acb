// System V semaphores and message queues of a set made again, in the IPC namespace of a part of the restart.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "hooks/imager/bonds.h"
#include "hooks/imager/restore/members.h"

namespace shadowib {

class SystemVPlan {
 public:
  // In a part's first process, whose IPC namespace has nothing in it: with ids, keys, values and messages. kRefused
  // names what cannot be had.
  Status prepare(const OpenedSet& set, const RestartPart& part);
  // In the member's process, before it has threads: what SEM_UNDO has noted for it.
  Status restore_undo(const std::string& table) const;

 private:
  std::map<std::pair<std::uint64_t, std::int32_t>, int> semaphores_;  // by space and recorded id
};

// All who use the same object, and whether they can be restarted here.
Status find_system_v_bonds(const OpenedSet& set, const BondSink& sink);
Status judge_system_v_here(const OpenedSet& set, const std::function<void(const Status&)>& obstacle);

// Objects made until one has the wanted id, where ids cannot be chosen: some tenths of a second.
inline constexpr int kMostIdTries = 300000;
// Sets the id of the next object of that kind (`sem`, `msg`, `shm`) in this IPC namespace. False if the kernel lets
// nobody choose.
bool set_next_system_v_id(const char* kind, int id);

}  // namespace shadowib
