#include "shadowib/exchange/tls_platform.h"

#include <cpuid.h>
#include <fcntl.h>
#include <mbedtls/error.h>
#include <sys/stat.h>
#include <time.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>

#include "shadowib/base/arena.h"
#include "shadowib/exchange/raw_files.h"

namespace {

std::atomic<unsigned int> g_features{0};  // of the processor: cpuid's leaf 1, ECX

}  // namespace

extern "C" {
void* shadowib_tls_calloc(std::size_t count, std::size_t bytes);
void shadowib_tls_free(void* memory);
tm* shadowib_tls_gmtime_r(const time_t* time, tm* calendar);
int mbedtls_aesni_has_support(unsigned int what);
}

void* shadowib_tls_calloc(std::size_t count, std::size_t bytes) {
  if (bytes != 0 && count > SIZE_MAX / bytes) return nullptr;
  return shadowib::arena_allocate_secret(count * bytes);
}

void shadowib_tls_free(void* memory) { shadowib::arena_free_secret(memory); }

// libc's takes the lock of the time zone.
tm* shadowib_tls_gmtime_r(const time_t* time, tm* calendar) {
  const std::chrono::sys_seconds at{std::chrono::seconds(*time)};
  const auto day = std::chrono::floor<std::chrono::days>(at);
  const std::chrono::year_month_day date{day};
  const std::chrono::hh_mm_ss clock{at - day};
  *calendar = {};
  calendar->tm_year = int{date.year()} - 1900;
  calendar->tm_mon = static_cast<int>(unsigned{date.month()}) - 1;
  calendar->tm_mday = static_cast<int>(unsigned{date.day()});
  calendar->tm_hour = static_cast<int>(clock.hours().count());
  calendar->tm_min = static_cast<int>(clock.minutes().count());
  calendar->tm_sec = static_cast<int>(clock.seconds().count());
  return calendar;
}

// In place of mbed TLS's own, which looks once: a restart may be on another processor. `what`: bits of g_features.
// Asked for each block, while cpuid takes a virtual machine tens of microseconds.
int mbedtls_aesni_has_support(unsigned int what) { return (g_features.load(std::memory_order_relaxed) & what) != 0; }

namespace shadowib {
namespace {

constexpr std::size_t kMostBytes = 16u << 20;

}  // namespace

void tls_note_processor() {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  g_features.store(__get_cpuid(1, &a, &b, &c, &d) != 0 ? c : 0, std::memory_order_relaxed);
}

int tls_random(void*, unsigned char* to, std::size_t bytes) {
  while (bytes > 0) {
    const long got = ::syscall(SYS_getrandom, to, bytes, 0);
    if (got < 0 && errno != EINTR) return MBEDTLS_ERR_ERROR_GENERIC_ERROR;
    if (got > 0) to += got, bytes -= static_cast<std::size_t>(got);
  }
  return 0;
}

SecretFile::~SecretFile() { arena_free_secret(bytes_); }

int SecretFile::read(const std::string& path) {
  const OwnedFd fd = open_owned(AT_FDCWD, path.c_str(), O_RDONLY | O_NONBLOCK);
  struct stat st {};
  if (!fd || ::syscall(SYS_fstat, fd.get(), &st) != 0) return errno;
  if (!S_ISREG(st.st_mode) || static_cast<std::size_t>(st.st_size) > kMostBytes) return EINVAL;
  const auto bytes = static_cast<std::size_t>(st.st_size);
  bytes_ = static_cast<unsigned char*>(arena_allocate_secret(bytes + 1));
  if (bytes_ == nullptr) return ENOMEM;
  while (size_ < bytes) {
    const long got = ::syscall(SYS_read, fd.get(), bytes_ + size_, bytes - size_);
    if (got < 0 && errno != EINTR) return errno;
    if (got == 0) break;  // it has become shorter
    if (got > 0) size_ += static_cast<std::size_t>(got);
  }
  return 0;
}

}  // namespace shadowib
