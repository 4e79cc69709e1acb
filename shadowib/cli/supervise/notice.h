// Announcements that the job's place goes away: a host that is taken back, a preemption. Pure.
#pragma once

#include <limits>
#include <string>

#include "shadowib/base/status.h"

namespace shadowib::cli {

// Where announcements come from: a command that is asked, or a signal. Neither: there are none.
struct NoticeSource {
  std::string command;   // for sh(1)
  int signal = 0;        // 0: a command, or nothing
  double signal_s = -1;  // what is left from the signal on; negative: nobody knows
  std::string text;      // as it was given
};

// `text` is a signal as TERM, SIGUSR1 or USR1@5m, else a command. kUsage: a signal that cannot be caught, or a wrong
// time.
Status parse_notice(const std::string& text, NoticeSource* source);

enum class Said { kNothing, kSeconds, kNonsense };
// Reads the output of such a command: nothing, or the seconds that are left. Those may have a fraction.
Said parse_seconds_left(const std::string& printed, double* left_s);

// The announced end, in seconds of a clock that the caller chooses. A save takes `need_s` with its margin; negative:
// nobody knows.
class AnnouncedEnd {
 public:
  // `left_s`: what is left; infinity: nobody knows. True if that is news: the first word, or the end has moved by
  // more than a clock's rounding.
  bool announced(double now_s, double left_s, double need_s);
  // The announced end does not come.
  void withdrawn() { is_known_ = false; }

  bool is_known() const { return is_known_; }
  // Infinity: nobody knows.
  double left_s(double now_s) const { return is_known_ ? end_s_ - now_s : kNever; }
  // There is time for a save.
  bool fits() const { return fits_; }
  // The last save is to begin: as late as its time allows, at once if nobody knows its time or the end.
  bool save_is_due(double now_s, double need_s) const;
  // There is no time for a save, so none is to begin.
  bool is_too_soon() const { return is_known_ && !fits_; }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  bool is_known_ = false, fits_ = false;
  double end_s_ = kNever;
};

}  // namespace shadowib::cli
