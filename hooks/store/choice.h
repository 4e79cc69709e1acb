// Which store a checkpoint takes: the quickest one that has room and survives enough. Pure.
//
// Source: Chen, Adaptive Checkpointing, figure 6 and formula (7), which take one loss, one generation, and equal
// hosts. Here each host has its own size and room, and copies and parities count where they lie.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hooks/store/store_spec.h"
#include "shadowib/base/status.h"

namespace shadowib {

// The times of transfers, in seconds a byte, as they were measured.
struct StoreRates {
  double latency_s = 0;  // of a message
  double network = 0;    // from host to host, each to one other at once
  double coding = 0;     // a parity
  double disk = 0;       // a host's disk
  double central = 0;    // the checkpoint directory, for all hosts together
  // Bytes of an image for a byte of its pages, in the newest set that was compressed so. 0: there is none.
  double lz4 = 0, zstd = 0;
};

// A host: its images, and the room for them and those of others.
struct HostRoom {
  std::string host, domain;  // as store/mirror.h has them
  std::string name;          // for people
  std::uint64_t image_bytes = 0;
  std::uint64_t mem_bytes = 0, disk_bytes = 0;  // free for images; 0: there is no such place
};

struct StoreQuestion {
  std::vector<HostRoom> hosts;
  std::uint64_t central_bytes = 0;
  StoreRates rates;
  int survive = 1;              // hosts that may be lost for good, 0 or more
  std::optional<Tier> newest;   // of the job's newest set, which stays until the next one is committed
  std::vector<StoreSpec> full;  // ran out of space when this set was written: what is free tells less than that
};

// A store that would survive enough.
struct StoreOption {
  StoreSpec store;
  double seconds = 0;    // from the images' sizes until the set is redundant
  std::string shortage;  // "": there is room for this set. Else what is missing, where: a part of a sentence
  // And for the next set, too. Where the newest set lies, what is free goes for one more only.
  bool has_room_for_next = false;
  bool ran_out = false;  // one of StoreQuestion::full
  bool possible = true;  // whatever room there is: these hosts are enough for it
  bool has_room() const { return shortage.empty(); }
};

// Every store that survives enough, quickest first. Equally quick ones are as figure 6 has them: memory before disk
// before central, copies before parities. Plans each scheme once. Never empty: central survives all hosts.
std::vector<StoreOption> rank_stores(const StoreQuestion& question);

// The first that has room for this set and the next one. If there is none, the first that has room for this set.
// kIo (ENOSPC): none has; the text tells the sizes of each.
Status choose_store_of(const std::vector<StoreOption>& ranked, StoreSpec* store);

}  // namespace shadowib
