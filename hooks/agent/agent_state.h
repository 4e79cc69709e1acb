// Shared by the parts of the agent. Internal to hooks/.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "hooks/agent/agent.h"
#include "hooks/job/phase.h"
#include "hooks/job/protocol.h"

namespace shadowib {

struct AgentState {
  Participant* participant = nullptr;
  std::atomic<int> alive_lock{-1};             // owned descriptor
  std::atomic<int> cancel{-1};                 // owned eventfd: readable makes the agent leave its wait
  std::atomic<bool> quit{false};               // the process ends
  std::atomic<std::uint32_t> ended{0};         // the agent has left its loop
  std::atomic<Phase> phase{Phase::kNone};      // reached in the checkpoint under way
  std::atomic<std::uint64_t> last_request{0};  // number of the latest checkpoint request seen
  std::uint64_t last_status = 0;
  // Descriptors of shadowib that the program has closed past the guard: how many, and the first number.
  int closed_descriptors = 0, first_closed = -1;
  int processor_level = 0;      // of SHADOWIB_CPU (imager/processor.h)
  bool binds_at_start = false;  // LD_BIND_NOW
};

extern AgentState g_agent;

// agent.cc: looks whether the program has closed descriptors of shadowib by system calls of its own. The agent opens
// again what it needs to hear of checkpoints, and to refuse them. Descriptors of a backend cannot come back.
void replace_closed_descriptors();

// join.cc: where the job is, from the environment.
Status fill_job_info(JobInfo* info);
// Makes the job's directories, finds or starts its epoch and takes an index: claims the member key and holds the lock
// (*alive_lock). *last_request, *last_status: the latest requests made before this member could be meant.
Status enter_job(JobInfo* info, Exchange** exchange, int* alive_lock, std::uint64_t* last_request,
                 std::uint64_t* last_status);
std::string describe_member();  // the fields of the member key
Status publish_fields(const std::string& key, const Fields& fields);
// The numbers of the latest requests; 0 if none.
std::uint64_t latest_request(Exchange* exchange, const char* epoch, const char* name);

// round.cc: this member's part in one checkpoint.
void take_part_in_checkpoint(const std::string& request);

// restarted.cc: remembers, in memory that the image holds, which descriptor numbers are ours. Before saving.
void note_owned_descriptors();
// The restored agent thread goes on here. Does not return on failure: the process exits.
void go_on_after_restart(const JobInfo& info);

// hook_registry.cc
void run_hooks(int event);
void hooks_reset_after_fork();

// start_command.cc: starts `shadowib WORDS...` as nobody's child; its output goes to `output_fd` (< 0: nowhere).
Status start_command(std::vector<std::string> words, int output_fd);
// Starts `shadowib checkpoint` for this job.
Status start_checkpoint_command(bool kill, int timeout_ms, int output_fd);

// mapped_files.cc: lines "<build-id hex or -> <path>\n" of the regular files mapped here.
std::string describe_mapped_files();

}  // namespace shadowib
