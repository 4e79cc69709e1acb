#include "libraries/portable/runtime/foreign.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/single_threaded.h>
#include <unwind.h>

#include <cerrno>
#include <cstring>

#include "libraries/portable/image/image.h"
#include "libraries/portable/runtime/registry.h"

namespace shadowib::portable {
namespace {

struct StackWalk {
  const void* begin;
  const void* main_function;
  bool begun = false;
  bool ended = false;
  const Function* inner = nullptr;
  std::string reason;
  std::uint64_t first = 0, last = 0;
};

std::string name_of(const void* code) {
  Dl_info info = {};
  if (dladdr(code, &info) && info.dli_sname) return function_text(info.dli_sname);
  return info.dli_fname ? std::string("a function of ") + info.dli_fname : "unknown code";
}

_Unwind_Reason_Code visit(_Unwind_Context* context, void* argument) {
  auto& walk = *static_cast<StackWalk*>(argument);
  auto* code = reinterpret_cast<char*>(_Unwind_GetIP(context));
  if (!walk.begun) {
    if (code != walk.begin) return _URC_NO_REASON;
    walk.begun = true;
    walk.first = _Unwind_GetCFA(context);
  }
  const void* start = _Unwind_FindEnclosingFunction(code - 1);
  const Function* function = start ? function_at(start) : nullptr;
  if (!has_sites(function)) {
    walk.reason = name_of(code - 1) + " called " + (walk.inner ? function_text(walk.inner->name) : "a site()") +
                  ", and was not compiled by shadowib-cc: its frame cannot be left";
    return _URC_NORMAL_STOP;
  }
  walk.inner = function;
  walk.last = _Unwind_GetCFA(context);
  walk.ended = start == walk.main_function;
  return walk.ended ? _URC_NORMAL_STOP : _URC_NO_REASON;
}

}  // namespace

std::string foreign_frame(const void* begin, const void* main_function, std::uint64_t* depth_bytes) {
  StackWalk walk = {begin, main_function};
  _Unwind_Backtrace(visit, &walk);
  *depth_bytes = walk.last - walk.first;
  if (!walk.reason.empty()) return walk.reason;
  return walk.ended ? "" : "main() is not on the stack of this site";
}

namespace {

// A program under qemu-user sees the emulator's own threads, too.
bool emulated() {
  char name[17] = {};
  return prctl(PR_GET_NAME, name) == 0 && std::strncmp(name, "qemu-", 5) == 0;
}

}  // namespace

std::string other_threads() {
  if (__libc_single_threaded && emulated()) return "";
  DIR* tasks = opendir("/proc/self/task");
  if (!tasks) return std::string("the threads of this process cannot be counted: ") + std::strerror(errno);
  unsigned count = 0;
  errno = 0;
  while (const dirent* entry = readdir(tasks)) count += entry->d_name[0] != '.';
  const int error = errno;
  closedir(tasks);
  if (error != 0) return std::string("the threads of this process cannot be counted: ") + std::strerror(error);
  return count == 1 ? "" : "the process has " + std::to_string(count) + " threads; one is supported";
}

}  // namespace shadowib::portable
