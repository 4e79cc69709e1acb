// The threads of this process and small files about them, read with system calls alone: no heap, no stdio, no locks.
#pragma once

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace shadowib {

inline int raw_gettid() { return static_cast<int>(::syscall(SYS_gettid)); }
inline int raw_getpid() { return static_cast<int>(::syscall(SYS_getpid)); }
// May end early, by a signal.
inline void raw_sleep_ms(int ms) {
  const timespec duration{ms / 1000, ms % 1000 * 1'000'000};
  ::syscall(SYS_nanosleep, &duration, nullptr);
}

// Calls visit(tid, arg) for each thread in /proc/self/task until it returns false. False with errno if /proc fails.
bool for_each_task(bool (*visit)(int tid, void* arg), void* arg);

// Reads /proc/self/task/<tid>/<name> (or /proc/self/<name> if tid is 0) into text, terminated. Bytes read, or -1.
int read_task_file(int tid, const char* name, char* text, std::size_t capacity);

// Parses the next decimal or 0x number after blanks and advances *text.
std::uint64_t parse_number(const char** text);

// State letter of a thread ('R', 'S', 'D', 'T', 't', 'Z', 'X'), or 0 if it is gone.
char task_state(int tid);

// A number of /proc/self/task/<tid>/stat (/proc/self/stat if tid is 0), by its field as proc(5) counts them, from 4
// on. False: there is no such thread.
bool task_stat(int tid, int field, std::uint64_t* value);

// "tid 123 (comm), in system call 7 (wchan)": for messages about a thread.
void describe_task(int tid, char* text, std::size_t capacity);

}  // namespace shadowib
