// Pipes and sockets that whoever started the job has left open in it.
#pragma once

#include <sys/stat.h>

namespace shadowib::descriptors {

// Whether descriptor `fd`, which fstat(2) describes so, leads to one of note_inherited()'s.
bool is_inherited(int fd, const struct stat& st);

// In the restored process: the stand-ins that the latest capture's descriptors have become take their places in the
// list.
void renew_inherited();

}  // namespace shadowib::descriptors
