// Where this installation's libraries lie, found from the command's own place so that a tree may be moved.
#pragma once

#include <string>

#include "shadowib/base/status.h"

namespace shadowib::cli {

struct Libraries {
  std::string preload;    // libshadowib.so
  std::string dropin;     // directory with drop-in libibverbs names; empty if absent
  std::string ib2tcp;     // the backend; empty if absent
  std::string join;       // makes a process a member when it is loaded; empty if absent
  std::string sanitizer;  // a runtime that must come before every other library (libasan, libtsan); usually empty
};

// kNotFound names the places looked at.
Status find_libraries(Libraries* libraries);

// LD_PRELOAD with ours in front of what is there, once. `joins`: with that which makes each process a member.
std::string preload_list(const Libraries& libraries, bool joins, const std::string& before);

// LD_LIBRARY_PATH with the drop-in directory in front, once.
std::string library_path(const Libraries& libraries, const std::string& before);

}  // namespace shadowib::cli
