// The shim behind the backend in fuzz targets: an exchange in memory, nothing else.
#pragma once

#include <cstdint>

namespace shadowib::ib2tcp {

// Sets g_host and an open g_engine, and publishes a peer of that LID that listens nowhere. Once.
void start_fuzz_host(std::uint16_t peer_lid);

}  // namespace shadowib::ib2tcp
