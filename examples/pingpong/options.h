// Options of shadowib-pingpong, in the manner of ibv_rc_pingpong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pingpong {

struct Options {
  std::string host;     // connect to it as the client
  bool server = false;  // wait for a client; neither: run both ends and validate a checkpoint
  int port = 18515;
  std::string device;  // first one if empty
  int ib_port = 1;
  std::uint32_t size = 4096;  // bytes a message, at least 16
  int mtu = 1024;
  std::uint32_t rx_depth = 64;
  std::uint32_t window = 16;     // messages in flight
  std::uint64_t iterations = 0;  // 0: as many as last a few seconds (validation), 1000 (one end)
  int gid_index = -1;            // < 0: address by LID only
  bool events = false;
  bool progress = false;  // print progress lines for the validator
  int restarts = 0;       // go on until restarted this often, and for `iterations` more
  // Validation
  std::string transport = "auto", backend = "auto", directory;
  std::uint64_t seed = 0;  // of the random moment; 0: from the clock, printed
  int rounds = 1;          // checkpoint + kill + restart this often
  bool json = false, keep = false;
};

// Parses argv; prints help or a complaint and returns false with *exit_code set if the program is to end.
bool parse_options(int argc, char** argv, Options* options, int* exit_code);

int run_endpoint(const Options& options);  // 0: every byte and sequence number was right
int validate(const Options& options);      // 0: verdict ok

}  // namespace pingpong
