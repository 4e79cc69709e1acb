// The input of a simulation: the paper's three files, as JSON (docs/reference/federation-figures.md describes the
// fields).
//
// A field that is missing or unknown, or whose number makes no sense, is an error that names file and field.
// Source: Monnet, Morin, Badrinath (CCGrid 2004), section 5.1.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowib/base/json_value.h"
#include "shadowib/base/status.h"

namespace shadowib::fedsim {

// Time is in microseconds throughout, as a whole number: runs are the same on every machine.
using Time = std::int64_t;
inline constexpr Time kNever = -1;
inline constexpr Time kSecond = 1'000'000;

struct NetworkLink {
  double latency_us = 0;
  double bytes_per_us = 1;  // MB/s
  Time takes(std::uint64_t bytes) const;
};

struct Topology {
  std::vector<unsigned> nodes;                    // of each cluster
  std::vector<NetworkLink> inside;                // of each cluster
  std::vector<std::vector<NetworkLink>> between;  // [i][j], the same both ways
  Time mtbf = kNever;                             // of the federation
  unsigned clusters() const { return static_cast<unsigned>(nodes.size()); }
};

struct ApplicationPattern {
  Time total = 0;
  std::uint64_t message_bytes = 0;
  // Either a node computes for a time with this mean, then sends to each cluster with a probability ...
  std::vector<double> mean_computation_us;
  std::vector<std::vector<double>> sends;
  // ... or counts are given for each pair, at uniform times; in so many bursts (0: each message alone).
  std::vector<std::vector<unsigned>> messages;
  std::vector<std::vector<unsigned>> bursts;
  bool counted() const { return !messages.empty(); }
};

struct ProtocolTimers {
  std::vector<Time> clc;  // of each cluster, from its last CLC of any kind; kNever: none
  bool in_step = true;    // clusters start together; else each one's first timer begins at a random moment of it
  Time clc_takes = 0;     // beside three messages inside the cluster
  Time collection = kNever;
};

struct Input {
  Topology topology;
  ApplicationPattern application;
  ProtocolTimers timers;
};

[[nodiscard]] Status read_topology(const Json& json, Topology* topology);
[[nodiscard]] Status read_application(const Json& json, unsigned clusters, ApplicationPattern* application);
[[nodiscard]] Status read_timers(const Json& json, unsigned clusters, ProtocolTimers* timers);

// Reads the three files. kIo: not readable; kCorrupt: no JSON, or a field is wrong.
[[nodiscard]] Status read_input(const std::string& topology, const std::string& application,
                                const std::string& timers, Input* input);

}  // namespace shadowib::fedsim
