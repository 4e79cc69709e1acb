// Takes keys out of an exchange that nobody needs any more. For commands: members remove their own keys one by one.
#pragma once

#include <string>

#include "shadowib/base/status.h"

namespace shadowib {

// Removes all keys and barriers below `prefix`, which has a key's form, from the exchange at `uri`. Fine if there are
// none, or no exchange. Nobody may be using them, or a barrier there, any more; what comes meanwhile may stay.
Status remove_below(const std::string& uri, const std::string& prefix);

}  // namespace shadowib
