// Destroyed objects with a log rest here before their memory goes. A thread in poll_cq may hold a completion that it
// took from the backend just before, and whose slot it has not read yet. Only the youngest can matter; set-up calls
// are far slower than that.
#pragma once

namespace shadowib {

// Takes ownership. Caller holds the registry's lock.
void rest_before_delete(void* object, void (*destroy)(void* object));

template <typename T>
void rest_before_delete(T* object) {
  rest_before_delete(object, [](void* o) { delete static_cast<T*>(o); });
}

}  // namespace shadowib
