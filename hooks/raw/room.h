// How much more a host can hold: memory and file systems. Raw system calls, no heap of the program.
#pragma once

#include <cstdint>
#include <string>

namespace shadowib {

// Savers, and copies of registered memory, leave so much of a host's memory to all else.
inline constexpr std::uint64_t kSpareMemory = 64 << 20;

// Bytes of memory that new data may take: MemAvailable, or less where a cgroup of this process allows less. 0 if
// /proc is not there.
std::uint64_t free_memory();
// `group`: names, among all of this host, the cgroup that has the least room; "" where the host has less.
std::uint64_t free_memory(std::string* group);

// The least that the group `path` and those above it may still take, of memory cgroups of that version (1 or 2)
// mounted at `root`. Page cache that nobody uses does not count as taken. ~0 where none has a limit. `directory`, if
// not nullptr and one has: the one with the least.
std::uint64_t cgroup_room(int version, const std::string& root, std::string path, std::string* directory = nullptr);

// The least limit of such a group and those above it. ~0 where none has one.
std::uint64_t cgroup_limit(int version, const std::string& root, std::string path, std::string* directory = nullptr);
// The limit of this process's cgroups. ~0: none.
std::uint64_t memory_limit();
// MemTotal and MemAvailable. 0 if /proc is not there.
std::uint64_t host_memory();
std::uint64_t host_memory_available();

// Bytes that a user may still write below a path. 0 if it is not there. Not under a filter of system calls.
std::uint64_t free_space(const char* path);

// Bytes of this process that are in memory or swapped out.
std::uint64_t own_memory();
// The part of it that is private and has no file.
std::uint64_t private_memory();

}  // namespace shadowib
