#include "libraries/portable/runtime/exceptions.h"

#include <dlfcn.h>

namespace shadowib::portable {
namespace {

// As the C++ ABI for Itanium defines it: of the calling thread.
struct Globals {
  void* caught;
  unsigned int uncaught;
};

// This library has a copy of its own of the C++ library: only the program's is asked.
template <typename Function>
Function of_program(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

std::string exception_at_hand() {
  static const auto globals = of_program<Globals* (*)()>("__cxa_get_globals");
  if (!globals) return "";
  if (globals()->caught) return "an exception is being handled";
  return globals()->uncaught ? "an exception is on its way" : "";
}

void flush_streams() {
  const auto flush = of_program<void* (*)(void*)>("_ZNSo5flushEv");
  // The streams are there for those who hold an object of std::ios_base::Init. The last one that goes flushes them,
  // so this one must not stay.
  const auto hold = of_program<void (*)(void*)>("_ZNSt8ios_base4InitC1Ev");
  const auto leave = of_program<void (*)(void*)>("_ZNSt8ios_base4InitD1Ev");
  if (!flush || !hold || !leave) return;
  char holder = 0;
  hold(&holder);
  for (const char* name : {"_ZSt4cout", "_ZSt4cerr", "_ZSt4clog"}) {
    if (void* stream = dlsym(RTLD_DEFAULT, name)) flush(stream);
  }
  leave(&holder);
}

}  // namespace shadowib::portable
