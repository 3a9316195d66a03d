// What all commands have in common: their options, their help and what is said of a wrong line.
#include "cli/command_line.h"

#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "cli/commands_test.h"

namespace convene::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

using CommandLineTest = CommandsTest;

std::string ErrorOf(const Outcome& outcome) {
  EXPECT_EQ(outcome.status, kUsage) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  return outcome.err;
}

TEST_F(CommandLineTest, AMistypedOptionGetsASuggestion) {
  const std::map<std::string, std::string> meant = {
      {"--promt", "--prompt"},   {"--max-token", "--max-tokens"},
      {"--top_k", "--top-k"},    {"--temprature", "--temperature"},
      {"--promt=x", "--prompt"}, {"--penalty", "--repetition-penalty"},
      {"--trcae", "--trace"},    {"--quite", "--quiet"},
      {"--hlep", "--help"}};
  for (const auto& [typed, name] : meant) {
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"run", model_, typed, "x"}, {"run", typed, "x", model_}}) {
      EXPECT_THAT(ErrorOf(Run(words)),
                  HasSubstr(fmt::format("there is no option \"{}\"; did you mean {}? (see convene "
                                        "run --help)",
                                        typed.substr(0, typed.find('=')), name)));
    }
  }
  EXPECT_THAT(ErrorOf(Run({"run", model_, "--bogus"})),
              HasSubstr("there is no option \"--bogus\" (see"));
  EXPECT_THAT(ErrorOf(Run({"run", model_, "-z"})), HasSubstr("there is no option \"-z\" (see"));
  EXPECT_THAT(ErrorOf(Run({"run", model_, "-temprature", "1"})),
              HasSubstr("did you mean --temperature?"));
  EXPECT_THAT(ErrorOf(Run({"--versoin"})),
              HasSubstr("did you mean --version? (see convene --help)"));
}

TEST_F(CommandLineTest, OriginsAreAsBrowsersWriteThem) {
  for (const std::string origin :
       {"foo", "https://page.example/", "http://", "https://Page.example", "https://*.example"}) {
    EXPECT_THAT(ErrorOf(Run({"serve", model_, "--cors-origin", origin})),
                HasSubstr("--cors-origin: must be SCHEME://HOST"))
        << origin;
  }
}

// One of the results would be lost, or what was read.
TEST_F(CommandLineTest, TwoOptionsCannotNameTheSameFile) {
  const std::string file = Path("same");
  const std::string same_file = Path("./same");
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"batch", model_, "--input", "x", "--output", file, "--json", same_file},
           {"batch", model_, "--input", file, "--output", file},
           {"run", model_, "--prompt", "x", "--trace", file, "--record-routing", file},
           {"logits", model_, "--tokens", file, "--out", file},
           {"gantt", file, "--out", file},
           {"perplexity", model_, "--text", file, "--json", same_file},
           {"compare", model_, "--text", file, "--json", file},
           {"encode", model_, "--text-file", file, "--out", file},
           {"plan", model_, "--profile", file, "--out", file},
           {"plan", model_, "--workload", file, "--json", file},
           {"plan", model_, "--svg", file, "--html", same_file},
           {"simulate", file, "--json", file},
           {"measure", "--from-trace", file, "--out", file},
           {"tokenize", model_, "--file", file, "--json", file}}) {
    EXPECT_THAT(ErrorOf(Run(words)), HasSubstr("same; give each a file of its own"));
  }
  // A text that spells the name of a file is none.
  EXPECT_EQ(Run({"tokenize", model_, "--text", file, "--json", file}).status, kSuccess);
}

// What is read whole and then made anew is no loss.
TEST_F(CommandLineTest, AProfileMayBeUpdatedInItsPlace) {
  const std::string profile = Path("profile.json");
  const Outcome refused =
      Run({"measure", "--from-trace", Path("none"), "--profile", profile, "--out", profile});
  EXPECT_NE(refused.status, kSuccess);
  EXPECT_THAT(refused.err, Not(HasSubstr("both name")));
}

// As scripts do that make a file first and read it where they hold it open.
TEST_F(CommandLineTest, AnEmptyFileIsWrittenWhereItIs) {
  Write("figures.json", "");
  std::ifstream held(Path("figures.json"));
  ASSERT_EQ(Run({"tokenize", model_, "--text", "a", "--json", Path("figures.json")}).status,
            kSuccess);
  std::string first;
  held >> first;
  EXPECT_EQ(first, "{");
}

TEST_F(CommandLineTest, LinksToOneFileAreFoundOut) {
  fs::create_symlink("new", Path("link"));
  EXPECT_THAT(ErrorOf(Run({"run", model_, "--prompt", "x", "--trace", Path("new"), "--json",
                           Path("link")})),
              HasSubstr("both name"));
  std::ofstream(Path("text")) << "some text";
  fs::create_hard_link(Path("text"), Path("other"));
  EXPECT_THAT(ErrorOf(Run({"tokenize", model_, "--file", Path("text"), "--json", Path("other")})),
              HasSubstr("both name"));
}

TEST_F(CommandLineTest, StandardOutputTakesOneResult) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"batch", model_, "--input", "x", "--output", "-", "--json", "-"},
           {"run", model_, "--prompt", "x", "--json", "-", "--trace", "-"},
           {"plan", model_, "--svg", "-", "--json", "-"},
           {"run", model_, "--prompt", "x", "--trace", "-", "--record-routing", "-"}}) {
    EXPECT_THAT(ErrorOf(Run(words)), HasSubstr("cannot both be standard output"));
  }
}

TEST_F(CommandLineTest, ArraysAndProfilesAreNoStandardOutput) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"logits", model_, "--tokens", "x", "--out", "-"},
                                             {"encode", model_, "--text", "x", "--out", "-"},
                                             {"measure", "--out", "-"}}) {
    EXPECT_THAT(ErrorOf(Run(words)), HasSubstr("file"));
  }
  EXPECT_FALSE(fs::exists("-"));
}

// Stands for a full disk: the system refuses to let files grow.
TEST_F(CommandLineTest, AResultThatCannotBeWrittenLeavesTheOneBefore) {
  const std::string old = Path("figures.json");
  Write("figures.json", "{}");
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit usual = {};
  getrlimit(RLIMIT_FSIZE, &usual);
  // What is said of it has room, and the figures of so many tokens have none.
  const rlimit limit = {.rlim_cur = 4096, .rlim_max = usual.rlim_max};
  const std::string text(5000, 'a');
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Outcome failed = Run({"tokenize", model_, "--text", text, "--json", old});
  setrlimit(RLIMIT_FSIZE, &usual);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(failed.status, kFailure);
  EXPECT_THAT(failed.err, HasSubstr("cannot write " + old));
  EXPECT_EQ(Read("figures.json"), "{}");
  EXPECT_EQ(Run({"tokenize", model_, "--text", text, "--json", old}).status, kSuccess);
  EXPECT_NE(Read("figures.json"), "{}");
}

TEST_F(CommandLineTest, WordsOfAComparisonAreReadBeforeAnythingElse) {
  const auto error = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"compare", model_, "--text", "x"};
    words.insert(words.end(), more.begin(), more.end());
    return ErrorOf(Run(words));
  };
  EXPECT_THAT(error({"--formats", "int8,int5"}), HasSubstr("--formats: \"int5\" is no format"));
  EXPECT_THAT(error({"--formats", "int4:7"}), HasSubstr("\"7\" cannot be in"));
  EXPECT_THAT(error({"--schemes", "all,bogus"}), HasSubstr("--schemes: \"bogus\" is no scheme"));
  EXPECT_THAT(error({"--tokens", "y"}), HasSubstr("--text excludes --tokens"));
}

// Measuring the machine takes seconds.
TEST_F(CommandLineTest, ABenchThatDoesNotFitTheModelIsRefusedBeforeTheMachineIsMeasured) {
  const auto error = [&](const char* option, const char* value) {
    const Outcome outcome = Run({"bench", model_, option, value});
    EXPECT_EQ(outcome.status, kFailure);
    EXPECT_THAT(outcome.err, Not(HasSubstr("measur")));
    return outcome.err;
  };
  EXPECT_THAT(error("--prompt-tokens", "1000000"), HasSubstr("is longer than the"));
  EXPECT_THAT(error("--batch", "513"), HasSubstr("raise --chunk, or run fewer together"));
}

TEST_F(CommandLineTest, GroupsOfColumnsGoWithInt4WeightsAlone) {
  const auto words = [&](const char* weights) {
    return std::vector<std::string>{"run",       model_,  "--prompt",     "x", "--max-tokens", "2",
                                    "--weights", weights, "--int4-group", "64"};
  };
  EXPECT_THAT(ErrorOf(Run(words("int8"))), HasSubstr("these are int8; leave it out"));
  const Outcome packed = Run({"quantize", model_, "--out", Path("q"), "--int4-group", "64"});
  EXPECT_EQ(packed.status, kFailure);  // int8 unless it is told otherwise
  EXPECT_THAT(packed.err, HasSubstr("use --weights int4"));
  EXPECT_EQ(Run(words("int4")).status, kSuccess);
  EXPECT_EQ(Run(words("auto")).status, kSuccess);
}

TEST_F(CommandLineTest, AMistypedOptionIsToldBeforeWhatItLeavesOut) {
  EXPECT_THAT(ErrorOf(Run({"batch", model_, "--inptu", "x", "--output", Path("y")})),
              HasSubstr("did you mean --input?"));
  EXPECT_THAT(ErrorOf(Run({"run", "--temprature", "0", "--top-k", "x"})),
              HasSubstr("did you mean --temperature?"));
}

TEST_F(CommandLineTest, AnOptionInFrontOfItsCommandIsToldWhereItBelongs) {
  EXPECT_THAT(ErrorOf(Run({"--system", "Be brief.", "chat", model_})),
              HasSubstr("--system stands in front of the command; options follow its name"));
  EXPECT_THAT(ErrorOf(Run({"--promt", "x", "run", model_})), HasSubstr("did you mean --prompt?"));
}

TEST_F(CommandLineTest, ALongOptionBehindOneDashIsNotTakenForAShortOne) {
  // -p with the value "rompt" would be another prompt without a word.
  EXPECT_THAT(ErrorOf(Run({"run", model_, "-prompt"})), HasSubstr("did you mean --prompt?"));
  EXPECT_THAT(ErrorOf(Run({"run", "-prompt=x", model_})), HasSubstr("did you mean --prompt?"));
  EXPECT_THAT(ErrorOf(Run({"bench", model_, "-batch", "1"})), HasSubstr("did you mean --batch?"));
}

TEST_F(CommandLineTest, AMistypedCommandGetsASuggestion) {
  for (const auto& [typed, name] : std::map<std::string, std::string>{
           {"rnu", "run"}, {"detokenise", "detokenize"}, {"quant", "quantize"}, {"Chat", "chat"}}) {
    EXPECT_THAT(ErrorOf(Run({typed, model_})),
                HasSubstr(fmt::format("\"{}\"; did you mean {}?", typed, name)));
    EXPECT_THAT(ErrorOf(Run({"--version", typed})), HasSubstr(name));
  }
  EXPECT_THAT(ErrorOf(Run({"serve"})), Not(HasSubstr("did you mean")));
}

TEST_F(CommandLineTest, TheHelpNamesTheExitStatuses) {
  const Outcome help = Run({"--help"});
  for (const char* status : {"0 all was done", "1 it failed", "2 the command line", "3 a batch"}) {
    EXPECT_THAT(help.out, HasSubstr(status));
  }
}

TEST_F(CommandLineTest, HelpAllShowsWhatTheHelpLeavesOut) {
  const Outcome help = Run({"run", "--help"});
  const Outcome all = Run({"run", "--help-all"});
  EXPECT_EQ(all.status, kSuccess);
  EXPECT_EQ(all.err, "");
  for (const char* rare :
       {"--trace FILE", "--plan FILE", "--wire FORMAT", "--router-skew", "--help-all"}) {
    EXPECT_THAT(help.out, Not(HasSubstr(fmt::format("\n  {}", rare)))) << rare;
    EXPECT_THAT(all.out, HasSubstr(fmt::format("\n  {}", rare)));
  }
  EXPECT_THAT(help.out, HasSubstr("--help-all"));
  std::istringstream lines(help.out);
  for (std::string line; std::getline(lines, line);) EXPECT_THAT(all.out, HasSubstr(line + "\n"));
  // Of all commands at once.
  const Outcome whole = Run({"--help-all"});
  EXPECT_EQ(whole.status, kSuccess);
  for (const CommandEntry& entry : Commands()) EXPECT_THAT(whole.out, HasSubstr(entry.name));
  EXPECT_THAT(whole.out, HasSubstr("--record-routing"));
}

TEST_F(CommandLineTest, EveryOptionOfEveryCommandHasADescription) {
  for (const CommandEntry& entry : Commands()) {
    CLI::App app;
    app.name("convene");
    CLI::App* parser = app.add_subcommand(entry.name);
    entry.make()->AddOptions(*parser);
    for (const CLI::Option* option : parser->get_options()) {
      EXPECT_NE(option->get_description(), "") << entry.name << " " << option->get_name();
      EXPECT_NE(option->get_group(), "")
          << entry.name << " " << option->get_name() << " stands in no help";
    }
  }
}

TEST_F(CommandLineTest, ShortOptionsAreTheLongOnes) {
  const Outcome given = Run({"run", model_, "-p", "abc", "-n", "4", "--temperature", "0"});
  ASSERT_EQ(given.status, kSuccess) << given.err;
  EXPECT_EQ(given.out,
            Run({"run", model_, "--prompt", "abc", "--max-tokens", "4", "--temperature", "0"}).out);
  const Outcome bench = Run(
      {"bench", model_, "-p", "4", "-n", "3", "--batch", "1", "--repeat", "1", "--threads", "1"});
  ASSERT_EQ(bench.status, kSuccess) << bench.err;
  EXPECT_THAT(bench.out, HasSubstr("pp4 "));
  EXPECT_THAT(bench.out, HasSubstr("tg3 "));
}

}  // namespace
}  // namespace convene::cli
