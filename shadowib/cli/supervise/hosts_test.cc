#include "shadowib/cli/supervise/hosts.h"

#include <gtest/gtest.h>

#include "shadowib/cli/host_list.h"

namespace shadowib::cli {
namespace {

using command_line::Host;
using Counts = std::vector<int>;

std::string text_of(const std::vector<Host>& hosts) { return command_line::hosts_text(hosts); }

TEST(HostList, IsOfHostsOrSlurm) {
  std::vector<Host> hosts;
  EXPECT_TRUE(parse_host_list("a:2,b", &hosts).ok());
  EXPECT_EQ(text_of(hosts), "a:2,b:1");
  EXPECT_EQ(parse_host_list("a:0", &hosts).code(), Code::kUsage);
  ::unsetenv("SLURM_JOB_NODELIST");
  EXPECT_EQ(parse_host_list("slurm", &hosts).code(), Code::kUsage);
}

TEST(HostList, HasSlurmsTasks) {
  EXPECT_EQ(slurm_counts("2(x3),1"), (Counts{2, 2, 2, 1}));
  EXPECT_EQ(slurm_counts("16"), (Counts{16}));
  EXPECT_EQ(slurm_counts("1,2(x1),3"), (Counts{1, 2, 3}));
  for (const char* wrong : {"", "x", "2(x", "2(x0)", "0", "2(3)", "1,,2", "-1", "2(x3)y"})
    EXPECT_EQ(slurm_counts(wrong), Counts{}) << wrong;
}

PastEvent lost(const std::string& host, std::int64_t time_ms) {
  PastEvent event;
  event.time_ms = time_ms;
  event.name = "host_lost";
  event.json = {{"event", "host_lost"}, {"on", host}, {"host", "here"}};
  return event;
}

TEST(TrustedHosts, HaveNotBeenLostTwice) {
  const std::vector<Host> hosts{{"a", 2}, {"b", 2}};
  std::vector<PastEvent> events{lost("b", 50), lost("b", 150)};
  EXPECT_EQ(text_of(trusted_hosts(hosts, events, 100)), "a:2,b:2") << "one was before this supervisor";
  events.push_back(lost("b", 160));
  EXPECT_EQ(text_of(trusted_hosts(hosts, events, 100)), "a:2");
  events.push_back(lost("a", 170));
  events.push_back(lost("a", 180));
  EXPECT_EQ(text_of(trusted_hosts(hosts, events, 100)), "a:2,b:2") << "better than none";
}

}  // namespace
}  // namespace shadowib::cli
