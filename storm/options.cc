#include "storm/options.h"

#include <cstdio>
#include <random>

#include "shadowib/command_line/command_line.h"

namespace storm {
namespace {

const command_line::Command::Choices<Transport> kTransports{
    {"rc", Transport::kRc}, {"uc", Transport::kUc}, {"ud", Transport::kUd}, {"xrc", Transport::kXrc}};

const command_line::Command::Choices<Sabotage> kSabotages{
    {"lost", Sabotage::kLost},          {"doubled", Sabotage::kDoubled},     {"replayed", Sabotage::kReplayed},
    {"early", Sabotage::kEarly},        {"corrupted", Sabotage::kCorrupted}, {"completion", Sabotage::kCompletion},
    {"counter", Sabotage::kCounter},    {"hung", Sabotage::kHung},           {"stuck", Sabotage::kStuck},
    {"forgotten", Sabotage::kForgotten}};

}  // namespace

bool parse_options(int argc, char** argv, Options* o, int* exit_code) {
  command_line::Command app(
      "shadowib-storm",
      "A storm of random verbs between some processes, which knows what every byte and every counter must be.\n\n"
      "Every pair of processes, and each process with itself, has some connections. A connection lives in epochs: "
      "its\n"
      "objects are made, data flows both ways as the seed has it, both ends compare what they have come to, the "
      "objects\n"
      "are destroyed. Nothing of it knows of checkpoints: take them as often as you like, and what is lost, "
      "doubled,\n"
      "early, corrupted, reordered or stuck is told. ci/acceptance/storm.py does.\n\n"
      "Examples:\n"
      "  shadowib-storm --seconds 10                       three processes for ten seconds on the first device\n"
      "  shadowib run --job s -- shadowib-storm --area a   until the file a/stop appears; meanwhile, from "
      "elsewhere:\n"
      "  shadowib checkpoint s\n"
      "  for r in 0 1 2; do shadowib run --job s -- shadowib-storm --area a --seed 7 --rank $r & done\n"
      "                                                    each process by itself, so that the job can be killed "
      "and\n"
      "                                                    restarted: shadowib checkpoint s --kill\n"
      "Exit codes: 0 all was right, 1 something was not, 2 wrong option.");
  app.add_option("--seed", o->seed, "repeats the choices of a run that printed this seed");
  app.add_option("-n,--processes", o->processes, "how many processes there are")->between(1, 64);
  app.add_option("--rank", o->rank,
                 "be this one of them only, from 0; the others are started likewise, with the same options")
      ->between(0, 63);
  app.add_option(
      "--area", o->area,
      "an empty directory where the processes find each other and leave report-RANK.json; it ends when the "
      "file stop appears there. Needed with --rank, else a temporary directory");
  app.add_option("-s,--seconds", o->seconds,
                 "end after so long, stops by checkpoints not counted; 0: when the file stop appears")
      ->between(0, 1e9);
  app.add_option("-w,--workers", o->workers, "threads of each process that drive connections")->between(1, 16);
  app.add_option("-c,--connections", o->variety.connections,
                 "of each pair of processes, and of each process with itself")
      ->between(1, 64);
  app.add_choices("-t,--transports", o->variety.transports, kTransports, "of rc,uc,ud,xrc")->delimiter(',');
  app.add_flag("--strict", o->variety.strict, "every request is signaled");
  app.add_flag("!--no-windows", o->variety.windows,
               "no memory windows: on Soft-RoCE binds behind refused requests fail");
  app.add_flag("!--no-extended", o->variety.extended, "no extended completion queues and builders");
  app.add_flag("!--no-events", o->variety.events, "no completion channels: everything is polled");
  app.add_flag("!--no-fences", o->variety.fences,
               "no fenced requests: on Soft-RoCE one that is refused waits for ever if there are reads behind it");
  app.add_option("--patience", o->patience, "seconds without progress that are a hang")->between(1, 3600);
  app.add_option(
         "--rnr-timer", o->variety.rnr_timer,
         "code of the time after which a message without a receive is repeated, 1 to 31, as for ibv_modify_qp; "
         "if not given 1 to 12, by the seed. Soft-RoCE repeats them in the processor's time: give it 20 or more")
      ->between(1, 31);
  app.add_choice("--sabotage", o->sabotage, kSabotages, "make one mistake in each process, to see that it is found");
  app.add_option("-d,--ib-dev", o->device, "device, the first one found if not given");
  app.add_flag("--json", o->json, "print the report as JSON");
  if (!command_line::parse(app, SHADOWIB_VERSION, argc, argv, exit_code)) return false;
  const char* wrong = nullptr;
  if (o->rank >= 0 && (o->area.empty() || o->seed == 0)) wrong = "--rank needs --area and --seed";
  if (o->rank >= o->processes) wrong = "--rank is to be less than --processes";
  if (wrong != nullptr) {
    std::fprintf(stderr, "shadowib-storm: %s; see shadowib-storm --help\n", wrong);
    *exit_code = 2;
    return false;
  }
  if (o->seed == 0) o->seed = std::random_device{}() | 1u;
  return true;
}

}  // namespace storm
