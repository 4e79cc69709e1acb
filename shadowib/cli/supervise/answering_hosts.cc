#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shadowib/base/deadline.h"
#include "shadowib/cli/host_list.h"
#include "shadowib/cli/supervise/checkpoints.h"
#include "shadowib/cli/supervise/hosts.h"
#include "shadowib/cli/supervise/processes.h"

namespace shadowib::cli {
namespace {

using command_line::Host;

constexpr int kAnswerMs = 20'000, kAnswerStepUs = 20'000;

struct Asked {
  Host host;
  pid_t pid = -1;
  bool answers = false;
};

Asked ask(const SuperviseSettings& settings, const Host& host) {
  Asked asked{host, -1, false};
  std::vector<std::string> words = command_line::words_for_host(settings.rsh, host.name, "true");
  words[2] += " </dev/null";
  if (const Status status = start_process(words, -1, &asked.pid); !status.ok()) tell(settings, status.text());
  return asked;
}

bool is_waited_for(Asked* asked) {
  int wait_status = 0;
  if (asked->pid <= 0) return false;
  if (::waitpid(asked->pid, &wait_status, WNOHANG) == 0) return true;
  asked->answers = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
  asked->pid = -1;
  return false;
}

}  // namespace

std::vector<Host> answering_hosts(const SuperviseSettings& settings, const std::vector<Host>& hosts) {
  std::vector<Asked> all;
  for (const Host& host : hosts) all.push_back(ask(settings, host));
  bool waits = true;
  for (const Deadline deadline = Deadline::in_ms(kAnswerMs); waits && !deadline.has_passed();) {
    waits = false;
    for (Asked& asked : all) waits = is_waited_for(&asked) || waits;
    if (waits) ::usleep(kAnswerStepUs);
  }
  std::vector<Host> answering;
  for (Asked& asked : all) {
    if (asked.pid > 0) {
      ::kill(asked.pid, SIGKILL);
      ::waitpid(asked.pid, nullptr, 0);
    }
    if (asked.answers) answering.push_back(asked.host);
  }
  if (answering.empty()) return hosts;
  for (const Asked& asked : all)
    if (!asked.answers) tell(settings, "host " + asked.host.name + " does not answer; it is left out");
  return answering;
}

std::vector<Host> hosts_for_a_start(const SuperviseSettings& settings) {
  if (settings.hosts.empty()) return {};
  return answering_hosts(settings, trusted_hosts(settings.hosts, events_of(settings), settings.begun_s * 1000));
}

void add_host_options(Command* command, const char* what_for, GivenHosts* given, SuperviseSettings* settings) {
  command->add_option("--hosts", given->hosts, what_for)->not_empty("a list of hosts")->type_name("LIST");
  command->add_option("--rsh", given->rsh, "What starts commands on hosts; default $SHADOWIB_RSH, else ssh")
      ->not_empty("a command")
      ->type_name("CMD");
  command
      ->add_option(
          "--lease", settings->lease_s,
          "With --hosts: restarted members end after S seconds without a\nword from here, as when their host "
          "is cut off; default: they\ndo not")
      ->between(1, 1e6, "seconds")
      ->type_name("S");
}

Status take_hosts(const GivenHosts& given, SuperviseSettings* settings) {
  if (settings->lease_s > 0 && given.hosts.empty())
    return Status(Code::kUsage, 0, "--lease S goes with --hosts: a member here ends with its command");
  if (!given.hosts.empty()) SHADOWIB_TRY(parse_host_list(given.hosts, &settings->hosts));
  const std::string rsh = given.rsh.empty() ? environment("RSH") : given.rsh;
  if (!rsh.empty()) settings->rsh = rsh;
  return {};
}

}  // namespace shadowib::cli
