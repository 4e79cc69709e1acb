// How processes find each other before they have queue pairs: by values that the job shows to all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace shadowib::bsp {

// bsp.<epoch>.<what>: no other run has such a name.
std::string name_of_run(std::uint64_t epoch, const std::string& what);

// Shows value[0..bytes) to the others. Ends the job if that cannot be.
void show(const std::string& name, const void* value, std::size_t bytes);

// Waits until process `from` shows that value, copies it to value[0..capacity), and returns its size. Ends the job if
// bsprun has seen that process end before. A checkpoint may be taken meanwhile.
std::size_t await(std::uint64_t epoch, int from, const std::string& name, void* value, std::size_t capacity);

// How many processes begin, if that is fewer than bsprun has started. The others may come when the job has ended,
// with all that it has shown. 0: nobody has noted it.
void note_count(int count);
int noted_count();

// Several processes may see that one is gone. True for the one that tells it; also if nobody can know.
bool is_first_to_tell(std::uint64_t epoch);

}  // namespace shadowib::bsp
