#include "libraries/masterworker/guard.h"

#include <cstdlib>
#include <cstring>

namespace shadowib::masterworker {
namespace {

constexpr const char* kNames[] = {"m1", "m1.life",         "m2",          "m2.known",     "m3",  "m4",  "m5",
                                  "m7", "m10.descriptors", "m10.streams", "m10.mappings", "m12", "m14", "m16"};
constexpr int kGuards = sizeof(kNames) / sizeof(kNames[0]);
static_assert(static_cast<int>(Guard::kSleepAlone) == kGuards - 1);

// True if the comma-separated list has `name` or the group it belongs to: "m10" stands for "m10.streams", too.
bool names(const char* list, const char* name) {
  while (*list != '\0') {
    const std::size_t length = std::strcspn(list, ",");
    if (std::strncmp(list, name, length) == 0 && (name[length] == '\0' || name[length] == '.')) return true;
    list += length + (list[length] == ',' ? 1 : 0);
  }
  return false;
}

struct Switches {
  bool on[kGuards];
  Switches() {
    const char* off = std::getenv("SHADOWIB_GUARD_OFF");
    for (int i = 0; i < kGuards; ++i) on[i] = off == nullptr || !names(off, kNames[i]);
  }
};

Switches& switches() {
  static Switches all;
  return all;
}

}  // namespace

bool guarded(Guard guard) { return switches().on[static_cast<int>(guard)]; }
void switch_guard(Guard guard, bool on) { switches().on[static_cast<int>(guard)] = on; }

}  // namespace shadowib::masterworker
