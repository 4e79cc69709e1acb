// Shared by all commands: --dir, --exchange, --json, the places below the directory, the form of errors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hooks/job/job_directory.h"
#include "shadowib/base/status.h"
#include "shadowib/command_line/command_line.h"

namespace shadowib::cli {

// Exit codes beyond the values of Code (base/status.h); documented in shadowib(1).
inline constexpr int kRestartedProcessFailed = 20;
inline constexpr int kRunFailed = 125;    // `run` itself failed
inline constexpr int kRunRefused = 126;   // CMD exists and cannot be run under shadowib
inline constexpr int kRunNotFound = 127;  // there is no CMD

using command_line::Command;

struct Common {
  std::string directory;  // absolute once resolve() has run
  bool directory_given = false;
  std::string exchange;  // URI; empty: the job's own (jobs/<job>/exchange, or dir: under the directory)
  bool json = false;
};

// Adds --dir, --exchange and --json to a command.
void add_common(Command* command, Common* common);
// Defaults and absolute paths; call first in every command.
Status resolve(Common* common);

// kNotFound: there is no such directory, so no job has ever been run with it. For commands that only look.
Status require_directory(const Common& common);

// Tells the error in one line on standard error ({"error":...} on standard output with --json); returns the exit
// code.
int fail(const Common& common, const Status& status);

// The URI to reach the job's exchange: --exchange, else what the job was started with, else dir: below the directory.
std::string exchange_of(const Common& common, const std::string& job);

// A relative path inside dir:PATH made absolute; other URIs as they are.
std::string absolute_exchange(const std::string& uri);

// SHADOWIB_<name>, or "" if unset.
std::string environment(const char* name);
// As environment(), but "" if SHADOWIB_JOB names another job: the variable comes from a process of that one.
std::string variable_of(const char* name, const std::string& job);
inline constexpr unsigned kMostKept = 1'000'000, kMostProcesses = 100'000;
// Variables that stand for an option and have its rule. kUsage names the variable.
Status backend_variable(std::string* backend);
Status seconds_variable(const char* name);
// SHADOWIB_KEEP and SHADOWIB_PROCESSES; *count stays if it is unset.
Status keep_variable(unsigned* count);
Status processes_variable(unsigned* count);

// False for all ranks of a launcher but the first: what all of them would tell, one tells.
bool speaks_for_launch();

using Arguments = std::vector<std::string>;

// Shell commands that print what J and SET may be, for completion.
inline constexpr char kJobNames[] = "ls \"${SHADOWIB_DIR:-shadowib-ckpt}/jobs\"";
inline constexpr char kHistoryNames[] = "ls \"${SHADOWIB_DIR:-shadowib-ckpt}/history\"";
inline constexpr char kSetNames[] = "ls \"${SHADOWIB_DIR:-shadowib-ckpt}/sets\"";

// The commands. Each adds itself to the program.
void add_run(Command& program);
void add_supervise(Command& program);
void add_tend(Command& program);
void add_checkpoint(Command& program);
void add_restart(Command& program);
void add_status(Command& program);
void add_list(Command& program);
void add_inspect(Command& program);
void add_verify(Command& program);
void add_gc(Command& program);
void add_worker(Command& program);
void add_doctor(Command& program);
void add_history(Command& program);
void add_report(Command& program);
void add_keeper(Command& program);
void add_rebuild(Command& program);
void add_flush(Command& program);
void add_line(Command& program);

}  // namespace shadowib::cli
