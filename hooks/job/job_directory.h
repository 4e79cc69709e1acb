// Where a job's files lie below the checkpoint directory, and what a job may be called. The only place that knows.
//
// For members and commands. Any thread; uses the heap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shadowib {

// Job names become directory names and exchange keys: 1 to 64 of [A-Za-z0-9._-], first neither '.' nor '-'.
bool valid_job_name(std::string_view job);
// The rule in words, for messages that refuse a name.
inline constexpr char kJobNameRule[] = "use 1 to 64 of A-Za-z0-9._-, first a letter, a digit or _";
// The name of a job that nobody named: "<program>-<pid>", with '_' for what a name may not hold.
std::string default_job_name(std::string_view program, int pid);

// The job's files. They exist from the first `run` or member until gc.
struct JobPaths {
  std::string top;         // <directory>/jobs/<job>
  std::string key;         // 32 random bytes
  std::string epoch;       // "g<generation>-<random hex>"
  std::string exchange;    // the URI it was started with, without a password
  std::string password;    // of the exchange, if it is a Redis server that asks for one
  std::string alive;       // directory of locks (protocol.h)
  std::string joining;     // lock: a process takes an index
  std::string restart;     // lock: a restart brings members back
  std::string renewing;    // lock: a restart makes the job's new epoch
  std::string supervisor;  // lock: `supervise` looks after the job; host and pid of it
  std::string started;     // directory of <host>-<pid>-<start time> of what `run` has started
  std::string clusters;    // of a federation, directory: a file <name> for each cluster, and policy.txt
};
JobPaths job_paths(std::string_view directory, std::string_view job);
// <directory>/jobs and <directory>/sets.
std::string jobs_path(std::string_view directory);
std::string sets_path(std::string_view directory);

// The lock of a member ("3") or of a checkpoint command ("ckpt7"): <directory>/jobs/<job>/alive/<epoch>.<who>.
std::string alive_path(std::string_view directory, std::string_view job, std::string_view epoch,
                       std::string_view who);

// The keepers of a job's hosts (store/keeper.h): a file for each host, and the lock that its keeper holds.
std::string keepers_path(std::string_view directory, std::string_view job);
std::string keeper_lock_path(std::string_view directory, std::string_view job, std::string_view host);

// The URI of a job's exchange when none is given: dir:<directory>/jobs/<job>/x.
std::string default_exchange(std::string_view directory, std::string_view job);

// "<job>.<NNNN>"; NNNN has four digits or more.
std::string set_name(std::string_view job, std::uint32_t number);
bool parse_set_name(const std::string& name, std::string* job, std::uint32_t* number);
// ".<job>.<NNNN>.staging-<random>" (being written) or ".<job>.<NNNN>.removing-<random>" (being removed).
bool parse_hidden_name(const std::string& name, std::string* job, std::uint32_t* number);
std::string staging_name(std::string_view job, std::uint32_t number);
std::string removing_name(std::string_view set);

// A new epoch of that generation. The random part keeps the keys of jobs apart that share an exchange.
std::string new_epoch(std::uint32_t generation);

// 2 * `bytes` lower-case hex digits from the kernel's random numbers.
std::string random_hex(std::size_t bytes);

}  // namespace shadowib
