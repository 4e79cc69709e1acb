// The record that a member writes into the file of its lock: it has joined; it has left in an orderly way; it ends on
// request.
//
// Commands that see locks alone know by it which member died: one with the first line only. They need no exchange
// for that. A lock file without a record was never a member's. The lines:
//
//     member pid=PID starttime=TICKS host=NAME
//     left status=N
//     saved set=NAME
//
// The first one ends with " cluster=NAME" if the member is in a cluster. N is the exit status, or "-" if it is not
// known. NAME is the set that a checkpoint has committed to end the job: the member ends itself right behind that
// line. Source: docs/reference/formats.md.
#pragma once

#include <cstdint>
#include <string>

namespace shadowib {

struct MemberRecord {
  bool joined = false, left = false;
  int status = -1;  // of one that has left: its exit status; -1: not known
  int pid = 0;      // in the member's own pid namespace
  std::uint64_t start_time = 0;
  std::string host;
  std::string saved_as;  // of one that has ended on request: the set's name
  std::string cluster;   // of a federation; "": none
};

// The first line, with its newline.
std::string joined_record(int pid, std::uint64_t start_time, const std::string& host,
                          const std::string& cluster = {});

// Called in the member's process; use the heap. Both keep the file's time, the time of joining. A record that cannot
// be written is no failure. The member then counts as one that died.
void record_joined(const std::string& lock_path, int pid, std::uint64_t start_time, const std::string& host,
                   const std::string& cluster = {});
void record_left(const std::string& lock_path, int status);
// As record_left, through the descriptor of the lock, by system calls alone: for a thread that ends the process.
void record_left_by_lock(int lock, int status);
// Likewise, by a member that ends itself as the checkpoint's command has told it. Uses the heap.
void record_saved_by_lock(int lock, const std::string& set);

// Any process. A file that cannot be read has no record.
MemberRecord read_member_record(const std::string& lock_path);
MemberRecord parse_member_record(const std::string& text);

}  // namespace shadowib
