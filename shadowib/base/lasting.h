// A process-wide singleton: created when the library is loaded, never destroyed.
#pragma once

#include <new>

namespace shadowib {

// The library's one T, a type made for that purpose. The first get() makes it, at the latest when the library is
// loaded. Otherwise a child forked while another thread makes it would wait for that thread for ever. It is never
// destroyed: exit handlers of the program call, and other threads, ours among them, may go on after main.
template <typename T>
class Lasting {
 public:
  static T& get() {
    alignas(T) static char storage[sizeof(T)];
    static T* const made = new (storage) T;
    static_cast<void>(&at_load_);  // what is not named is not made
    return *made;
  }

 private:
  static inline const bool at_load_ = (static_cast<void>(get()), true);
};

}  // namespace shadowib
