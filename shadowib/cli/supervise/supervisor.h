// Keeps one job alive until it has a result.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "shadowib/cli/supervise/bounds.h"
#include "shadowib/cli/supervise/checkpoints.h"
#include "shadowib/cli/supervise/event_command.h"
#include "shadowib/cli/supervise/lives.h"
#include "shadowib/cli/supervise/notice_command.h"
#include "shadowib/cli/supervise/signals.h"
#include "shadowib/cli/supervise/started_job.h"

namespace shadowib::cli {

class Supervisor {
 public:
  explicit Supervisor(const SuperviseSettings& settings)
      : settings_(settings),
        bounds_(settings.most_restarts),
        job_(settings),
        checkpoints_(settings),
        on_event_(settings),
        notice_command_(settings),
        signals_(settings.notice.signal) {}

  // To the job's end. Returns the exit code: CMD's, kSavedAndEnded, kGivenUp, 128 + N if signal N has ended it.
  int run();
  // Then: tells of the set that has saved it, and waits for what was told of the job (--on-event).
  void finish();

 private:
  enum class End { kResult, kFailure, kSaved, kNotRestarted, kSignal, kTimeOver };

  bool adopt();
  bool start();
  bool not_started(const Status& status);
  std::vector<command_line::Host> hosts_now() const;
  End watch();
  // Looks at the locks and, once it has ended, at the command. False: the job goes on.
  bool judge(int wait_status, End* end);
  bool has_lost_host(int wait_status) const;
  End judge_end(const Lives& lives, int wait_status);
  End not_restarted(const std::string& how, int code);
  End failed(const std::string& how, const MemberLife* who, int wait_status);
  bool came_back() const;
  bool was_saved(const std::vector<PastEvent>& events) const;
  bool was_told_to_end() const;
  bool note_broken_off();
  void note_failure(const std::string& how, const MemberLife* who) const;
  void note_committed();
  void take_checkpoints();
  // Until --until and an announced end; infinity: there is none.
  double left_s() const;
  // The last checkpoint is to begin.
  bool last_save_is_due() const;
  // And nothing is to be started any more.
  bool time_is_short() const { return last_save_is_due() || announced_.is_too_soon(); }
  const char* limit() const;
  void ask_for_notice();
  void announced(const std::string& from, double left_s);
  void end_for_the_time();
  void take_signals();
  bool end_the_rest(const Lives& lives);
  enum class ByTheTime { kNot, kToo };
  // Ends the whole job. False: some may live. A signal to end has come meanwhile, or the time is over (kToo).
  bool end_everyone(const std::string& why, ByTheTime by_the_time = ByTheTime::kNot);
  bool pause(std::int64_t ms);
  int give_up(const std::string& why);
  // Numbers of the job's committed sets. While they cannot be told, nothing is started, and no set is removed.
  Status sets(std::vector<std::uint32_t>* numbers) const;
  unsigned to_keep() const;
  // The job went on after the set that is started from: files are cut to their length of then. Portable sets know of
  // none.
  bool rolls_back() const { return settings_.roll_back && set_ != planned_set_ && !is_portable_set(); }
  bool is_portable_set() const;
  std::string name_of_set() const { return set_ == kFromTheBeginning ? "" : set_name(settings_.job, set_); }

  const SuperviseSettings& settings_;
  Bounds bounds_;
  StartedJob job_;
  Checkpoints checkpoints_;
  EventCommand on_event_;
  NoticeCommand notice_command_;
  HeldSignals signals_;
  std::set<std::string> dead_before_;  // members that died before the present start, or left their program
  std::string epoch_before_;           // of that moment; "" if its members live
  std::int64_t saves_before_ = 0;      // sets after which the job was ended on request, at the present start
  std::uint32_t set_ = kFromTheBeginning;
  std::int64_t restarts_before_ = 0;  // likewise, restarts that have brought the job back
  std::uint32_t planned_set_ =
      kFromTheBeginning;  // with which the job has ended on request; after it nothing is done
  bool adopted_ = false, started_once_ = false;
  bool knows_past_ = false;               // of the history
  std::int64_t unreadable_since_ns_ = 0;  // it; 0: it can be read
  bool is_started_ = false;               // the present start has brought something to look after
  AnnouncedEnd announced_;
  double last_save_s_ = 0;   // as long before settings_.until_s
  double save_time_s_ = -1;  // that a save is to have; negative: nobody knows
  bool hurried_ = false, time_over_ = false, saved_ = false;
  int ending_signal_ = 0, result_ = 0;
  bool command_seen_ = false;  // of a checkpoint, perhaps, that may be broken off
  std::int64_t history_written_ns_ = 0;
  std::int64_t alone_since_ns_ = 0;  // members live, and nobody who was told to end them
  std::string why_;                  // the last failure
};

}  // namespace shadowib::cli
