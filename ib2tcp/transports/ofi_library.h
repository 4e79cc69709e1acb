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

// Loads libfabric and asks it for `provider` as fi_info -p names it ("tcp", "tcp;ofi_rxm", "efa"). Takes a few tenths
// of a second. Called once, when the library is loaded, since it takes the loader's lock. 0, or an errno after a
// message: ENOENT no libfabric, ENODEV no such provider here.
int load_ofi(const char* provider);

// The library that load_ofi() found; nullptr without it.
const OfiLibrary* ofi_library();

// To be called by a thread before it enters libfabric. A link namespace has a libc of its own, and that has set up
// its character tables for the threads it has started, and for no others: isspace() there would crash.
void set_up_thread();

// "ofi:" in SHADOWIB_IB2TCP_TRANSPORT: the provider behind it, or nullptr.
const char* ofi_provider(const char* transport);

}  // namespace shadowib::ib2tcp
