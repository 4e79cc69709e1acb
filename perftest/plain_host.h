// The services of a host for backends where no shim is: plain calls of libc.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "shadowib/abi/backend.h"

namespace shadowib::perftest {

// Valid as long as the caller keeps it. No exchange, no log: a backend that needs these cannot run on it.
inline HostServices plain_host() {
  HostServices host{};
  host.abi_version = kBackendAbiVersion;
  host.set_errno = [](int value) { errno = value; };
  host.map = [](std::size_t n) -> void* {
    void* p = ::mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
  };
  host.unmap = [](void* p, std::size_t n) { ::munmap(p, n); };
  host.own_descriptor = [](int fd) { return fd; };
  host.close_descriptor = [](int fd) { ::close(fd); };
  host.unowned_descriptors = [](bool) {};
  return host;
}

}  // namespace shadowib::perftest
