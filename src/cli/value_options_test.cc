#include "cli/value_options.h"

#include <gmock/gmock.h>

#include <CLI/CLI.hpp>
#include <set>

#include "cli/commands_test.h"

namespace convene::cli {
namespace {

using ::testing::HasSubstr;

TEST(ParseNumber, TakesTheWholeTextInDecimal) {
  EXPECT_EQ(*ParseNumber<int>("-7", {-10, 10}), -7);
  EXPECT_EQ(*ParseNumber<int>("010", {0, 100}), 10);
  EXPECT_EQ(*ParseNumber<uint64_t>("18446744073709551615", kAnySeed), ~uint64_t{0});
  EXPECT_EQ(*ParseNumber<double>("1e-3", {0.0, 1.0}), 1e-3);
  for (const char* text : {"", " ", " 1", "1 ", "1x", "x", "true", "0x10", "+1", "--1", "1,2", "1.",
                           "1e2", "99999999999999999999"}) {
    EXPECT_FALSE(ParseNumber<int>(text, {-1000, 1000}).ok()) << text;
  }
  for (const char* text :
       {"", "nan", "inf", "-inf", "infinity", "1e999", "0x1p3", "1.0.0", "1e", "1 ", "1,0"}) {
    EXPECT_FALSE(ParseNumber<double>(text, {-1e308, 1e308}).ok()) << text;
  }
  for (const char* text : {"-1", "18446744073709551616", "1.0", "1e3"}) {
    EXPECT_FALSE(ParseNumber<uint64_t>(text, kAnySeed).ok()) << text;
  }
}

TEST(ParseNumber, SaysWhatItMayBe) {
  EXPECT_EQ(ParseNumber<int>("11", {0, 10}).error().message,
            "\"11\" is not a whole number from 0 to 10");
  EXPECT_EQ(ParseNumber<double>("nan", {0.5, 1.0}).error().message,
            "\"nan\" is not a number from 0.5 to 1");
}

TEST(ParseList, RefusesEmptyPartsAndDuplicates) {
  EXPECT_EQ(*ParseList("a"), std::vector<std::string>{"a"});
  EXPECT_EQ(*ParseList("a,b"), (std::vector<std::string>{"a", "b"}));
  for (const char* text : {"", ",", "a,", ",a", "a,,b", "a,b,a"}) {
    EXPECT_FALSE(ParseList(text).ok()) << text;
  }
}

// Every option of every command that takes a value, with values that no option takes.
class EveryOption : public CommandsTest {
 protected:
  // Calls `see` with a command's name and each of its options.
  template <typename See>
  static void ForEach(See see) {
    for (const CommandEntry& entry : Commands()) {
      CLI::App app;
      const std::unique_ptr<Command> command = entry.make();
      command->AddOptions(app);
      for (const CLI::Option* option : app.get_options()) {
        if (option->get_expected_max() > 0) see(entry.name, *option);  // no flag
      }
    }
  }

  // A command line with the option last; arguments come in their order.
  static Outcome RunWith(const char* command, const CLI::Option& option, const std::string& value) {
    if (option.get_positional()) return Run({command, value});
    return Run({command, "--" + option.get_lnames().front(), value});
  }
};

// Options where an empty text is a text like others, or an error of its own.
const std::set<std::string> kTexts = {"text", "prompt", "system", "stop", "ids"};

TEST_F(EveryOption, RefusesAnEmptyValueUnlessItIsText) {
  int num_options = 0;
  ForEach([&](const char* command, const CLI::Option& option) {
    const bool has_name = !option.get_positional();
    const std::string type = option.get_type_name();
    if (has_name && kTexts.contains(option.get_lnames().front()) && type == "TEXT") return;
    ++num_options;
    const Outcome outcome = RunWith(command, option, "");
    EXPECT_EQ(outcome.status, kUsage) << command << " " << option.get_name();
    EXPECT_THAT(outcome.err, HasSubstr(has_name ? option.get_lnames().front() : option.get_name()))
        << command << " " << option.get_name();
  });
  EXPECT_GT(num_options, 100);
}

TEST_F(EveryOption, ThatIsANumberRefusesWhatIsNone) {
  const std::set<std::string> kNumbers = {"N", "T",      "K",       "P",    "R",
                                          "S", "TOKENS", "N,N,...", "SHARE"};
  int num_options = 0;
  ForEach([&](const char* command, const CLI::Option& option) {
    if (!kNumbers.contains(option.get_type_name())) return;
    ++num_options;
    for (const char* nonsense : {"", "nan", "inf", "-inf", "1e30", "-1", "x", "1x", "1 ", " 1",
                                 "true", "0x1", "99999999999999999999", "1,,2", ",", "1;2"}) {
      const Outcome outcome = RunWith(command, option, nonsense);
      EXPECT_EQ(outcome.status, kUsage) << command << " " << option.get_name() << " " << nonsense;
      EXPECT_THAT(outcome.err, HasSubstr(option.get_lnames().front())) << command;
    }
  });
  EXPECT_GT(num_options, 50);
}

TEST_F(EveryOption, IsGivenOnce) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"run", model_, "--seed", "1", "--seed", "2"},
        {"bench", model_, "--batch", "1", "--batch", "2"},
        {"bench", model_, "--batch", "1,2,1"},
        {"bench", model_, "--batch", "1,,2"},
        {"compare", model_, "--formats", "int8,int8"},
        {"compare", model_, "--formats", "int8,"},
        {"run", model_, "--layout", "attention=tp1", "--layout", "attention=tp1"}}) {
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.status, kUsage) << words[2];
    EXPECT_EQ(outcome.out, "");
  }
}

}  // namespace
}  // namespace convene::cli
