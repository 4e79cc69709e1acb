// Command lines as people write them; what is wrong with one is said in one line; shells complete every option.
#include "shadowib/command_line/command_line.h"

#include <gtest/gtest.h>

namespace command_line {
namespace {

struct Values {
  std::string name, mode;
  std::vector<std::string> files, rest;
  int number = 0;
  std::uint32_t count = 0;
  double seconds = 0;
  bool loud = false, windows = true;
  int chosen = 0;
  std::vector<int> several{9};
};

class CommandLine : public testing::Test {
 protected:
  CommandLine() : program_("tool", "Does things.") {
    program_.add_option("FILE", v_.files, "files")->type_name("FILE");
    program_.add_option("-n,--name", v_.name, "a name")->type_name("WORD");
    program_.add_option("--mode", v_.mode, "how")->one_of({"fast", "slow"});
    program_.add_option("-i,--number", v_.number, "a number")->between(-5, 10);
    program_.add_option("-c,--count", v_.count, "how many");
    program_.add_option("--wait", v_.seconds, "how long")->between(0.001, 1e8, "seconds");
    program_.add_option("--job", v_.name, "a job")->not_empty("a job");
    program_.add_option("--seconds", v_.seconds, "how long")->above(0)->type_name("S");
    program_.add_flag("-l,--loud", v_.loud, "say\nmore");
    program_.add_flag("!--no-windows", v_.windows, "without");
    program_.add_choice("--one", v_.chosen, Command::Choices<int>{{"a", 1}, {"b", 2}}, "one of them");
    program_.add_choices("--several", v_.several, Command::Choices<int>{{"a", 1}, {"b", 2}}, "several")
        ->delimiter(',');
  }

  // "" or the complaint.
  std::string parse(std::vector<const char*> words) { return parse(program_, std::move(words)); }
  static std::string parse(Command& program, std::vector<const char*> words) {
    words.insert(words.begin(), "tool");
    std::string why;
    const Command* used = nullptr;
    const auto parsed = program.parse(static_cast<int>(words.size()), words.data(), &why, &used);
    if (parsed == Command::Parsed::kHelp) return "help of " + used->full_name();
    EXPECT_EQ(parsed == Command::Parsed::kGood, why.empty()) << why;
    return why;
  }

  Values v_;
  Command program_;
};

TEST_F(CommandLine, OptionsInAllTheirForms) {
  EXPECT_EQ(
      parse({"x", "--name=n", "-i", "-3", "-c7", "--seconds", "1e-3", "-l", "y", "--mode", "slow", "--", "--name"}),
      "");
  EXPECT_EQ(v_.files, (std::vector<std::string>{"x", "y", "--name"}));
  EXPECT_EQ(v_.name, "n");
  EXPECT_EQ(v_.number, -3);
  EXPECT_EQ(v_.count, 7u);
  EXPECT_EQ(v_.seconds, 1e-3);
  EXPECT_EQ(v_.mode, "slow");
  EXPECT_TRUE(v_.loud && v_.windows);
  EXPECT_EQ(parse({"-li2", "--no-windows", "--one", "b", "--several", "b,a", "--several=a", "--name", ""}), "");
  EXPECT_EQ(v_.number, 2);
  EXPECT_FALSE(v_.windows);
  EXPECT_EQ(v_.chosen, 2);
  EXPECT_EQ(v_.several, (std::vector<int>{2, 1, 1}));
  EXPECT_EQ(v_.name, "");
}

TEST_F(CommandLine, ComplaintsNameTheOptionAndItsRule) {
  EXPECT_EQ(parse({"--bogus"}), "there is no option --bogus");
  EXPECT_EQ(parse({"-x"}), "there is no option -x");
  EXPECT_EQ(parse({"--bogus=3", "--number", "x"}), "there is no option --bogus");
  EXPECT_EQ(parse({"--name"}), "--name: 1 required WORD missing");
  EXPECT_EQ(parse({"--loud=yes"}), "loud was given a disallowed flag override");
  EXPECT_EQ(parse({"--mode", "odd"}), "--mode: 'odd' is none of fast, slow");
  EXPECT_EQ(parse({"-i", "11"}), "--number: '11' is no whole number from -5 to 10");
  EXPECT_EQ(parse({"-i", "1.5"}), "--number: '1.5' is no whole number from -5 to 10");
  EXPECT_EQ(parse({"-i", "010"}), "--number: '010' is no whole number from -5 to 10") << "8 or 10?";
  EXPECT_EQ(parse({"-c", "-1"}), "Could not convert: --count = -1");
  EXPECT_EQ(parse({"-c", "4294967296"}), "Could not convert: --count = 4294967296");
  EXPECT_EQ(parse({"--wait", "x"}), "--wait: 'x' is no number of seconds from 0.001 to 100000000");
  EXPECT_EQ(parse({"--job", ""}), "--job: it is empty; name a job");
  EXPECT_EQ(parse({"--job=", "x"}), "--job: it is empty; name a job");
  for (const char* value : {"abc", "0", "-1", "inf", "nan", "", "1s"})
    EXPECT_EQ(parse({"--seconds", value}), "--seconds: '" + std::string(value) + "' is no number above 0");
  EXPECT_EQ(parse({"--several", "a,c"}), "--several: 'c' is none of a, b");
}

TEST_F(CommandLine, RequiredArgumentsAndOptions) {
  std::string set, keep;
  Command program("tool", "");
  program.add_option("SET", set, "")->required();
  program.add_option("--keep", keep, "")->required()->type_name("N");
  EXPECT_EQ(parse(program, {"--keep", "1"}), "SET is required");
  EXPECT_EQ(parse(program, {"--help"}), "help of tool");
  EXPECT_EQ(parse(program, {"x"}), "--keep is required");
  EXPECT_EQ(parse(program, {"x", "y", "--keep", "1"}), "unexpected argument 'y'") << "one SET was given";
  EXPECT_EQ(parse(program, {"--keeps", "1"}), "there is no option --keeps") << "nor is there a SET";
  EXPECT_EQ(parse(program, {"--keep", "1", "--", "--x"}), "");
  EXPECT_EQ(set, "--x");
}

TEST_F(CommandLine, AnotherProgramsCommandLineIsItsOwn) {
  const auto rest_of = [](std::vector<const char*> words, std::string* why) {
    std::vector<std::string> rest;
    bool loud = false;
    int many = 0;
    Command program("tool", "");
    Command* run = program.add_subcommand("run", "");
    run->add_flag("--loud", loud, "");
    run->add_option("--many", many, "")->between(1, 9);
    run->take_rest(rest, " -- CMD");
    *why = parse(program, std::move(words));
    return rest;
  };
  std::string why;
  EXPECT_EQ(rest_of({"run", "--loud", "--", "app", "--", "-x"}, &why), (std::vector<std::string>{"app", "--", "-x"}));
  EXPECT_EQ(why, "");
  EXPECT_EQ(rest_of({"run", "app", "--loud="}, &why), (std::vector<std::string>{"app", "--loud="}));
  EXPECT_EQ(rest_of({"run"}, &why), std::vector<std::string>{});
  EXPECT_EQ(why, "");
  (void)rest_of({"run", "stray", "--", "app"}, &why);
  EXPECT_EQ(why, "unexpected argument 'stray' before --");
  (void)rest_of({"run", "--bogus", "--", "app"}, &why);
  EXPECT_EQ(why, "there is no option --bogus");
  (void)rest_of({"run", "--bogus", "app", "-x"}, &why);
  EXPECT_EQ(why, "there is no option --bogus");
  (void)rest_of({"run", "--many", "x", "app", "-x"}, &why);
  EXPECT_EQ(why, "--many: 'x' is no whole number from 1 to 9") << "-x is the other program's";
  EXPECT_EQ(rest_of({"run", "--", "run", "-h"}, &why), (std::vector<std::string>{"run", "-h"}));
  EXPECT_EQ(rest_of({"run", "run", "-h"}, &why), (std::vector<std::string>{"run", "-h"}));
  EXPECT_EQ(rest_of({"run", "--", "--bogus"}, &why), std::vector<std::string>{"--bogus"});
  EXPECT_EQ(why, "");
  (void)rest_of({}, &why);
  EXPECT_EQ(why, "which command?");
  (void)rest_of({"fly"}, &why);
  EXPECT_EQ(why, "there is no command 'fly'");
  (void)rest_of({"run", "-h"}, &why);
  EXPECT_EQ(why, "help of tool run");
}

TEST_F(CommandLine, AnArgumentMayBeCalledAsACommand) {
  std::string job;
  std::optional<std::string> note;
  Command program("tool", "");
  program.add_subcommand("list", "");
  Command* show = program.add_subcommand("show", "");
  show->add_option("J", job, "");
  show->add_option("--note", note, "");
  EXPECT_EQ(parse(program, {"show", "list"}), "");
  EXPECT_EQ(job, "list");
  EXPECT_FALSE(note.has_value());
  EXPECT_EQ(parse(program, {"show", "show", "--note", "a", "--note", ""}), "");
  EXPECT_EQ(job, "show");
  EXPECT_EQ(note, "");
}

TEST_F(CommandLine, HelpShowsAllButWhatIsHidden) {
  std::string secret;
  program_.add_option("--secret", secret, "not for you")->hidden();
  const std::string help = program_.help();
  EXPECT_NE(help.find("Usage: tool [OPTIONS] [FILE...]\n"), std::string::npos) << help;
  EXPECT_NE(help.find("  -l,--loud                       say\n                                  more\n"),
            std::string::npos)
      << help;
  EXPECT_EQ(help.find("\n\n\n"), std::string::npos) << help;
  EXPECT_NE(help.find("  --seconds S "), std::string::npos) << help;
  EXPECT_EQ(help.find("secret"), std::string::npos);
}

TEST_F(CommandLine, ShellsCompleteAllButWhatIsHidden) {
  Command program("tool", "");
  Command* command = program.add_subcommand("go", "It's [odd]: much");
  command->add_option("SET", v_.name, "")->completed_by("ls sets");
  command->add_option("-m,--mode", v_.mode, "")->one_of({"fast", "slow"});
  command->add_flag("--loud", v_.loud, "");
  program.add_option("--secret", v_.mode, "")->hidden();
  for (const char* shell : {"bash", "zsh"}) {
    const std::string script = completion(program, shell);
    for (const char* word : {"go", "ls sets", "-m", "--mode", "fast slow", "--loud", "--help"})
      EXPECT_NE(script.find(word), std::string::npos) << shell << " " << word << "\n" << script;
    EXPECT_EQ(script.find("secret"), std::string::npos) << shell;
  }
  EXPECT_NE(completion(program, "zsh").find("'go:It'\\''s \\[odd\\]\\: much'"), std::string::npos);
}

}  // namespace
}  // namespace command_line
