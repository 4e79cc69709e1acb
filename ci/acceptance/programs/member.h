/* Shared by the small programs of the acceptance lines. They join the job without a device, and take orders from
 * files that appear in the working directory. */
#ifndef CI_MEMBER_H
#define CI_MEMBER_H

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXIT_SKIPPED 77

__attribute__((noreturn, format(printf, 2, 3))) static inline void leave(int code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  vprintf(format, args);
  printf("\n");
  fflush(stdout);
  _exit(code);
}

/* Makes the process a member of the job `shadowib run` has named. */
static inline void join_job(void) {
  int (*join)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "shadowib_join");
  if (join == NULL) leave(1, "shadowib_join is not there: start this under shadowib run");
  int result = join();
  if (result != 0) {
    const char* (*last_error)(void) = (const char* (*)(void))dlsym(RTLD_DEFAULT, "shadowib_last_error");
    leave(1, "shadowib_join: %d: %s", result, last_error != NULL ? last_error() : "");
  }
}

/* Lives on, a millisecond at a time, until the file appears. */
static inline void live_until(const char* file) {
  while (access(file, F_OK) != 0) {
    struct timespec moment = {0, 1000000};
    nanosleep(&moment, NULL);
  }
}

#endif
