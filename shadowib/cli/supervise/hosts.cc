#include "shadowib/cli/supervise/hosts.h"

#include <algorithm>

namespace shadowib::cli {

using command_line::Host;

std::vector<Host> trusted_hosts(const std::vector<Host>& hosts, const std::vector<PastEvent>& events,
                                std::int64_t since_ms) {
  constexpr int kLosses = 2;
  std::vector<Host> trusted;
  for (const Host& host : hosts) {
    const auto losses = std::count_if(events.begin(), events.end(), [&](const PastEvent& e) {
      return e.name == "host_lost" && e.time_ms >= since_ms && e.text("on") == host.name;
    });
    if (losses < kLosses) trusted.push_back(host);
  }
  return trusted.empty() ? hosts : trusted;
}

}  // namespace shadowib::cli
