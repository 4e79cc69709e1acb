// Files and directories that /proc has of processes and threads.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "hooks/imager/descriptors/capture/capture.h"
#include "hooks/imager/descriptors/capture/refuse.h"
#include "hooks/raw/proc.h"

namespace shadowib::descriptors {
namespace {

bool is_thread_of_ours(std::int32_t tid) {
  struct stat st {};
  return ::stat(("/proc/self/task/" + std::to_string(tid)).c_str(), &st) == 0;
}

}  // namespace

// A restart opens it before the process has its threads, other than the first.
Status capture_process_file(int fd, const std::string& target, Object* object) {
  const std::int32_t process = process_of(target), thread = thread_of(target);
  if (process == 0) return {};
  const std::string file = "file " + target;
  const auto own = static_cast<std::int32_t>(parse_number(link_target("/proc/self"), 10));
  if (process != own && !is_thread_of_ours(process)) {
    if (thread == 0 || thread == process) return {};
    return refuse(fd, file.c_str(), "it tells of a thread of another process; close it before the checkpoint",
                  EAGAIN);
  }
  if (own != ::getpid())
    return refuse(fd, file.c_str(), "this /proc counts the processes of another pid namespace; close it first",
                  EAGAIN);
  if (process != own || (thread != 0 && thread != own)) object->kind = Kind::kThreadFile;
  return {};
}

}  // namespace shadowib::descriptors
