#include <sys/random.h>

#include <cerrno>

#include "ib2tcp/host.h"

namespace shadowib::ib2tcp {

void random_bytes(void* to, std::size_t bytes) {
  auto* at = static_cast<unsigned char*>(to);
  while (bytes > 0) {
    ssize_t n = ::getrandom(at, bytes, 0);
    SHADOWIB_CHECK(n > 0 || errno == EINTR, "getrandom failed");
    if (n <= 0) continue;
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

}  // namespace shadowib::ib2tcp
