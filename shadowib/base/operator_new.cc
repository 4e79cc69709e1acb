// operator new and delete of libshadowib.so and of backends come from the private arena. Linked into those shared
// libraries only; their symbols are hidden, so the program keeps its own.
#include <cstdlib>
#include <new>

#include "shadowib/base/arena.h"
#include "shadowib/base/log.h"

namespace {
void* allocate(std::size_t bytes, std::size_t alignment = 16) {
  void* p = shadowib::arena_allocate(bytes, alignment);
  SHADOWIB_CHECK(p != nullptr, "out of memory allocating %zu bytes", bytes);
  return p;
}
}  // namespace

void* operator new(std::size_t n) { return allocate(n); }
void* operator new[](std::size_t n) { return allocate(n); }
void* operator new(std::size_t n, std::align_val_t a) { return allocate(n, static_cast<std::size_t>(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return allocate(n, static_cast<std::size_t>(a)); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return shadowib::arena_allocate(n); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return shadowib::arena_allocate(n); }
void operator delete(void* p) noexcept { shadowib::arena_free(p); }
void operator delete[](void* p) noexcept { shadowib::arena_free(p); }
void operator delete(void* p, std::size_t) noexcept { shadowib::arena_free(p); }
void operator delete[](void* p, std::size_t) noexcept { shadowib::arena_free(p); }
void operator delete(void* p, std::align_val_t) noexcept { shadowib::arena_free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { shadowib::arena_free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { shadowib::arena_free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { shadowib::arena_free(p); }
