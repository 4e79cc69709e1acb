// Who is a rank of which launch, what falls to whom, and how those that wait learn of the end.
#include "shadowib/cli/launched_restart.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <thread>

#include "shadowib/base/deadline.h"

namespace shadowib::cli {
namespace {

constexpr const char* kVariables[] = {"PMIX_NAMESPACE",
                                      "OMPI_COMM_WORLD_RANK",
                                      "OMPI_COMM_WORLD_SIZE",
                                      "SLURM_JOB_ID",
                                      "SLURM_STEP_ID",
                                      "SLURM_STEP_NUM_TASKS",
                                      "SLURM_PROCID",
                                      "SLURM_NTASKS",
                                      "SLURM_RESTART_COUNT",
                                      "PMI_RANK",
                                      "PMI_SIZE"};

// "launch rank/size", or "none", or "refused".
std::string found_in(const std::map<const char*, const char*>& environment) {
  for (const char* name : kVariables) ::unsetenv(name);
  for (const auto& [name, value] : environment) ::setenv(name, value, 1);
  Launched launched;
  bool found = false;
  if (const Status s = find_launcher(&launched, &found); !s.ok()) return "refused";
  for (const char* name : kVariables) ::unsetenv(name);
  return !found ? "none"
                : launched.launch + " " + std::to_string(launched.rank) + "/" + std::to_string(launched.size);
}

TEST(LaunchedRestart, KnowsItsLauncher) {
  EXPECT_EQ(found_in({}), "none");
  EXPECT_EQ(found_in({{"PMIX_NAMESPACE", "30.7@x"}, {"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}}),
            "30_7_x 2/4");
  EXPECT_EQ(found_in({{"PMIX_NAMESPACE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}),
            "none");
  EXPECT_EQ(found_in({{"PMIX_NAMESPACE", "1"}, {"OMPI_COMM_WORLD_RANK", "4"}, {"OMPI_COMM_WORLD_SIZE", "4"}}),
            "none");
  EXPECT_EQ(
      found_in(
          {{"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "3"}, {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PROCID", "7"}}),
      "slurm-77_3 7/8");
  // A batch script, which is no step, starts a command by itself.
  EXPECT_EQ(found_in({{"SLURM_JOB_ID", "77"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}), "none");
  EXPECT_EQ(found_in({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}), "refused");
  EXPECT_EQ(found_in({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}), "none");
}

TEST(LaunchedRestart, TellsStepsOfAJobThatWasQueuedAgain) {
  std::map<const char*, const char*> task = {
      {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}};
  EXPECT_EQ(found_in(task), "slurm-77_0 1/2");
  task["SLURM_RESTART_COUNT"] = "2";
  EXPECT_EQ(found_in(task), "slurm-77_0_r2 1/2");
}

// Which other launchers start by srun, one to a host.
TEST(LaunchedRestart, TakesNoRankForADaemonOfItsLauncher) {
  const std::map<const char*, const char*> daemon = {
      {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}};
  const auto rank_below = [&daemon](std::map<const char*, const char*> rank) {
    rank.insert(daemon.begin(), daemon.end());
    return found_in(rank);
  };
  EXPECT_EQ(rank_below({{"PMIX_NAMESPACE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}),
            "none");
  EXPECT_EQ(rank_below({{"PMIX_NAMESPACE", "1"}, {"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}}),
            "1 3/4");
  EXPECT_EQ(rank_below({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}), "refused");
  EXPECT_EQ(rank_below({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}), "refused");
  EXPECT_EQ(rank_below({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}), "slurm-77_0 1/2") << "srun --mpi=pmi2";
}

using Hosts = std::vector<std::set<std::uint32_t>>;

Companies of_one_each(std::uint32_t members) {
  Companies companies;
  for (std::uint32_t m = 0; m < members; ++m) companies.push_back({m});
  return companies;
}

TEST(LaunchedRestart, EveryMemberFallsToOneRank) {
  for (const std::uint32_t members : {1u, 2u, 5u, 8u, 64u})
    for (int size = 1; size <= 9; ++size) {
      std::vector<int> hosts;  // a rank on each
      for (int rank = 0; rank < size; ++rank) hosts.push_back(rank);
      std::size_t next = 0, least = members, most = 0;
      for (const std::set<std::uint32_t>& share : deal(of_one_each(members), hosts)) {
        for (const std::uint32_t m : share) EXPECT_EQ(m, next++);  // in order, none left out, none twice
        least = std::min(least, share.size()), most = std::max(most, share.size());
      }
      EXPECT_EQ(next, members);
      EXPECT_LE(most - least, 1u) << members << " members, " << size << " ranks";
    }
}

TEST(LaunchedRestart, AHostHasWhatItsRanksHave) {
  EXPECT_EQ(deal(of_one_each(6), {0, 1, 0}), (Hosts{{0, 1, 4, 5}, {2, 3}}));
  EXPECT_EQ(deal(of_one_each(2), {0, 0, 1, 2}), (Hosts{{0}, {1}, {}}));
}

TEST(LaunchedRestart, CompaniesStayTogether) {
  // In order they fall to one host each, and stay there.
  EXPECT_EQ(deal({{0, 1}, {2, 3}}, {0, 0, 1, 1}), (Hosts{{0, 1}, {2, 3}}));
  // srun --distribution=cyclic; ranks of a launcher that are more, or fewer, than the members.
  EXPECT_EQ(deal({{0, 1}, {2, 3}}, {0, 1, 0, 1}), (Hosts{{0, 1}, {2, 3}}));
  EXPECT_EQ(deal({{0, 2}, {1, 3}}, {0, 0, 1, 1}), (Hosts{{0, 2}, {1, 3}}));
  EXPECT_EQ(deal({{0, 1}, {2, 3}, {4, 5}}, {0, 1}), (Hosts{{0, 1, 4, 5}, {2, 3}})) << "a host has more than its part";
  // The large ones first: else the small ones would take their places.
  EXPECT_EQ(deal({{0}, {1, 2, 3}, {4}, {5}}, {0, 1}), (Hosts{{1, 2, 3}, {0, 4, 5}}));
  // Nobody is alone: one host has all.
  EXPECT_EQ(deal({{0, 1, 2}}, {0, 1, 2}), (Hosts{{0, 1, 2}, {}, {}}));
}

class Launch : public testing::Test {
 protected:
  Launch() {
    char name[] = "/tmp/shadowib-launch-XXXXXX";
    top_ = ::mkdtemp(name);
  }
  ~Launch() override { std::filesystem::remove_all(top_); }

  std::string exchange() const { return "dir:" + top_ + "/x"; }

  std::string top_;
};

TEST_F(Launch, OneOfAHostStartsForAll) {
  std::vector<std::thread> ranks;
  std::vector<int> codes(3, -1);
  std::vector<std::size_t> counts(3);
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      LaunchedRestart group({"launch", rank, 3}, top_);
      const Status gathered = group.gather(exchange(), "j", 60);
      ASSERT_TRUE(gathered.ok()) << gathered.text();
      counts[static_cast<std::size_t>(rank)] = group.members(of_one_each(5)).size();
      EXPECT_EQ(group.leads(), rank == 0);
      int code = 20;
      if (group.leads())
        group.told(code);
      else
        ASSERT_TRUE(group.follow(&code).ok());
      codes[static_cast<std::size_t>(rank)] = code;
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(codes, (std::vector<int>{20, 20, 20}));
  EXPECT_EQ(counts, (std::vector<std::size_t>{5, 5, 5}));
}

TEST_F(Launch, WhoLeadsMayDie) {
  auto leader = std::make_unique<LaunchedRestart>(Launched{"launch", 0, 2}, top_);
  std::thread first([&] { EXPECT_TRUE(leader->gather(exchange(), "j", 60).ok()); });
  LaunchedRestart follower({"launch", 1, 2}, top_);
  EXPECT_TRUE(follower.gather(exchange(), "j", 60).ok());
  first.join();
  leader.reset();  // without a word
  int code = 0;
  const Status status = follower.follow(&code);
  EXPECT_EQ(status.code(), Code::kAborted) << status.text();
}

// Its job runs on: whoever follows waits for the leader alone.
TEST_F(Launch, TheExchangeMayGo) {
  auto leader = std::make_unique<LaunchedRestart>(Launched{"launch", 0, 2}, top_);
  std::thread first([&] { EXPECT_TRUE(leader->gather(exchange(), "j", 60).ok()); });
  LaunchedRestart follower({"launch", 1, 2}, top_);
  EXPECT_TRUE(follower.gather(exchange(), "j", 60).ok());
  first.join();
  std::filesystem::remove_all(exchange().substr(exchange().find(':') + 1));
  int code = 0;
  std::thread second([&] { EXPECT_TRUE(follower.follow(&code).ok()); });
  leader->told(21);
  leader.reset();
  second.join();
  EXPECT_EQ(code, 21);
}

// A launcher sends a signal to all its ranks. Those that follow are to end as the leader does.
TEST_F(Launch, SignalsAreForTheLeader) {
  auto leader = std::make_unique<LaunchedRestart>(Launched{"launch", 0, 2}, top_);
  const pid_t follower = ::fork();
  if (follower == 0) {
    LaunchedRestart group({"launch", 1, 2}, top_);
    int code = 0;
    for (const int signal : {SIGTERM, SIGUSR1, SIGINT}) ::signal(signal, SIG_DFL);
    if (!group.gather(exchange(), "j", 60).ok()) ::_exit(99);
    ::_exit(group.follow(&code).ok() ? code : 98);
  }
  ASSERT_TRUE(leader->gather(exchange(), "j", 60).ok());
  const std::string status = "/proc/" + std::to_string(follower) + "/status";
  const Deadline deadline = Deadline::in_ms(60000);
  for (std::string line; line != "SigBlk:\t0000000008004a07";) {  // it follows
    ASSERT_FALSE(deadline.has_passed()) << line;
    ASSERT_EQ(::waitpid(follower, nullptr, WNOHANG), 0);
    std::ifstream file(status);
    while (std::getline(file, line) && !line.starts_with("SigBlk:")) {
    }
  }
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT}) ASSERT_EQ(::kill(follower, signal), 0);
  leader->told(21);
  leader.reset();
  int wait_status = 0;
  ASSERT_EQ(::waitpid(follower, &wait_status, 0), follower);
  EXPECT_TRUE(WIFEXITED(wait_status)) << "signal " << WTERMSIG(wait_status);
  EXPECT_EQ(WEXITSTATUS(wait_status), 21);
}

TEST_F(Launch, RestartsAJobOnce) {
  for (const int rank : {0, 1}) {
    LaunchedRestart early({"launch", rank, 2}, top_);
    const Status status = early.gather(exchange(), "j", rank == 0 ? 1 : 60);
    EXPECT_EQ(status.code(), rank == 0 ? Code::kTimeout : Code::kOk) << status.text();
  }
  LaunchedRestart again({"launch", 1, 2}, top_), other({"another", 1, 2}, top_);
  EXPECT_EQ(again.gather(exchange(), "j", 60).code(), Code::kBusy);
  EXPECT_EQ(other.gather(exchange(), "j", 1).code(), Code::kTimeout);
}

TEST_F(Launch, TellsWhoHasNotCome) {
  LaunchedRestart alone({"launch", 1, 4}, top_);
  const Status status = alone.gather(exchange(), "j", 1);
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_NE(std::string(status.text()).find("rank 0,2,3"), std::string::npos) << status.text();
}

}  // namespace
}  // namespace shadowib::cli
