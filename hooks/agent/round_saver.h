// Phases 65 and 70 of a checkpoint that is taken forked: the program goes on while a saver writes the image
// (imager/saver.h). Internal to hooks/.
#pragma once

#include <string>
#include <vector>

#include "hooks/agent/round_messages.h"
#include "hooks/imager/pinned_copies.h"
#include "hooks/imager/saver.h"

namespace shadowib {

// Parts of registered memory, which is given as ranges of any bytes and order, that a member copies itself: whole
// pages of private memory without a file, in order and apart, the largest. The program runs.
std::vector<PinnedRange> worth_copying(std::vector<PinnedRange> ranges);

class RoundSaver {
 public:
  RoundSaver(const RoundRequest& request, RoundMessages& messages) : request_(request), messages_(messages) {}

  // The program runs. Makes room for copies of what a device has pinned, if there is memory for them.
  void prepare_copies();
  // For the command, which weighs it if it was asked to.
  Fields needs();
  // Comes to a barrier before any member makes its saver: savers share the program's memory for a moment, and members
  // look who shares theirs. Returns the saver for save_image(), or nullptr: this member writes its image by itself.
  Status prepare(Saver** saver);
  // The barrier by which all members have their memory copied or written. The program may go on.
  Status meet();
  // Waits for the image. Ends the saver if the checkpoint fails, or if the process ends.
  Status await(SaveResult* result);
  // In the original process, whatever phase was reached.
  void end() {
    saver_.end();
    copies_.end();
  }
  // The program has gone on: it needs no copies any more.
  void end_copies() { copies_.end(); }
  PinnedCopies* copies() { return &copies_; }

  // "forked", or "stopped" and why.
  void describe(Fields* fields) const;

 private:
  static std::uint64_t faults();

  const RoundRequest& request_;
  RoundMessages& messages_;
  Saver saver_;
  PinnedCopies copies_;
  Status refusal_;
  std::uint64_t need_ = 0, free_ = 0;
  std::uint64_t faults_ = 0;  // of this process, when its saver was made
};

// Tells for an incremental checkpoint which files have pages of the image, and why none has.
void describe_packs(const SaveResult& result, Fields* fields);

}  // namespace shadowib
