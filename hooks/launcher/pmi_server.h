// Answers to requests of PMI-1 without a launcher: from its earlier answers, from this rank's values, and from the
// board's values of the others.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hooks/launcher/board.h"
#include "hooks/launcher/pmi_request.h"
#include "hooks/launcher/rank.h"

namespace shadowib {

// The known facts of the launcher's side. In the image like any memory of ours.
struct PmiKnowledge {
  std::map<std::string, std::string> constant;  // answers, without their newline, by the request's command
  std::map<std::string, std::string> values;    // of keys that others have put, or the launcher, as far as read
};

// The launcher has answered: what has to be known of it afterwards. `line` is without its newline.
void note_pmi_answer(const PmiRequest& request, std::string_view line, PmiKnowledge* known, LauncherRank* own);

// Requests that end when other ranks do something, or never, so that no checkpoint waits for their answers.
bool is_pmi_barrier(const PmiRequest& request);
bool is_pmi_abort(const PmiRequest& request);

// This rank comes to a barrier.
void count_pmi_barrier(LauncherRank* own);

class PmiServer {
 public:
  PmiServer(Board board, PmiKnowledge* known, LauncherRank* own)
      : board_(std::move(board)), known_(known), own_(own) {}

  // The answer, with its newline. Any request but an abort; of a barrier, which has been counted: the answer to its
  // end. A value that cannot be told in the exchange is answered with an error.
  std::string answer(const PmiRequest& request);
  // This rank has come to its latest barrier: tells the others, of whom all are missing then.
  Status tell_barrier(std::vector<std::uint32_t>* missing);
  // Those of `missing` that have not come yet, and have not left: only for these is the exchange asked.
  Status look_at_barrier(std::vector<std::uint32_t>* missing);

 private:
  std::string put(const PmiWords& words);
  std::string get(const PmiWords& words);
  std::string finalize();
  bool is_own_space(const PmiWords& words) const;
  bool is_too_long(const std::string& text, const char* maximum) const;

  Board board_;
  PmiKnowledge* known_;
  LauncherRank* own_;
};

}  // namespace shadowib
