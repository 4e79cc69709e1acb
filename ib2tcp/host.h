// The services that the shim lends this library, and small helpers on it. No locks; usable by any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shadowib/abi/backend.h"
#include "shadowib/base/log.h"

namespace shadowib::ib2tcp {

// Set once by shadowib_backend_entry, before anything else runs.
extern const HostServices* g_host;

// One line through the shim's log, prefixed "ib2tcp: ".
void log_message(LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));

// While one exists, the calling thread may have descriptors that are not owned yet
// (HostServices::unowned_descriptors).
class [[nodiscard]] UnownedDescriptors {
 public:
  UnownedDescriptors() { g_host->unowned_descriptors(true); }
  ~UnownedDescriptors() { g_host->unowned_descriptors(false); }
  // HostServices::own_descriptor.
  int own(int fd) const { return g_host->own_descriptor(fd); }
  UnownedDescriptors(const UnownedDescriptors&) = delete;
  UnownedDescriptors& operator=(const UnownedDescriptors&) = delete;
};

// Sets the program's errno and returns nullptr.
template <typename T>
T* fail_null(int error) {
  g_host->set_errno(error);
  return nullptr;
}

// Bytes from the kernel's random source; never fails on a supported kernel.
void random_bytes(void* to, std::size_t bytes);
template <typename T>
T random_value() {
  T value;
  random_bytes(&value, sizeof(value));
  return value;
}

}  // namespace shadowib::ib2tcp
