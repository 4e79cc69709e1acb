// Big processes. IMAGER_TEST_MIB sets the size.
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "hooks/imager/tests/subject.h"

using namespace shadowib::test;

namespace {

double now() {
  timespec ts{};
  ::clock_gettime(CLOCK_REALTIME, &ts);
  return static_cast<double>(ts.tv_sec) + static_cast<double>(ts.tv_nsec) * 1e-9;
}

double processor_seconds(const rusage& u) {
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

SCENARIO(big) {
  const char* size = std::getenv("IMAGER_TEST_MIB");
  const std::size_t bytes = static_cast<std::size_t>(size == nullptr ? 256 : std::atoi(size)) << 20;
  auto* memory =
      static_cast<std::uint64_t*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK_THAT(memory != MAP_FAILED);
  std::uint64_t x = 88172645463325252ull;
  for (std::size_t i = 0; i < bytes / 8; ++i) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    memory[i] = x;
  }
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  const double start = now();
  const bool restarted = save();
  ::getrusage(RUSAGE_SELF, &after);
  if (!restarted) {
    // Beyond the program's memory only a little.
    std::printf("saved %zu MiB in %.3f s, %.3f s of processor time, %ld KiB more\n", bytes >> 20, now() - start,
                processor_seconds(after) - processor_seconds(before), after.ru_maxrss - before.ru_maxrss);
    std::fflush(stdout);
    CHECK_THAT(after.ru_maxrss - before.ru_maxrss < (16 << 10));
    ::_exit(10);
  }
  std::printf("running at %.3f after %.3f s of processor time\n", now(), processor_seconds(after));
  std::fflush(stdout);
  x = 88172645463325252ull;
  for (std::size_t i = 0; i < bytes / 8; ++i) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    CHECK_THAT(memory[i] == x);
  }
}

}  // namespace
