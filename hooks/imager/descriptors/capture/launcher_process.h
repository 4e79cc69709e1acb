// The process that has started this one as a rank.
#pragma once

#include <sys/types.h>

#include <string>

namespace shadowib::descriptors {

// The nearest above that is not of the launch itself, by PMIX_NAMESPACE in its environment: between the two there may
// be shells. 0: there is none, or it is in another pid namespace.
pid_t launcher_process(const std::string& launch);

}  // namespace shadowib::descriptors
