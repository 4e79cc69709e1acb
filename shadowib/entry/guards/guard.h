// Shared by the guards: exported definitions that take the place of libc's, and the way on to libc's.
//
// A guard costs a compare where it has nothing to do: processes that are no members see libc's behaviour. Guards
// print nothing, start nothing, and take no lock. They are reached before constructors have run (by other libraries'
// constructors), so the next definition is found on first use.
#pragma once

#include <dlfcn.h>

#include <atomic>

#define SHADOWIB_GUARD extern "C" __attribute__((visibility("default")))

namespace shadowib {

// The next definition of a function after ours: Next<int(int)> next{"close"}; next(fd). Constant-initialised.
// Null-safe users ask get() first.
template <typename Function>
class Next {
 public:
  constexpr explicit Next(const char* name) : name_(name) {}
  Function* get() {
    Function* found = function_.load(std::memory_order_relaxed);
    if (__builtin_expect(found == nullptr, 0)) {
      found = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name_));
      function_.store(found, std::memory_order_relaxed);
    }
    return found;
  }
  template <typename... Args>
  auto operator()(Args... args) {
    return get()(args...);
  }

 private:
  const char* name_;
  std::atomic<Function*> function_{nullptr};
};

}  // namespace shadowib
