// The descriptor by which a rank asks its launcher in PMI-1, PMI_FD. While there is a launcher all that is said
// passes by here, and is noted; afterwards we answer (pmi_server.h), in the thread that reads.
//
// No two threads talk at the same time: answers carry no number by which they could be told apart.
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "shadowib/base/status.h"

namespace shadowib {

// Somebody has asked for its number: what is written there may be PMI-1. If its first words are others it is
// forgotten.
void note_pmi_descriptor(int fd);
bool is_pmi_descriptor(int fd);
void forget_pmi_descriptor();  // it is closed

// As write(2) and read(2); not inside (hooks/threads/stop.h). A read returns whole answers only, unless it has no
// room for one.
ssize_t write_pmi(const void* data, std::size_t bytes);
ssize_t read_pmi(void* data, std::size_t bytes);

// In a restarted process, threads parked: who sleeps in a read of the launcher's answer is woken, to be answered by
// us.
Status take_pmi_descriptor();
void reset_pmi_after_fork();

}  // namespace shadowib
