// bsprun's plan: hosts, shares, exit codes and last words.
#include "libraries/bsp/run/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "libraries/bsp/greeting.h"

namespace shadowib::bsprun {
namespace {

using Kind = Outcome::Kind;

TEST(Hosts, HaveNoMoreProcessesThanTheLibraryConnects) { EXPECT_EQ(kMostProcesses, bsp::kMaxProcesses); }

TEST(Checkpoints, OfPortableProcessesMayTakeAsLongAsTheIntervalIs) {
  const auto seconds = [](const char* interval) {
    Options options;
    options.job = "j", options.interval = interval;
    const std::vector<std::string> words = checkpoint_words(options);
    const auto at = std::find(words.begin(), words.end(), "--timeout");
    return at != words.end() ? *(at + 1) : "";
  };
  EXPECT_EQ(seconds("0.1"), "60");
  EXPECT_EQ(seconds("600"), "600");
}

TEST(Hosts, AreFilledInOrder) {
  std::string why;
  const std::vector<Share> shares = distribute({{"a", 2}, {"b", 2}, {"c", 1}}, 3, &why);
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[1].host, "b");
  EXPECT_EQ(shares[1].first, 2);
  EXPECT_EQ(shares[1].count, 1);
  EXPECT_TRUE(distribute({{"a", 2}}, 3, &why).empty());
  EXPECT_EQ(why, "the hosts have 2 slots for 3 processes");
}

// A file that has the head of a program for that machine.
std::string program_for(const std::string& name, int machine) {
  const std::string path = ::testing::TempDir() + "plan_test." + name;
  std::string head(64, '\0');
  head.replace(0, 4, "\177ELF");
  head[5] = 1;  // lowest byte first
  head[18] = static_cast<char>(machine & 0xff), head[19] = static_cast<char>(machine >> 8);
  std::ofstream(path, std::ios::binary) << head;
  return path;
}

constexpr int kX86 = 62, kArm = 183;  // as <elf.h> has them

TEST(Hosts, RunProgramsOfTheirArchitecture) {
  const std::string here = program_for("here", kX86), other = program_for("other", kArm);
  Options options;
  options.portable = true, options.program = {here, "9"};
  EXPECT_EQ(choose_programs("x86_64", &options), "");
  EXPECT_TRUE(options.programs.empty()) << "there is no choice";
  options.programs = {other};
  EXPECT_EQ(choose_programs("x86_64", &options), "");
  EXPECT_EQ(options.programs, std::vector<std::string>{here}) << "PROGRAM is for all other hosts";
  EXPECT_EQ(options.among, (std::vector<std::string>{other, here}));
  options.programs = {here, other}, options.architecture = "aarch64";
  EXPECT_EQ(choose_programs("x86_64", &options), "");
  EXPECT_EQ(options.programs, std::vector<std::string>{other});
  options.programs = {}, options.architecture = "s390x";
  EXPECT_NE(choose_programs("x86_64", &options).find("programs of s390x, and there is none"), std::string::npos);
  options.programs = {other, "no such file"}, options.architecture = "", options.program = {other};
  EXPECT_NE(choose_programs("x86_64", &options), "");
}

TEST(Hosts, AreFilledBeyondTheirSlotsIfOthersWereLost) {
  const std::vector<Host> hosts = with_room({{"a", 2}, {"b", 1}}, 6);
  EXPECT_EQ(hosts[0].slots, 4);
  EXPECT_EQ(hosts[1].slots, 2);
  EXPECT_EQ(with_room({{"a", 2}}, 1)[0].slots, 2);
}

// A first version took a program's own exit code above 128 for a signal, and 255 for a lost host.
TEST(Outcome, OwnExitCodesAreNeitherSignalsNorLostHosts) {
  for (const int code : {1, 3, 128, 137, 139, 200, 255}) {
    const Outcome outcome{Kind::kExit, 1, code};
    EXPECT_EQ(exit_code(outcome), code);
    EXPECT_FALSE(ends_all(outcome)) << code;
    EXPECT_EQ(message(outcome, "b"), "");
    Outcome read;
    ASSERT_TRUE(read_last_words("token", last_words("token", outcome), &read));
    EXPECT_EQ(read.kind, Kind::kExit);
    EXPECT_EQ(read.value, code);
    EXPECT_EQ(read.process, 1);
  }
}

TEST(Outcome, SignalsLostHostsAndAbortsEndAll) {
  const Outcome killed{Kind::kSignal, 2, 9}, lost{Kind::kLost, -1, 0}, aborted{Kind::kExit, 0, kAborted};
  EXPECT_EQ(exit_code(killed), 137);
  EXPECT_EQ(exit_code(lost), kLostHost);
  for (const Outcome& outcome : {killed, lost, aborted, Outcome{Kind::kExit, 0, 127}}) EXPECT_TRUE(ends_all(outcome));
  EXPECT_EQ(message(killed, "b"), "process 2 on b was ended by signal 9 (Killed); the job ends");
  EXPECT_EQ(message(lost, "b"), "lost host b; the job ends");
  EXPECT_EQ(message(aborted, ""), "") << "the process has told it";
  Outcome read;
  ASSERT_TRUE(read_last_words("t", last_words("t", killed), &read));
  EXPECT_EQ(read.kind, Kind::kSignal);
}

TEST(Outcome, WordsOfAnotherTokenAreAProgramsOutput) {
  Outcome read;
  EXPECT_FALSE(read_last_words("t", last_words("u", {Kind::kExit, 0, 0}), &read));
  EXPECT_FALSE(read_last_words("t", "exit 0 0\n", &read));
}

TEST(Jobs, HaveNamesThatShadowibTakes) {
  EXPECT_EQ(name_job("./lu", 7), "lu-7");
  EXPECT_EQ(name_job("./a b/my prog+", 7), "my_prog_-7");
  EXPECT_EQ(name_job(".hidden", 7), "_hidden-7");
  EXPECT_EQ(name_job(std::string(100, 'x'), 7).size(), 42u);
}

using Words = std::vector<std::string>;

TEST(Portable, JobsAreSupervisedAndHaveHosts) {
  Options options;
  options.portable = options.supervise = true, options.job = "j", options.processes = 4, options.hosts = "a:2,b:2";
  options.programs = {"./lu.aarch64"}, options.runners = {"aarch64=qemu"}, options.program = {"./lu", "9"};
  EXPECT_EQ(contradiction(options), "");
  EXPECT_EQ(supervise_words(options, "/bin/bsprun"), (Words{"supervise",
                                                            "--job",
                                                            "j",
                                                            "--hosts",
                                                            "a:2,b:2",
                                                            "--retry-on",
                                                            "123",
                                                            "--",
                                                            "/bin/bsprun",
                                                            "--supervised",
                                                            "-n",
                                                            "4",
                                                            "--job",
                                                            "j",
                                                            "--portable",
                                                            "--program",
                                                            "./lu.aarch64",
                                                            "--runner",
                                                            "aarch64=qemu",
                                                            "--",
                                                            "./lu",
                                                            "9"}));
  options.epoch = "e", options.images = "set", options.lease_s = 5;
  EXPECT_EQ(share_words(options, {"b", 2, 2, "aarch64"}, "/bin/bsprun", "t"),
            (Words{"/bin/bsprun", "--share",      "t",        "--epoch",
                   "e",           "--first",      "2",        "--count",
                   "2",           "-n",           "4",        "--job",
                   "j",           "--lease",      "5.000000", "--architecture",
                   "aarch64",     "--portable",   "--images", "set",
                   "--program",   "./lu.aarch64", "--runner", "aarch64=qemu",
                   "--",          "./lu",         "9"}));
  options.backend = "ib2tcp";
  EXPECT_NE(contradiction(options), "");
}

TEST(Supervised, AreStartedByBsprunWithoutThatOption) {
  Options options;
  options.job = "j", options.directory = "d", options.interval = "5", options.keep = 3, options.processes = 4;
  options.backend = "ib2tcp", options.json = options.supervise = true, options.program = {"./lu", "--n", "9"};
  EXPECT_EQ(contradiction(options), "");
  EXPECT_EQ(supervise_words(options, "/bin/bsprun"),
            (Words{"supervise",    "--job",  "j",     "--interval", "5",      "--keep", "3",
                   "--retry-on",   "123",    "--dir", "d",          "--json", "--",     "/bin/bsprun",
                   "--supervised", "-n",     "4",     "--job",      "j",      "--dir",  "d",
                   "--backend",    "ib2tcp", "--",    "./lu",       "--n",    "9"}));
  options.hosts = "a:2,b:2";
  EXPECT_EQ(contradiction(options), "");
  Words words = supervise_words(options, "/bin/bsprun");
  const auto at = std::find(words.begin(), words.end(), "--hosts");
  ASSERT_NE(at, words.end());
  EXPECT_EQ(at[1], "a:2,b:2");
  EXPECT_LT(at, std::find(words.begin(), words.end(), "--"))
      << "bsprun itself finds in SHADOWIB_HOSTS those that live";
  options.hosts = options.job = "";
  EXPECT_NE(contradiction(options), "") << "the next start would not find the sets";
}

// It was taken in silence, and no set was made that it could keep.
TEST(Checkpoints, AreMadeWhereSomeAreKept) {
  Options options;
  options.program = {"./lu"}, options.keep = 3;
  EXPECT_NE(contradiction(options), "");
  options.interval = "60";
  EXPECT_EQ(contradiction(options), "");
  options.interval = "", options.supervise = true, options.job = "j";
  EXPECT_EQ(contradiction(options), "");
}

TEST(From, TakesASetAndNoProgram) {
  Options options;
  options.from = "lu.0007", options.directory = "d";
  EXPECT_EQ(contradiction(options), "");
  EXPECT_EQ(restart_words(options), (Words{"restart", "--dir", "d", "lu.0007"}));
  options.hosts = "a:2";
  EXPECT_EQ(contradiction(options), "");
  EXPECT_EQ(restart_words(options), (Words{"restart", "--hosts", "a:2", "--dir", "d", "lu.0007"}));
  options.processes = 4;
  EXPECT_NE(contradiction(options), "");
  options.processes = 0, options.program = {"./lu"};
  EXPECT_NE(contradiction(options), "");
}

TEST(Json, NamesTheFirstFailure) {
  EXPECT_EQ(json_of("j", {Kind::kExit, -1, 0}, ""), "{\"job\": \"j\", \"exit_code\": 0}");
  EXPECT_EQ(json_of("j", {Kind::kSignal, 2, 9}, "b"),
            "{\"job\": \"j\", \"exit_code\": 137, \"process\": 2, \"signal\": 9, \"host\": \"b\"}");
  EXPECT_EQ(json_of("a\"\\\n", {}, ""), "{\"job\": \"a\\u0022\\u005c\\u000a\", \"exit_code\": 0}");
}

TEST(Forwarded, AreAllVariablesButOwnPlacesAndPasswords) {
  for (const char* name : {"SHADOWIB_BSP_DEVICE", "SHADOWIB_DIR", "SHADOWIB_EXCHANGE", "SHADOWIB_IB2TCP_NETWORK"})
    EXPECT_TRUE(is_forwarded(name)) << name;
  for (const char* name : {"SHADOWIB_BSP_PROCESS", "SHADOWIB_BSP_EPOCH", "SHADOWIB_REDIS_PASSWORD", "HOME", "SHADOW"})
    EXPECT_FALSE(is_forwarded(name)) << name;
}

}  // namespace
}  // namespace shadowib::bsprun
