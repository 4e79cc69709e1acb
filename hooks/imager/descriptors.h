// Descriptors of a member: captured while stopped, matched across members by the command, restored by the restart.
//
// A table is one member's descriptors in a versioned, self-contained binary string (stored in the image). Owned
// descriptors (base/descriptors.h) are no part of it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "shadowib/base/status.h"

namespace shadowib {

// In the member, while the program runs: what need only be compared when it stands. May be left out.
void look_at_descriptors();

// In the member, phase 60, all threads of all members parked. The first of two steps, with a barrier of all members
// between them. Bytes on a TCP connection must have reached the receiver's queue, where the second step reads them.
// `prepare_descriptors(); barrier "drained"; capture_descriptors();`
//
// Opens the receive window of every TCP connection and waits until all that this process sent has arrived, at most
// timeout_ms. Refuses nothing: what did not drain is recorded by the capture and judged by match_descriptors.
Status prepare_descriptors(int timeout_ms = 2000);

// Describes every descriptor, with queued bytes of pipes and sockets. Leaves the bytes in place: a resume finds them
// where they were. `kRefused` names descriptor number, type and pid of the first that can never be captured.
// Examples: inotify, io_uring, userfaultfd, raw socket, lease, device, uverbs, SCM_RIGHTS in flight, hugetlb memory.
// Undoes what prepare_descriptors changed. `member`: this member's index. Uses no program heap.
Status capture_descriptors(std::uint32_t member, std::string* table);

// In the restored process, of which the latest capture was: what leads to its threads, which are there only now. A
// file that /proc has of a thread is opened; threads are told again to be signalled for descriptors. kNotFound and
// kRefused name the file. No program heap.
Status finish_descriptors();

// Takes again the record locks (F_SETLK) that the latest capture saw. The kernel drops a process's record locks on a
// file when the process closes any descriptor of that file. Call in the member after such a close, while the program
// is stopped. kBusy: another process was quicker; the message names file and range. No program heap.
Status hold_record_locks();

// Undoes prepare_descriptors when no capture followed (an abort between the two). Idempotent: call on every resume.
void abandon_descriptors();

// In the member, between the commit and SIGKILL (checkpoint --kill): makes TCP connections of the job end without
// TIME_WAIT, so that a restart gets their ports at once. The image is written by then and knows nothing of it.
void linger_for_kill();

// In the command: checks that every pipe, Unix and TCP connection has both its ends inside the set, or led
// outside by stdio. Checks that every child process is a member or has ended. `kRefused` names member, pid,
// descriptor and peer, or the child. Also used by verify.
Status match_descriptors(const std::map<std::uint32_t, std::string>& tables);
// In the command: which members have files that may be one open file description, inherited by all of them, or
// several. Adds lines to the duty of the first member of each group, for compare_files().
Status assign_comparisons(const std::map<std::uint32_t, std::string>& tables,
                          std::map<std::uint32_t, std::string>* duties);
// In that member, while all members of the machine are stopped: asks the kernel. kcmp(2) gives an order, so n files
// take n log n calls. No program heap.
std::string compare_files(const std::string& duty);
// Adds to that member's table the answers of compare_files(), which may be none.
Status add_comparisons(const std::string& found, std::string* table);
// Members that have a connection to a launcher, whose ranks they are.
Status find_ranks(const std::map<std::uint32_t, std::string>& tables, std::set<std::uint32_t>* ranks);

// The connection to what has started this process, of which the program needs nothing after a restart: no refusal,
// though its other end is outside the job. A restart puts a socket in its place that takes what is written and never
// has anything to read. Remembers the number and what is behind it now; false if there is no room. No heap.
bool note_launcher_descriptor(int fd);
// Likewise for a pipe or socket that a launcher has left open by oversight, and nobody uses: there is none after a
// restart.
bool leave_out_descriptor(int fd);
// A directory for files of a launcher's session, which goes when the launcher does: what of it is mapped or open is
// memory, restored with its name and content. False if there is no room. No heap.
bool note_launcher_directory(const char* path);
// In the restored process: what was captured as noted is so again.
void note_restored_launcher_descriptors();

// Pipes and sockets that the job was started with, as "DEVICE:INODE,..." (SHADOWIB_INHERITED of `shadowib run`).
// Their other ends may be outside the job, and the program most likely knows nothing of them. So a checkpoint takes
// them. After a restart nobody is at the other end, unless the restart command has inherited a descriptor of the same
// number. No heap.
void note_inherited(const char* list);

// How the parts of a restart, on several machines or in several pid namespaces, tell each other where to connect.
class Meeting {
 public:
  virtual ~Meeting() = default;
  // Names are those of an exchange's key components.
  virtual Status publish(const std::string& name, const std::string& value) = 0;
  // Waits for it, bounded. kTimeout, kAborted.
  virtual Status await(const std::string& name, std::string* value) = 0;
};

// The members of a set by where they have to be made: one part for each pid namespace they were in, since numbers of
// different ones may be the same.
Status split_members(const std::map<std::uint32_t, std::string>& tables, std::vector<std::set<std::uint32_t>>* parts);

// A descriptor of the file behind a segment of a member's table (shared_memory.h), -1 if there is none at hand.
using MemoryFiles = std::function<int(std::uint32_t member, std::uint32_t segment)>;

// A child that had ended and that its parent had not waited for. `group`: its process group; 0: none of its parent's
// session.
struct EndedChild {
  std::int32_t pid, group, wait_status;
};
struct Family {
  std::int32_t pid = 0;                 // the member's own
  std::int32_t group = 0, session = 0;  // 0: not told, or from outside
  std::int32_t parent = 0;              // pid of the member whose child it is; 0: of no member's
  std::vector<EndedChild> ended;
};
// Reads the families of all members that have a table.
Status read_families(const std::map<std::uint32_t, std::string>& tables, std::map<std::uint32_t, Family>* families);

// In the restart command, before the members' processes are made: creates what is shared (pipes, connected sockets,
// listeners), with their queued bytes. In each member's process: installs its descriptors at their numbers.
class DescriptorPlan {
 public:
  DescriptorPlan();
  ~DescriptorPlan();
  DescriptorPlan(const DescriptorPlan&) = delete;
  DescriptorPlan& operator=(const DescriptorPlan&) = delete;

  // `tables` are of the whole set. Only what the members `here` have is made. Connections with others come about
  // through `meeting`, which is needed if there are others. `kRefused`: they share more than TCP connections with
  // them. Open descriptors of shared memory are opened from `memory`.
  Status prepare(const std::map<std::uint32_t, std::string>& tables, const std::set<std::uint32_t>& here,
                 Meeting* meeting, const MemoryFiles& memory = {});
  // In the member's process. keep[i] are descriptors the restorer still needs (image file...): they are moved out of
  // the way and their new numbers written back. Everything else that is not the member's is closed.
  Status install(std::uint32_t member, std::vector<int*> keep);
  // In the command, between the two: a slave of the pseudo-terminal of the job that controls the member, and the
  // process group in its foreground. -1: there is none.
  int controlling_terminal(std::uint32_t member, int* foreground) const;
  // In the command, once all members exist: closes its copies.
  void release();

 private:
  struct Impl;
  Impl* impl_;
};

// In a command, without restoring anything: `obstacle` gets the refusal of each file, directory, device and FIFO of
// the members `here` that a restart could not open as recorded. Fails itself if the tables cannot be understood.
Status check_files(const std::map<std::uint32_t, std::string>& tables, const std::set<std::uint32_t>& here,
                   const std::function<void(const Status&)>& obstacle);
// Likewise for each TCP and UDP port that members are bound to: tried, and given back.
Status check_ports(const std::map<std::uint32_t, std::string>& tables, const std::set<std::uint32_t>& here,
                   const std::function<void(const Status&)>& obstacle);
// A regular file that members had open for writing, and whose length differs from the length at the checkpoint.
struct ChangedFile {
  enum State {
    kGrown,     // cut_file() restores its length
    kShared,    // grown, and `writer` has it open for writing or mapped, too
    kReplaced,  // longer, and another file than at the checkpoint
    kShorter,
    kMissing,
  } state = kGrown;
  std::string path, writer;             // writer: "pid 77 (tail)", as far as /proc shows
  std::uint64_t recorded = 0, now = 0;  // bytes, at the checkpoint and now
  std::uint64_t device = 0, inode = 0;  // of the file now
};
// The files of the members `here`, each once, by path. `saved_s`: when the set was committed, in seconds since 1970.
// A file that is younger has replaced the one of the checkpoint. 0: not known.
Status find_changed_files(const std::map<std::uint32_t, std::string>& tables, const std::set<std::uint32_t>& here,
                          std::int64_t saved_s, std::vector<ChangedFile>* files);
// Looks at files once more, just before they are cut. `kRefused` names the first that another has replaced, that is
// shorter, or that a process has opened for writing, or mapped. `is_own`: processes of the restart, which may.
Status judge_cut(std::vector<ChangedFile> files, const std::function<bool(int pid)>& is_own);
// Cuts a file that has grown to its length at the checkpoint. kRefused if the kernel refuses, or if another file has
// the name.
Status cut_file(const ChangedFile& file);

// Whether they tell of pseudo-terminals that have their masters in the job.
bool has_pseudo_terminals(const std::map<std::uint32_t, std::string>& tables);
// The highest number in a table, -1 if it has none.
Status highest_descriptor(const std::string& table, int* highest);
// About how many descriptors a restart of the members `here` has open at once for their objects.
Status count_descriptors(const std::map<std::uint32_t, std::string>& tables, const std::set<std::uint32_t>& here,
                         std::uint64_t* count);

// Human-readable lines of a table: "3  file  /home/x/data  offset 4096  O_RDONLY", for inspect. JSON if json.
Status print_descriptors(const std::string& table, bool json, std::string* text);

}  // namespace shadowib
