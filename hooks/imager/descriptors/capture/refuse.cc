#include "hooks/imager/descriptors/capture/refuse.h"

#include <unistd.h>

namespace shadowib::descriptors {

Status refuse(int fd, const char* type, const char* why, int error) {
  return Status::of(Code::kRefused, error, "descriptor %d (%s) of pid %d cannot be checkpointed: %s", fd, type,
                    ::getpid(), why);
}

Status refuse_segment(const Segment& segment, const char* why, int error) {
  return Status::of(Code::kRefused, error, "shared memory (%s) of pid %d cannot be checkpointed: %s",
                    describe_segment(segment).c_str(), ::getpid(), why);
}

Status refuse_child(const Table& parent, const Child& child, const char* why, int error) {
  return Status::of(Code::kRefused, error,
                    "child process %d (%.40s) of pid %d, member %u, cannot be checkpointed: %s", child.pid,
                    child.name.c_str(), parent.pid, parent.member, why);
}

}  // namespace shadowib::descriptors
