// The command that is asked for announcements (--notice), every 5 s.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "shadowib/cli/supervise/settings.h"

namespace shadowib::cli {

// Not asked again before it has ended. One that takes longer than 60 s is killed, and that is told.
class NoticeCommand {
 public:
  explicit NoticeCommand(const SuperviseSettings& settings) : settings_(settings) {}
  ~NoticeCommand() { stop(); }
  NoticeCommand(const NoticeCommand&) = delete;
  NoticeCommand& operator=(const NoticeCommand&) = delete;

  // Starts it when it is time. True when it has answered: kNothing, or kSeconds and how many.
  bool step(Said* said, double* left_s);

 private:
  void start();
  void stop();
  void take_output();
  bool answer(Said* said, double* left_s);

  const SuperviseSettings& settings_;
  pid_t pid_ = -1;
  int output_ = -1;
  std::int64_t next_ns_ = 0, late_ns_ = 0;  // CLOCK_MONOTONIC
  std::string printed_, complained_;        // the last complaint is not told twice
};

}  // namespace shadowib::cli
