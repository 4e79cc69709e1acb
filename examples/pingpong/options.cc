#include "examples/pingpong/options.h"

#include "shadowib/command_line/command_line.h"

namespace pingpong {

bool parse_options(int argc, char** argv, Options* o, int* exit_code) {
  command_line::Command app(
      "shadowib-pingpong",
      "Checks that a verbs program survives checkpoint, kill and restart.\n\n"
      "With no HOST and no --server it runs both ends itself under `shadowib run`, takes a checkpoint at a random "
      "moment\n"
      "of the data phase, kills both, restarts them, and lets them finish; every byte and sequence number is "
      "checked.\n"
      "Examples:\n"
      "  shadowib-pingpong                      validate this machine\n"
      "  shadowib-pingpong --transport tcp -e   over TCP, with completion events\n"
      "  shadowib-pingpong --server             one end by hand, the other: shadowib-pingpong HOST\n"
      "Exit codes: 0 verdict ok, 1 wrong data or a failed step, 2 wrong option.");
  app.add_option("HOST", o->host, "connect to a server on HOST");
  app.add_flag("-S,--server", o->server, "wait for a client");
  app.add_option("-p,--port", o->port, "TCP port for the exchange of addresses")->between(1, 65535);
  app.add_option("-d,--ib-dev", o->device, "device, the first one found if not given");
  app.add_option("-i,--ib-port", o->ib_port, "port of the device")->between(1, 255);
  app.add_option("-s,--size", o->size, "bytes of a message")->between(16, 1 << 28);
  app.add_option("-m,--mtu", o->mtu, "path MTU")->one_of({"256", "512", "1024", "2048", "4096"});
  app.add_option("-r,--rx-depth", o->rx_depth, "receives posted at a time")->between(1, 8192);
  app.add_option("-w,--window", o->window, "messages in flight")->between(1, 8192);
  app.add_option("-n,--iters", o->iterations, "round trips");
  app.add_option("-g,--gid-idx", o->gid_index, "address by this GID of the port instead of the LID alone");
  app.add_flag("-e,--events", o->events, "sleep on completion events");
  app.add_flag("--progress", o->progress, "print progress lines (used by the validation)");
  app.add_option("--restarts", o->restarts, "go on until restarted this often (used by the validation)");
  app.add_option("--transport", o->transport, "validation: SHADOWIB_IB2TCP_TRANSPORT of both ends");
  app.add_option("--backend", o->backend, "validation: backend of both ends");
  app.add_option("--dir", o->directory, "validation: where checkpoint sets go, a temporary directory if not given");
  app.add_option("--seed", o->seed, "validation: repeats a run's random moments");
  app.add_option("--rounds", o->rounds, "validation: checkpoint + kill + restart this often")->between(1, 100);
  app.add_flag("--json", o->json, "validation: print the result as JSON");
  app.add_flag("--keep", o->keep, "validation: keep the directory");
  return command_line::parse(app, SHADOWIB_VERSION, argc, argv, exit_code);
}

}  // namespace pingpong

int main(int argc, char** argv) {
  pingpong::Options options;
  int exit_code = 0;
  if (!pingpong::parse_options(argc, argv, &options, &exit_code)) return exit_code;
  if (options.server || !options.host.empty()) return pingpong::run_endpoint(options);
  return pingpong::validate(options);
}
