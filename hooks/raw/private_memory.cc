// memcpy and its kin for the saving side.
//
// A sanitizer or a profiler puts its own in place of libc's, and theirs keep books: in memory that is being saved,
// and with opinions on which addresses may be read. The build redirects every such call of this library to here (see
// CMakeLists.txt), those the compiler makes by itself included.
#include <cstddef>
#include <cstdint>

extern "C" {

__attribute__((visibility("hidden"))) void* shadowib_memcpy(void* to, const void* from, std::size_t bytes) {
  void* const result = to;
  __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
  return result;
}

__attribute__((visibility("hidden"))) void* shadowib_memset(void* to, int value, std::size_t bytes) {
  void* const result = to;
  __asm__ volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
  return result;
}

__attribute__((visibility("hidden"))) void* shadowib_memmove(void* to, const void* from, std::size_t bytes) {
  auto* t = static_cast<std::uint8_t*>(to);
  const auto* f = static_cast<const std::uint8_t*>(from);
  if (t <= f || t >= f + bytes) return shadowib_memcpy(to, from, bytes);
  for (std::size_t i = bytes; i-- > 0;) t[i] = f[i];
  return to;
}

__attribute__((visibility("hidden"))) int shadowib_memcmp(const void* a, const void* b, std::size_t bytes) {
  const auto* x = static_cast<const std::uint8_t*>(a);
  const auto* y = static_cast<const std::uint8_t*>(b);
  for (std::size_t i = 0; i < bytes; ++i)
    if (x[i] != y[i]) return x[i] - y[i];
  return 0;
}

__attribute__((visibility("hidden"))) int shadowib_strcmp(const char* a, const char* b) {
  while (*a != '\0' && *a == *b) ++a, ++b;
  return static_cast<std::uint8_t>(*a) - static_cast<std::uint8_t>(*b);
}

__attribute__((visibility("hidden"))) std::size_t shadowib_strlen(const char* text) {
  std::size_t length = 0;
  while (text[length] != '\0') ++length;
  return length;
}

}  // extern "C"
