// Starting the job, from a set or from the beginning, and ending it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shadowib/cli/supervise/lives.h"
#include "shadowib/cli/supervise/settings.h"

namespace shadowib::cli {

// The command that a supervisor has started: CMD, or `restart`. Or none, if the job was running already.
class StartedJob {
 public:
  explicit StartedJob(const SuperviseSettings& settings) : settings_(settings) {}
  StartedJob(const StartedJob&) = delete;
  StartedJob& operator=(const StartedJob&) = delete;

  Status start_command();
  // `roll_back`: files are cut to their length at the checkpoint. `hosts`: members are spread over them; none: here.
  Status restart(std::uint32_t set, bool roll_back, const std::vector<command_line::Host>& hosts);
  void adopt();

  bool has_command() const { return command_ > 0; }
  bool is_restart() const { return restarts_; }
  // True once, with what waitpid(2) told, when the command has ended.
  bool command_ended(int* wait_status);
  // To CMD or the restart; for an adopted job to those of its processes on this host that stand for it.
  // `by_terminal`: processes of the own group have it already. False: there is none.
  bool signal(int signal, bool by_terminal) const;
  // Whether a process that gets signals for the job lives.
  bool has_head() const;
  // Takes the ends of processes that CMD has left behind. `but`: another child of this process.
  void reap_orphans(pid_t but) const;

  // A restart that cannot bring all members back ends those that it has, and says why: it gets some time for that.
  void await_last_word(const std::string& why, int* wait_status);

  // Ends all members and what is left of the command, at once, and waits until nobody holds a lock. Tells of a
  // process that does not end. False if `give_up` has come true meanwhile.
  template <typename GiveUp>
  bool end_everyone(const std::string& why, GiveUp give_up) {
    ask_to_end(why);
    while (!all_ended())
      if (give_up()) return false;
    return true;
  }

 private:
  void tell_members(const std::string& why) const;
  void ask_to_end(const std::string& why);
  bool all_ended();
  std::vector<pid_t> kill_processes();

  const SuperviseSettings& settings_;
  pid_t command_ = -1;
  bool restarts_ = false;
  std::int64_t tell_ns_ = 0;  // of end_everyone()
};

}  // namespace shadowib::cli
