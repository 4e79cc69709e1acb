// A command changes an exchange's URI before members get it: a member can neither ask a resolver nor keep a password
// (exchange/redis_place.h).
#pragma once

#include <string>

#include "shadowib/base/status.h"

namespace shadowib::cli {

// For redis: turns the host's name into the numeric address that answers. Moves a password, from the URI or
// SHADOWIB_REDIS_PASSWORD, to `password_file` (of a job; 0600), which the URI then names. Without such a file ("",
// for a command that looks at no job) the password stays in the URI. pmix: is found (launched_exchange.h), and its
// password goes there, too. Other URIs stay as they are. Again is fine. kIo: no address answers; kNotFound: the name
// is unknown.
Status settle_exchange(const std::string& password_file, std::string* uri);

// As it may stand in a file that is read by more than this job: no password.
std::string recorded_exchange(const std::string& uri);

// True if whoever reaches the exchange from another machine may use it.
bool open_to_everybody(const std::string& uri);

}  // namespace shadowib::cli
