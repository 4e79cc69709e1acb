// Small values that processes of a job show each other by name, for shadowib_publish() and shadowib_lookup().
//
// They lie in the exchange as `<epoch>/value/<name>`, and in memory of the process that published them: a restart
// publishes them again from there. Any thread of the program. A process that uses none has nothing of this.
#pragma once

#include <cstddef>

#include "shadowib/base/status.h"

namespace shadowib {

inline constexpr std::size_t kMaxValueBytes = 4096;
inline constexpr std::size_t kMaxValues = 1024;  // of one process

// Publishes value[0..bytes) under a name. A name belongs to the process that has published it first. kBusy, EEXIST:
// another process has it. kUsage: no name (EINVAL), too large (EMSGSIZE), too many names (ENOSPC). Call in a job.
Status publish_value(const char* name, const void* value, std::size_t bytes);

// Copies the value to to[0..capacity). kNotFound: there is none. kUsage: no name (EINVAL), or it does not fit
// (EOVERFLOW). *bytes is its size in the last case, too.
Status lookup_value(const char* name, void* to, std::size_t capacity, std::size_t* bytes);

// Publishes them in a restarted process's new epoch. Its other threads are parked.
Status publish_values_again();

// A forked child has published nothing.
void values_reset_after_fork();

}  // namespace shadowib
