#include "shadowib/cli/network.h"

#include <vector>

#include "shadowib/base/networks.h"

namespace shadowib::cli {

void add_network(Command* command, std::string* network) {
  command
      ->add_option(
          "--network", *network,
          "The network that ib2tcp uses between hosts: an interface, a\nsubnet as 10.1.0.0/16, a list of them, "
          "or any; default\n$SHADOWIB_IB2TCP_NETWORK, else at a restart the program's own, else any")
      ->not_empty("a network")
      ->type_name("NET")
      ->completed_by("ls /sys/class/net");
}

Status check_network(const std::string& network) {
  std::vector<HostAddress> chosen;
  const Status status = choose_addresses(network, &chosen);
  return status.ok() ? status : Status::of(status.code(), 0, "--network: %.340s", status.text());
}

Finding examine_network(const std::string& network) {
  std::vector<HostAddress> chosen;
  if (Status s = choose_addresses(network, &chosen); !s.ok())
    return {"network", Verdict::kMissing, s.text(), "set SHADOWIB_IB2TCP_NETWORK to one of these, or unset it"};
  if (chosen.empty())
    return {"network", Verdict::kNote, "no address but loopback: ib2tcp works on this host only",
            "give the host an address, if a job is to have members on others"};
  std::string text;
  for (const HostAddress& address : chosen)
    text += (text.empty() ? "" : ", ") + std::string(address.interface) + " " + text_of(address.address);
  if (network.empty() || network == "any") return {"network", Verdict::kOk, "ib2tcp listens on all: " + text, ""};
  return {"network", Verdict::kOk, "ib2tcp listens on " + network + " only: " + text, ""};
}

}  // namespace shadowib::cli
