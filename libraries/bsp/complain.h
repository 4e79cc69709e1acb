// How a process's part of a job ends other than by bsp_end(): one message, and the exit code that bsprun knows.
#pragma once

#include <cstdarg>

namespace shadowib::bsp {

// A wrong call, bsp_abort(), or an exit before bsp_end(). bsprun ends the other processes.
inline constexpr int kAbortedExit = 124;

// Set by the process's state: tells the peers that the job ends, before this process does.
extern void (*tell_peers)();
// This process's number, for messages; -1: not known yet.
extern int own_number;

// Writes "bsp: process N: TEXT" to standard error in one call, tells the peers, and exits with kAbortedExit. Streams
// of the program are flushed first, once.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] void fail_with(const char* format, va_list arguments);

// Writes such a line and goes on.
void say(const char* format, ...) __attribute__((format(printf, 1, 2)));
void vsay(const char* format, va_list arguments);

// Another process has told why the job ends: this one ends without a word.
[[noreturn]] void end_quietly();
// So long a process waits before that, for the one that tells, and for the starter to end it.
inline constexpr int kToBeEndedMs = 5000;
inline constexpr int kLookMs = 10;  // between two looks whether it shall

// A peer is gone, which was told. The process kills itself by SIGABRT: to a supervisor an orderly exit would be a
// result.
[[noreturn]] void end_for_lost_peer();

}  // namespace shadowib::bsp
