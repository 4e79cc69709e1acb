// libfabric, found when it is wanted: nothing is linked against it, and who does not name it does not need it.
#pragma once

#include <rdma/fabric.h>

#include <cstdint>

namespace shadowib::ib2tcp {

struct OfiLibrary {
  int (*getinfo)(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
                 const fi_info* hints, fi_info** info) = nullptr;
  void (*freeinfo)(fi_info* info) = nullptr;
  fi_info* (*dupinfo)(const fi_info* info) = nullptr;
  int (*fabric)(fi_fabric_attr* attr, fid_fabric** fabric, void* context) = nullptr;
  const char* (*strerror)(int error) = nullptr;
  const fi_info* info = nullptr;  // of the provider that was asked for; its first, MSG endpoints before RDM
};

// The library that load_ofi() (transport.h) has found; nullptr without it.
const OfiLibrary* ofi_library();

// To be called by a thread before it enters libfabric. A link namespace has a libc of its own, and that has set up
// its character tables for the threads it has started, and for no others: isspace() there would crash.
void set_up_thread();

}  // namespace shadowib::ib2tcp
