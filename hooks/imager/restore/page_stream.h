// Compressed pages on their way into members that are being restored.
//
// The restorer has no room for decoders. So the command makes a process for each member that has such pages. It
// decompresses them, and writes them to a socket, from which the restorer reads them to their places. It is no part
// of the members' pid namespace, in which each number may be some thread's. It holds a few MiB, and ends by itself.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "hooks/imager/restore/members.h"

namespace shadowib {

// Whether some private pages of the image, or of its packs, come by a stream.
bool has_compressed(const LoadedImage& image);

// The ends that members read from, and the processes behind them.
class PageStreams {
 public:
  // Forks. Call in a process of one thread, outside of the members' pid namespace. kIo.
  Status start(const RestartPart& part);
  // That member's end; -1: it has no compressed pages. Stays this object's.
  int of(std::uint32_t member) const;
  // All but that member's. In each process that has this object's descriptors.
  void close_others(std::uint32_t member);
  void close_all();
  // Where they were started: ends and reaps those that are left.
  void end();
  // Such a process was reaped elsewhere.
  void forget(pid_t pid) { processes_.erase(pid); }

 private:
  std::map<std::uint32_t, int> ends_;
  std::set<pid_t> processes_;
};

// In a member: which batches of its image are wanted, in which order. Once. Each comes as its pages, and nothing
// between them. kIo.
Status ask_for_pages(int stream, const std::vector<std::uint32_t>& batches);

}  // namespace shadowib
