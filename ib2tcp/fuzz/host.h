// The shim behind the backend in fuzz targets: an exchange in memory, nothing else.
#pragma once

#include <cstdint>

namespace shadowib::ib2tcp {

// Sets g_host and an open g_engine, and publishes a peer of that LID that listens nowhere. Once.
void start_fuzz_host(std::uint16_t peer_lid);
// Publishes one more, of that cluster (index + 1) and incarnation 0. `number` tells its uuid from others; not 1.
void publish_fuzz_peer(std::uint16_t peer_lid, std::uint16_t cluster, std::uint8_t number);

}  // namespace shadowib::ib2tcp
