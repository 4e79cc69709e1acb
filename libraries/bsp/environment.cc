#include "libraries/bsp/environment.h"

#include <cerrno>
#include <cstdlib>
#include <string>

#include "libraries/bsp/complain.h"
#include "libraries/bsp/greeting.h"
#include "libraries/bsp/sabotage.h"

namespace shadowib::bsp {
namespace {

constexpr int kSpins = 4000;

long number(const char* name, long least, long most) {
  const char* text = std::getenv(name);
  char* end = nullptr;
  errno = 0;
  const long value = text != nullptr ? std::strtol(text, &end, 10) : least - 1;
  if (text == nullptr || *text == '\0' || *end != '\0' || errno != 0 || value < least || value > most)
    fail("%s=%s is no number from %ld to %ld; start the program by bsprun", name, text != nullptr ? text : "", least,
         most);
  return value;
}

}  // namespace

Environment read_environment() {
  Environment environment;
  if (std::getenv("SHADOWIB_BSP_PROCESSES") == nullptr) return environment;
  environment.is_started = true;
#ifndef SHADOWIB_BSP_PORTABLE
  if (std::getenv("SHADOWIB_BSP_MEETING") != nullptr)
    fail("bsprun --portable runs programs that were compiled by CC=shadowib-cc bspcc; this one was not");
#endif
  environment.processes = static_cast<int>(number("SHADOWIB_BSP_PROCESSES", 1, kMaxProcesses));
  environment.process = static_cast<int>(number("SHADOWIB_BSP_PROCESS", 0, environment.processes - 1));
  environment.here = static_cast<int>(number("SHADOWIB_BSP_HERE", 1, environment.processes));
  const char* epoch = std::getenv("SHADOWIB_BSP_EPOCH");
  char* end = nullptr;
  environment.epoch = epoch != nullptr ? std::strtoull(epoch, &end, 16) : 0;
  if (epoch == nullptr || *epoch == '\0' || *end != '\0')
    fail("SHADOWIB_BSP_EPOCH is no hexadecimal number; start the program by bsprun");
  if (without("epoch")) environment.epoch = 0;
  if (const char* interval = std::getenv("SHADOWIB_BSP_INTERVAL"); interval != nullptr) {
    environment.interval_s = std::strtod(interval, &end);
    if (*interval == '\0' || *end != '\0' || !(environment.interval_s > 0))
      fail("SHADOWIB_BSP_INTERVAL=%s is no number of seconds above 0", interval);
  }
  return environment;
}

int spins_for(int processes_here, int processors) { return processes_here <= processors ? kSpins : 0; }

}  // namespace shadowib::bsp
