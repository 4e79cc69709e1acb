#include "perftest/counted_calls.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cstdarg>
#include <cstddef>

namespace shadowib {

CallCounts& call_counts() {
  thread_local CallCounts counts;
  return counts;
}

}  // namespace shadowib

namespace {

void count(long number = -1) {
  shadowib::CallCounts& counts = shadowib::call_counts();
  ++counts.calls;
  counts.sleeps += number == SYS_poll || number == SYS_ppoll || number == SYS_nanosleep || number == SYS_futex;
}

}  // namespace

extern "C" {

long __real_syscall(long number, ...);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f) {
  count(number);
  return __real_syscall(number, a, b, c, d, e, f);
}

int __real_open(const char* path, int flags, ...);
int __wrap_open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const unsigned mode = (flags & O_CREAT) != 0 ? va_arg(rest, unsigned) : 0;
  va_end(rest);
  count();
  return __real_open(path, flags, mode);
}

int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  count();
  return __real_fcntl(fd, command, argument);
}

int __real_ioctl(int fd, unsigned long request, void* argument);
int __wrap_ioctl(int fd, unsigned long request, void* argument) {
  count();
  return __real_ioctl(fd, request, argument);
}

int __real_fstat(int fd, struct stat* info);
int __wrap_fstat(int fd, struct stat* info) {
  count();
  return __real_fstat(fd, info);
}

int __real_fstatat(int directory, const char* path, struct stat* info, int flags);
int __wrap_fstatat(int directory, const char* path, struct stat* info, int flags) {
  count();
  return __real_fstatat(directory, path, info, flags);
}

ssize_t __real_send(int fd, const void* bytes, std::size_t size, int flags);
ssize_t __wrap_send(int fd, const void* bytes, std::size_t size, int flags) {
  count();
  return __real_send(fd, bytes, size, flags);
}

ssize_t __real_recv(int fd, void* bytes, std::size_t size, int flags);
ssize_t __wrap_recv(int fd, void* bytes, std::size_t size, int flags) {
  count();
  return __real_recv(fd, bytes, size, flags);
}

int __real_close(int fd);
int __wrap_close(int fd) {
  count();
  return __real_close(fd);
}

}  // extern "C"
