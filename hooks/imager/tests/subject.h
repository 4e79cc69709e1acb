// The parts of scenarios of the test subject.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "hooks/imager/pinned_copies.h"

namespace shadowib::test {

// Packs that an incremental image of it has at most: few, so that few images have them all.
inline constexpr unsigned kPacksOfSubject = 8;

using Scenario = std::function<void()>;
struct Registration {
  Registration(const char* name, Scenario scenario);
};
[[noreturn]] void wrong(const char* file, int line, const char* what);

// Stops the other threads and saves the process. True in a restarted process, false in the original one.
bool save();
// From now on save() captures descriptors and shared memory too, as the agent does.
void with_table();
// Which member of its set this process is; 0 unless told.
void set_member(unsigned member);
// Calls function(pid of the saver) when the program has gone on, before the end of the saver (IMAGER_TEST_SAVER).
void meanwhile(std::function<void(int)> function);
// Calls function(reason) if no saver could be made and the image is written without one.
void without_saver(std::function<void(const char*)> function);
// As if a device had pinned those ranges: save() copies them itself. Calls function() between the room for copies and
// the stop. Ranges are whole pages, in order and apart.
void with_pinned(std::vector<PinnedRange> ranges, std::function<void()> function);
// Bytes that the last save() copied itself.
std::uint64_t pinned_bytes();
// Saves; the original process ends.
void save_and_end();

}  // namespace shadowib::test

#define CHECK_THAT(condition)                                                  \
  do {                                                                         \
    if (!(condition)) ::shadowib::test::wrong(__FILE__, __LINE__, #condition); \
  } while (0)

#define SCENARIO(name)                                                                     \
  static void scenario_##name();                                                           \
  static const ::shadowib::test::Registration registration_##name(#name, scenario_##name); \
  static void scenario_##name()
