// The log of one queue pair's requests to another cluster (HostServices::log_add). It lies in memory that images
// hold, and so survives a restart with its owner. A process's logs share the bound SHADOWIB_LOG_BYTES.
//
// Memory of more than 128 KiB that trim() frees is kept for the requests that follow, within that bound. It is
// unmapped before an image is saved, and when the last log is cleared.
//
// Threads: calls for one log are under the backend's lock; the bound is for any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shadowib/abi/backend.h"

namespace shadowib {

class BorderLog {
 public:
  BorderLog() = default;
  ~BorderLog() { clear(); }
  BorderLog(const BorderLog&) = delete;
  BorderLog& operator=(const BorderLog&) = delete;

  // Room for a request of `bytes` behind all others: its number and size set, its bytes anything, the rest zero.
  // Valid until it is trimmed. nullptr: the process's logs would become larger than `limit` bytes, or there is no
  // memory.
  BorderLogEntry* add(std::uint32_t number, std::uint32_t bytes, std::size_t limit);
  // The entry behind `entry`; nullptr: the oldest one. nullptr at the end. In order, each call is short.
  const BorderLogEntry* next(const BorderLogEntry* entry) const;
  // Entries before `number` go, modulo 2^32.
  void trim(std::uint32_t number);
  void clear();

  // The sum over all logs of the process, with the room that is free at their ends.
  static std::size_t bytes_in_use();
  // Memory of trimmed entries that is mapped still.
  static std::size_t bytes_kept();
  static void release_kept();

 private:
  struct Chunk;

  Chunk* add_chunk(std::size_t bytes, std::size_t limit);
  Chunk* remove_first();

  Chunk *first_ = nullptr, *last_ = nullptr;
  mutable const Chunk* looked_at_ = nullptr;  // by next()
};

// "256M", "1G", "65536": the bound of a process's logs. Anything else is the default, 256M. 0: no log.
std::size_t parse_log_bytes(const char* text);

}  // namespace shadowib
