// The greeting that a process shows the others at bsp_begin(): where its queue pairs and its slots are.
//
// Greetings carry the epoch of the run. A late process of an old run finds nobody of the new one, and nobody finds
// it.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace shadowib::bsp {

// How this process lays out values that others read from its memory. But for kBigEndian, the same in all processes of
// a job. 0: as all programs of this machine do.
std::uint32_t layout_of_values();
inline constexpr std::uint32_t kBigEndian = 1u << 31;

struct Greeting {
  std::uint64_t epoch = 0;
  std::uint32_t process = 0, processes = 0;
  std::uint16_t lid = 0;
  std::uint8_t mtu = 0, is_ethernet = 0;
  std::uint32_t slots_key = 0;
  std::uint64_t slots_address = 0;
  ibv_gid gid{};
  std::vector<std::uint32_t> queue_pairs;  // by peer; the own place is 0
  std::uint32_t layout = layout_of_values();
};

// A published value has 4096 bytes.
inline constexpr int kMaxProcesses = 960;

std::vector<std::byte> encode(const Greeting& greeting);

// Empty if value[0..bytes) is the greeting of that process in that epoch; else the reason why it is none.
std::string decode(const std::byte* value, std::size_t bytes, std::uint64_t epoch, int process, int processes,
                   Greeting* greeting);

// The name under which it is published: bsp.<epoch>.<process>.
std::string greeting_name(std::uint64_t epoch, int process);

}  // namespace shadowib::bsp
