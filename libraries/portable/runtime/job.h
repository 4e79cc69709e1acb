// Checkpoints that a command asks a job for: the request in the job's directory, and this process's answer.
//
// `shadowib run --portable` names the directory by SHADOWIB_PORTABLE_JOB. The request is a file that all processes
// map, so a site looks at one word. The rest is read from the file. docs/internals/portable-images.md has its
// form.
// Threads: the program's first only.
#pragma once

#include <cstdint>
#include <string>

namespace shadowib::portable {

// Maps the request of the job, if this process belongs to one, and tells that it has joined; its orderly end is told,
// too. A request that is already there counts. Ends the process with exit code 2 if the directory has no request
// file.
void join_job();
bool in_job();

// Null: no job, or a library answers for the program (shadowib_portable_asked).
extern const volatile std::uint64_t* job_word;
extern std::uint64_t job_answered;

// True if a command waits for an answer at this process's sites.
inline bool job_asks() { return job_word != nullptr && *job_word != job_answered && *job_word != 0; }

// Takes the request as this process's order. Returns false if its command is gone.
bool take_order();
bool has_order();
// True if the process is to end once its set is there.
bool order_kills();
// A saver answers instead of this process.
void hand_over_order();
// Where the image of the order goes.
std::string order_directory();
// Tells the command, and forgets the order. After a save that is to end the process, waits until the command has
// decided, and may not return. `visits`: of sites; `process`: the program's, also where a saver answers.
void answer_saved(std::uint64_t visits, int process);
void answer_refused(const std::string& reason);
// For the order that was handed over, if there was one: its saver has died.
void answer_for_saver(const std::string& reason);

}  // namespace shadowib::portable
