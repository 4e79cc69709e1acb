// The state of this process, as the tables of its object files describe it.
//
// Threads: the program's first thread only, with the stack left. Throws Refused.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "libraries/portable/image/image.h"
#include "libraries/portable/tables.h"

namespace shadowib::portable {

struct State {
  Image image;  // without bytes
  // In the order of the image's lists.
  std::vector<unsigned char*> memory;  // of each object: where its bytes are
  std::vector<const Function*> functions;
  std::vector<const Allocation*> allocations;
};

// Indices of types and allocations. Adds to the state what it does not have yet.
class StateIndex {
 public:
  explicit StateIndex(State& state) : state_(state) {}
  TypeIndex type(const Type* type);
  // `module`: of the image's list.
  std::uint32_t allocation(const Allocation* allocation, std::uint32_t module = kNoModule);
  std::uint32_t function(const Function* function, std::uint32_t module = kNoModule);

 private:
  State& state_;
  std::map<const void*, std::uint32_t> types_, allocations_, functions_;
};

// Modules, functions, globals and allocations, without frames and blocks. Refuses two files of one name.
void add_program(State& state, StateIndex& index);
// The blocks of the heap.
void add_blocks(State& state, StateIndex& index);
// The frames of the stack that was left.
void add_frames(State& state, StateIndex& index);

// Copies of main's arguments in the heap, as blocks with types. Owned by the process.
char** keep_arguments(int argc, char** argv);

}  // namespace shadowib::portable
