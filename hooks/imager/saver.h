// The saver: a process that writes an image while the program goes on.
//
// A copy of the program's memory as of one moment, made by a raw clone. The process is nobody's child, so that no
// wait(2) of the program's sees it. It holds no descriptor, no shared mapping, no terminal and no working directory
// of the program's, so that ends of files, locks and mounts stay the program's. It takes no signal but SIGKILL, is
// the first that dies when memory runs out, and leaves no core.
#pragma once

#include <atomic>
#include <cstdint>

#include "hooks/imager/imager.h"
#include "shadowib/base/status.h"

namespace shadowib {

// Memory that the program and the saver share; no part of the image.
struct SaverReport {
  enum Start : std::uint32_t { kBegins, kReady, kRefused };
  enum End : std::uint32_t { kNone, kSaved, kFailed };
  std::atomic<std::uint32_t> start{kBegins}, end{kNone};
  SaveResult result{};
  Status status;
};

// The program's end of one saver. Used by the agent thread alone. Its destructor does nothing: a restarted process
// has a copy of this object, and nothing of what it names.
class Saver {
 public:
  // Maps the report. Call while the program may still map memory. On failure nothing is left.
  Status prepare();
  // Makes the process, which calls function(argument) on a copy of this thread's memory and then ends. Waits until it
  // has called ready(). `stack`: the end of 64 KiB for the process in between. On failure no process is left. Called
  // by save_image(); uses no heap.
  Status start(void (*function)(void*), void* argument, void* stack);
  // The image is written without a process, since this has happened.
  void note_refusal(const Status& refusal);
  const Status& refusal() const { return report_->status; }
  bool runs() const { return pidfd_ >= 0; }
  int pid() const { return pid_; }
  // A pidfd, owned: readable when the process has ended.
  int descriptor() const { return pidfd_; }

  // After the process's end: what it has written, or why it has not.
  Status result(SaveResult* result) const;
  // Ends the process if it runs, waits for its end, and gives back what this object holds.
  void end();

  // In the saver. Drops what a process has of the program besides private memory. Errors name the call.
  Status become();
  // In the saver: it depends on the program no more.
  void ready();
  void finish(const Status& status, const SaveResult& result);

 private:
  void end_process();
  void tell(std::uint32_t start);

  SaverReport* report_ = nullptr;
  int pid_ = 0, pidfd_ = -1;
};

// Why this process cannot have a saver, or ok. Tells before anything is tried: the first process of a family that
// adopts orphans would see the saver by wait(2), and a filter may end a process at an unknown call.
Status judge_saver();
// Whether a kernel of that release (uname) copies, inside fork, pages that a device may write. An older one leaves
// them to the child, and the device goes on writing there.
bool copies_pinned_pages(const char* release);

}  // namespace shadowib
