// An oracle of the simulator: takes its trace, event by event, and finds out by itself what the results must be.
//
// It uses neither hooks/federation nor the simulator's state: its own rule, its own lines by fixed point over
// deliveries, its own logs. Shared by tests only.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "perftest/fedsim/simulation.h"

namespace shadowib::fedsim {

class Replay {
 public:
  Replay(const Input& input, federation::Policy policy);

  // Takes an event of the simulation. Complaints are kept.
  void take(const TraceEvent& event);
  // Compares with what the simulation says of itself. "" or the first thing that is wrong.
  std::string compare(const SimulationResult& result);

 private:
  struct Message {
    std::uint64_t posted_at = 0, posted_sn = 0, member = 0;
    std::vector<std::uint64_t> vector;
  };
  struct Direction {
    std::vector<Message> posted;
    std::vector<std::uint64_t> delivered_in;  // SN of the receiver
    bool held = false;
    std::uint64_t held_at = 0;
    std::size_t logged = 0;
  };
  struct Clc {
    std::uint64_t sn = 0, at = 0;
    std::vector<std::uint64_t> depends;  // D as the interval before it ended
    std::vector<std::uint64_t> after;
  };
  struct Place {
    std::vector<Clc> clcs;
    std::vector<std::uint64_t> depends;
    std::uint64_t incarnation = 0, timer_from = 0;
  };

  std::size_t n() const { return places_.size(); }
  Direction& direction(std::size_t from, std::size_t to) { return directions_[from * n() + to]; }
  std::uint64_t sn(std::size_t i) const { return places_[i].clcs.empty() ? 0 : places_[i].clcs.back().sn; }
  void wrong(const TraceEvent& event, const std::string& what);
  bool must_wait(std::size_t to, std::size_t from, const Message& message) const;
  void raise(std::vector<std::uint64_t>* depends, std::size_t to, std::size_t from, const Message& message) const;
  void post(const TraceEvent& event);
  void hold(const TraceEvent& event);
  void deliver(const TraceEvent& event);
  void commit(const TraceEvent& event);
  void resume(const TraceEvent& event);
  void collect_until(std::uint64_t at);
  // SN that each cluster goes back to; ~0: it stays.
  std::vector<std::uint64_t> line_of(std::size_t failed) const;
  void count_logs(std::size_t from);

  const Input& input_;
  federation::Policy policy_;
  std::vector<Place> places_;
  std::vector<Direction> directions_;
  std::uint64_t next_collection_ = 0;
  SimulationResult expected_;
  std::string complaint_;
};

}  // namespace shadowib::fedsim
