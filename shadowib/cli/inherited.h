// Descriptors that a program would be started with, and that stand in the way of checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shadowib::cli {

struct InheritedDescriptor {
  int fd;
  std::string target;           // "pipe:[1234]", as /proc names it
  bool taken;                   // a checkpoint takes it, without its other end; else a checkpoint is refused
  std::uint64_t device, inode;  // as fstat(2) tells
};

// Those above 2 that do not close on exec: pipes and sockets whose other end no process of the job need have, and all
// that no image can have. Left out: copies of standard streams, and the socket to a launcher (PMI_FD).
std::vector<InheritedDescriptor> find_inherited();

// "DEVICE:INODE,..." of those that are taken, as SHADOWIB_INHERITED has it.
std::string inherited_list(const std::vector<InheritedDescriptor>& descriptors);

// For a person: a line for those that are taken and one for those that are not; "" if there are none. Those in
// `told`, a list like inherited_list()'s, are left out.
std::string describe_inherited(const std::vector<InheritedDescriptor>& descriptors, const std::string& told);

}  // namespace shadowib::cli
