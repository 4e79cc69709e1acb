#include "libraries/bsp/greeting.h"

#include <bit>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "libraries/bsp/little.h"

namespace shadowib::bsp {
namespace {

constexpr std::uint32_t kMagic = 0x31505342;  // "BSP1"

struct Fixed {
  Little<std::uint32_t> magic, process;
  Little<std::uint64_t> epoch, slots_address;
  Little<std::uint32_t> processes, slots_key;
  Little<std::uint16_t> lid;
  std::uint8_t mtu, is_ethernet, gid[16];
  Little<std::uint32_t> layout;
};

using Number = Little<std::uint32_t>;  // of a queue pair, behind it

static_assert(sizeof(Fixed) + sizeof(Number) * kMaxProcesses <= 4096);

}  // namespace

#ifdef SHADOWIB_BSP_PORTABLE
}  // namespace shadowib::bsp
extern "C" int shadowib_portable_has_long_double(void);
namespace shadowib::bsp {
std::uint32_t layout_of_values() {
  const unsigned long_double = shadowib_portable_has_long_double() != 0 ? __LDBL_MANT_DIG__ : 0;
  constexpr std::uint32_t order = std::endian::native == std::endian::big ? kBigEndian : 0;
  return order | long_double << 16 | static_cast<std::uint32_t>(sizeof(long) << 8 | sizeof(void*));
}
#else
std::uint32_t layout_of_values() { return 0; }
#endif

std::vector<std::byte> encode(const Greeting& greeting) {
  Fixed fixed{kMagic,
              greeting.process,
              greeting.epoch,
              greeting.slots_address,
              greeting.processes,
              greeting.slots_key,
              greeting.lid,
              greeting.mtu,
              greeting.is_ethernet,
              {},
              greeting.layout};
  std::memcpy(fixed.gid, greeting.gid.raw, sizeof(fixed.gid));
  const std::vector<Number> numbers(greeting.queue_pairs.begin(), greeting.queue_pairs.end());
  std::vector<std::byte> value(sizeof(fixed) + sizeof(Number) * numbers.size());
  std::memcpy(value.data(), &fixed, sizeof(fixed));
  std::memcpy(value.data() + sizeof(fixed), numbers.data(), sizeof(Number) * numbers.size());
  return value;
}

std::string decode(const std::byte* value, std::size_t bytes, std::uint64_t epoch, int process, int processes,
                   Greeting* greeting) {
  Fixed fixed;
  if (bytes < sizeof(fixed)) return "it is too short";
  std::memcpy(&fixed, value, sizeof(fixed));
  if (fixed.magic != kMagic) return "it was made by another version of the library";
  if (fixed.epoch != epoch) return "it is of another run";
  if (fixed.process != static_cast<std::uint32_t>(process)) return "it is another process's";
  if (fixed.processes != static_cast<std::uint32_t>(processes))
    return "it counts " + std::to_string(fixed.processes) + " processes instead of " + std::to_string(processes);
  if (((fixed.layout ^ layout_of_values()) & ~kBigEndian) != 0)
    return "its processor lays out long, pointers or long double otherwise; one job has one layout";
  if (bytes != sizeof(fixed) + sizeof(Number) * std::size_t{fixed.processes}) return "its size is wrong";
  greeting->epoch = fixed.epoch;
  greeting->process = fixed.process;
  greeting->processes = fixed.processes;
  greeting->lid = fixed.lid;
  greeting->mtu = fixed.mtu;
  greeting->is_ethernet = fixed.is_ethernet;
  greeting->slots_key = fixed.slots_key;
  greeting->slots_address = fixed.slots_address;
  std::memcpy(greeting->gid.raw, fixed.gid, sizeof(fixed.gid));
  greeting->layout = fixed.layout;
  std::vector<Number> numbers(fixed.processes);
  std::memcpy(numbers.data(), value + sizeof(fixed), sizeof(Number) * numbers.size());
  greeting->queue_pairs.assign(numbers.begin(), numbers.end());
  return {};
}

std::string greeting_name(std::uint64_t epoch, int process) {
  char name[64];
  std::snprintf(name, sizeof(name), "bsp.%016" PRIx64 ".%d", epoch, process);
  return name;
}

}  // namespace shadowib::bsp
