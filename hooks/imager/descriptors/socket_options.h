// Socket options a program may have set: recorded whole, and set again where a new socket differs.
#pragma once

#include <vector>

#include "hooks/imager/descriptors/table.h"
#include "shadowib/base/status.h"

namespace shadowib::descriptors {

// In-process: no program heap.
void record_options(int fd, int domain, Kind kind, std::vector<Option>* options);

// Options that must stand before bind(), connect() or listen().
void apply_early_options(int fd, const std::vector<Option>& options);
// All the others, once the queue is filled (SO_RCVBUF would shrink the room for it), and early ones that a connection
// could not take before. Returns the first that could not
// be set, nullptr if none: worth a warning, not a refusal.
const Option* apply_options(int fd, const std::vector<Option>& options);

// The recorded value of an int option, or `otherwise`.
int recorded_option(const std::vector<Option>& options, int level, int name, int otherwise);

// The size of a TCP socket's receive buffer, which a checkpoint and a restart enlarge for a while by SO_RCVLOWAT.
class ReceiveBuffer {
 public:
  explicit ReceiveBuffer(int fd);
  // Makes it as large as it was, if the program has not chosen a size: the kernel goes on to adapt it.
  void put_back() const;

 private:
  int fd_, bytes_, clamp_, lock_;
};

}  // namespace shadowib::descriptors
