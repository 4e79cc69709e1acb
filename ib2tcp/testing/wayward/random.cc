// Instead of ib2tcp/random.cc: numbers are no accident.
#include <cstring>

#include "ib2tcp/host.h"
#include "ib2tcp/testing/wayward/wayward.h"

namespace shadowib::ib2tcp {

void random_bytes(void* to, std::size_t bytes) {
  const std::uint32_t number = wayward_first_number();
  std::memset(to, 0, bytes);
  std::memcpy(to, &number, bytes < sizeof(number) ? bytes : sizeof(number));
}

}  // namespace shadowib::ib2tcp
