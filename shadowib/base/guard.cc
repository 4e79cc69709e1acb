#include "shadowib/base/guard.h"

#include <cstdlib>
#include <cstring>
#include <iterator>

#include "shadowib/base/log.h"

namespace shadowib {
namespace {

// In the order of Guard.
constexpr const char* kNames[] = {"h1",
                                  "h2",
                                  "h3",
                                  "h3.late",
                                  "h4",
                                  "h4.swallow",
                                  "h4.fence",
                                  "h5.blocked",
                                  "h5.retries",
                                  "h6.limit",
                                  "h6.purged",
                                  "h7.order",
                                  "h7.purge",
                                  "h8.fired",
                                  "h8.armed",
                                  "h8.descriptor",
                                  "h8.forced",
                                  "h9.read",
                                  "h9.inline",
                                  "h10.held",
                                  "h10.init",
                                  "h10.error",
                                  "h11.numbers",
                                  "h11.lookup",
                                  "h12.once",
                                  "h12.source",
                                  "h13",
                                  "h14.inside",
                                  "h14.loader",
                                  "h15.bound",
                                  "h15.invalidated",
                                  "h16",
                                  "h17",
                                  "h18.listen",
                                  "h18.ask",
                                  "h19",
                                  "h20.gone",
                                  "h20.pause",
                                  "h29"};
static_assert(std::size(kNames) == static_cast<std::size_t>(Guard::kGateReplays) + 1);

std::uint64_t bit_of(const char* name, std::size_t length) {
  for (std::size_t i = 0; i < std::size(kNames); ++i)
    if (std::strlen(kNames[i]) == length && std::strncmp(kNames[i], name, length) == 0) return std::uint64_t{1} << i;
  SHADOWIB_CHECK(false, "SHADOWIB_GUARD_OFF names no guard: %.*s", static_cast<int>(length), name);
  return 0;
}

std::uint64_t left_out() {
  std::uint64_t bits = 0;
  const char* at = std::getenv("SHADOWIB_GUARD_OFF");
  while (at != nullptr && *at != '\0') {
    const std::size_t length = std::strcspn(at, ",");
    bits |= bit_of(at, length);
    at += length + (at[length] == ',');
  }
  return bits;
}

std::uint64_t g_left_out = 0;

// Once: the image has it from then on.
__attribute__((constructor)) void read_environment() { g_left_out = left_out(); }

}  // namespace

bool guarded(Guard guard) { return (g_left_out >> static_cast<unsigned>(guard) & 1) == 0; }

}  // namespace shadowib
