// Finding the program to run, and judging whether shadowib can go with it.
#pragma once

#include <string>

#include "shadowib/base/status.h"

namespace shadowib::cli {

// The file that `name` means: itself if it has a '/', else the first executable of that name in $PATH.
// kNotFound; kPermission if it exists and may not be executed.
Status find_program(const std::string& name, std::string* path);

// kRefused, with the reason and what to do, for programs the dynamic loader does not preload into: static, setuid,
// setgid, with file capabilities, of another architecture or C library. Scripts are followed to their interpreter.
Status judge_program(const std::string& path);

}  // namespace shadowib::cli
