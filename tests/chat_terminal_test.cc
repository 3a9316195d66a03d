// `convene chat` as a person meets it: on a terminal, with editing, pastes, history and signals.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/eventually_test.h"
#include "base/json.h"
#include "base/read_file.h"
#include "tests/terminal.h"

namespace convene {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
namespace fs = std::filesystem;

constexpr uint64_t kMaxBytes = 1 << 20;
const std::string kDemo = CONVENE_SOURCE_DIR "/models/demo";
constexpr const char* kCtrlC = "\x03";
constexpr const char* kCtrlD = "\x04";
constexpr const char* kUp = "\x1b[A";
constexpr const char* kLeft = "\x1b[D";
constexpr const char* kAltEnter = "\x1b\r";

std::string Pasted(std::string_view text) { return fmt::format("\x1b[200~{}\x1b[201~", text); }

class ChatTerminalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) / fmt::format("chat_terminal_test_{}", getpid());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ / name; }

  // Short answers, the same each time.
  Terminal Start(const std::vector<std::string>& options = {"--temperature", "0", "-n", "4"},
                 const std::string& locale = "C.UTF-8") const {
    std::vector<std::string> words = {CONVENE_BINARY, "chat", kDemo};
    words.insert(words.end(), options.begin(), options.end());
    return Terminal(words, {{"CONVENE_CACHE_DIR", directory_},
                            {"TERM", "xterm-256color"},
                            {"LC_ALL", locale},
                            {"HOME", directory_}});
  }

  // Enters `keys` and waits for the answer's end.
  static void Say(Terminal& terminal, const std::string& keys) {
    terminal.Type(keys + "\r");
    ASSERT_TRUE(terminal.Shows("tokens after a prompt of")) << terminal.shown();
  }

  static void Leave(Terminal& terminal) {
    terminal.Type(kCtrlD);
    ASSERT_TRUE(terminal.Ends()) << terminal.shown();
    EXPECT_EQ(terminal.status(), 0) << terminal.shown();
  }

  // What was said so far, as /save writes it: of each message its content.
  std::vector<std::string> Saved(Terminal& terminal, const std::string& role = "user") const {
    const std::string path = Path("saved.json");
    terminal.Type(fmt::format("/save {}\r", path));
    EXPECT_TRUE(terminal.Shows("messages saved in")) << terminal.shown();
    const nlohmann::json saved = *ParseJson(*ReadFile(path, kMaxBytes));
    std::vector<std::string> contents;
    for (const nlohmann::json& message : saved.at("messages")) {
      if (message.at("role") == role) contents.push_back(message.at("content"));
    }
    return contents;
  }

  std::vector<std::string> History() const {
    std::vector<std::string> turns;
    std::istringstream lines(*ReadFile(Path("chat_history"), kMaxBytes));
    for (std::string line; std::getline(lines, line);) turns.push_back(*ParseJson(line));
    return turns;
  }

  fs::path directory_;
};

TEST_F(ChatTerminalTest, APasteOfLinesIsOneTurnThatCanBeChangedBeforeItIsSent) {
  Terminal terminal = Start();
  ASSERT_TRUE(terminal.Shows("> "));
  terminal.Type(Pasted("one\rtwo\r\nthree\n") + "!" + kUp + "?");
  Say(terminal, "");
  EXPECT_THAT(Saved(terminal), ElementsAre("one\ntwo?\nthree!"));
  Leave(terminal);
}

TEST_F(ChatTerminalTest, APasteHasNoLimitThatATerminalSets) {
  std::string words;
  while (words.size() < 20000) words += fmt::format("word{} ", words.size());
  Terminal terminal = Start();
  ASSERT_TRUE(terminal.Shows("> "));
  // Marked as a paste; as if typed; and while the terminal is not even asked.
  terminal.Type(Pasted(words + "end one") + "\r");
  ASSERT_TRUE(terminal.Shows("the conversation would have")) << terminal.shown();
  terminal.Type(words + "end two\r" + words + "end three\r");
  ASSERT_TRUE(terminal.Shows("the conversation would have")) << terminal.shown();
  ASSERT_TRUE(terminal.Shows("the conversation would have")) << terminal.shown();
  EXPECT_THAT(History(), ElementsAre(words + "end one", words + "end two", words + "end three"));
  Leave(terminal);
}

TEST_F(ChatTerminalTest, WhatIsTypedBeforeThePromptWaitsForIt) {
  const std::string line(6000, 'x');
  Terminal terminal = Start();
  // While the model loads.
  ASSERT_TRUE(Eventually([&] { return (terminal.modes().c_lflag & ICANON) == 0; }));
  terminal.Type("first\rsecond\r" + line + "\r/quit\r");
  ASSERT_TRUE(terminal.Ends());
  EXPECT_EQ(terminal.status(), 0);
  EXPECT_THAT(History(), ElementsAre("first", "second", line, "/quit"));
}

TEST_F(ChatTerminalTest, WhatWasTypedIsThereInTheNextSession) {
  {
    Terminal terminal = Start();
    ASSERT_TRUE(terminal.Shows("> "));
    Say(terminal, "Call me Ishmael");
    Say(terminal, Pasted("two\rlines"));
    Leave(terminal);
  }
  Terminal terminal = Start();
  ASSERT_TRUE(terminal.Shows("> "));
  Say(terminal, kUp);
  Say(terminal, std::string(kUp) + kUp + kUp);  // through both lines
  EXPECT_THAT(Saved(terminal), ElementsAre("two\nlines", "Call me Ishmael"));
  Leave(terminal);
}

TEST_F(ChatTerminalTest, LongTurnsOfTheHistoryComeBackWhole) {
  const std::string line(5000, 'y');
  {
    Terminal terminal = Start();
    ASSERT_TRUE(terminal.Shows("> "));
    terminal.Type(line + "\r");
    ASSERT_TRUE(terminal.Shows("the conversation would have")) << terminal.shown();
    Leave(terminal);
  }
  Terminal terminal = Start();
  ASSERT_TRUE(terminal.Shows("> "));
  terminal.Type(std::string(kUp) + "z\r");
  ASSERT_TRUE(terminal.Shows("the conversation would have")) << terminal.shown();
  EXPECT_THAT(History(), ElementsAre(line, line + "z"));
  Leave(terminal);
}

TEST_F(ChatTerminalTest, CtrlCAtThePromptClearsTheLineAndKeepsTheConversation) {
  Terminal terminal = Start();
  ASSERT_TRUE(terminal.Shows("> "));
  Say(terminal, "Hello");
  for (const std::string& unwanted : {std::string("nonsense"), std::string(), Pasted("a\rb"),
                                      std::string("\"\"\"\rblock\r"), std::string("one\\\r")}) {
    terminal.Type(unwanted + kCtrlC);
  }
  Say(terminal, "again");
  EXPECT_THAT(Saved(terminal), ElementsAre("Hello", "again"));
  Leave(terminal);
}

TEST_F(ChatTerminalTest, CtrlCEndsAnAnswerAndKeepsTheConversation) {
  Terminal terminal = Start({"--temperature", "0", "--ignore-eos"});
  ASSERT_TRUE(terminal.Shows("> "));
  terminal.Type("Hello\r");
  ASSERT_TRUE(terminal.Shows("Hello\r\n")) << terminal.shown();
  ASSERT_TRUE(terminal.Shows(" ")) << terminal.shown();  // after the first word
  terminal.Type(kCtrlC);
  for (int i = 0; i < 20; ++i) {  // an impatient person, in the same step
    terminal.Signal(SIGINT);
    usleep(100);
  }
  ASSERT_TRUE(terminal.Shows("ended by Ctrl-C]")) << terminal.shown();
  ASSERT_TRUE(terminal.Shows("> "));
  EXPECT_THAT(Saved(terminal), ElementsAre("Hello"));
  EXPECT_THAT(Saved(terminal, "assistant"), SizeIs(1));
  Leave(terminal);
}

TEST_F(ChatTerminalTest, LinesGoOnAfterABackslashAltEnterAndWithinABlock) {
  Terminal terminal = Start();
  ASSERT_TRUE(terminal.Shows("> "));
  Say(terminal, std::string("a") + kAltEnter + "b");
  Say(terminal, "c\\\rd\\\re");
  Say(terminal, "\"\"\"\rf\r\r g \r\"\"\"");
  Say(terminal, "\"\"\"h\ri\"\"\"");
  Say(terminal, "\"\"\"j\"\"\"");
  EXPECT_THAT(Saved(terminal), ElementsAre("a\nb", "c\nd\ne", "f\n\n g ", "h\ni", "j"));
  Leave(terminal);
}

TEST_F(ChatTerminalTest, CharactersOfManyBytesAreEditedAsOne) {
  for (const char* locale : {"C.UTF-8", "C", "POSIX"}) {
    Terminal terminal = Start({"--temperature", "0", "-n", "4"}, locale);
    ASSERT_TRUE(terminal.Shows("> "));
    Say(terminal, std::string("héß日本\x7f語") + kLeft + kLeft + "\x7f" + "ü");
    EXPECT_THAT(Saved(terminal), ElementsAre("héü日語")) << locale;
    fs::remove(Path("saved.json"));
    Leave(terminal);
  }
}

TEST_F(ChatTerminalTest, KeysWithoutAMeaningLeaveNothingInTheLine) {
  Terminal terminal = Start();
  ASSERT_TRUE(terminal.Shows("> "));
  const std::string keys =
      "\x1b[2~\x1b[5~\x1b[6~\x1b[15~\x1b[24~\x1b[3~\x1b[1;5C\x1b[1;5D\x1b[H\x1b[F";
  Say(terminal, "a" + keys + "b" + keys);
  EXPECT_THAT(Saved(terminal), ElementsAre("ab"));
  Leave(terminal);
}

TEST_F(ChatTerminalTest, AFullContextIsExplainedAndTheConversationSurvives) {
  Terminal terminal = Start({"--temperature", "0", "-n", "4", "--context", "64"});
  ASSERT_TRUE(terminal.Shows("> "));
  Say(terminal, "Hello");
  std::string long_turn;
  for (int i = 0; i < 40; ++i) long_turn += fmt::format("{} words, ", i);
  terminal.Type(long_turn + "\r");
  ASSERT_TRUE(terminal.Shows("the context of 64 must hold them")) << terminal.shown();
  ASSERT_TRUE(terminal.Shows("/reset")) << terminal.shown();
  ASSERT_TRUE(terminal.Shows("start with --context 1024 (")) << terminal.shown();
  Say(terminal, "Go on");
  EXPECT_THAT(Saved(terminal), ElementsAre("Hello", "Go on"));
  Leave(terminal);
}

TEST_F(ChatTerminalTest, AnAnswerThatFillsTheContextSaysSo) {
  Terminal terminal = Start({"--temperature", "0", "--ignore-eos", "--context", "64"});
  ASSERT_TRUE(terminal.Shows("> "));
  Say(terminal, "Hello");
  ASSERT_TRUE(terminal.Shows("the context of 64 tokens is full")) << terminal.shown();
  Leave(terminal);
}

TEST_F(ChatTerminalTest, CommandsThatDoNotExistAreNotSentToTheModel) {
  Terminal terminal = Start();
  ASSERT_TRUE(terminal.Shows("> "));
  terminal.Type("/rest\r");
  ASSERT_TRUE(terminal.Shows("there is no command \"/rest\"; did you mean /reset?"));
  Say(terminal, "//rest");
  EXPECT_THAT(Saved(terminal), ElementsAre("/rest"));
  terminal.Type("/help\r");
  for (const char* command : {"/reset", "/regen", "/system", "/save", "/quit"}) {
    EXPECT_TRUE(terminal.Shows(command)) << command;
  }
  terminal.Type("/quit\r");
  ASSERT_TRUE(terminal.Ends());
  EXPECT_EQ(terminal.status(), 0);
}

TEST_F(ChatTerminalTest, QuietLeavesThePromptAndWhatIsAskedFor) {
  Terminal terminal = Start({"--quiet"});
  ASSERT_TRUE(terminal.Shows("> "));
  EXPECT_THAT(terminal.shown(), Not(HasSubstr("Ctrl-C")));
  terminal.Type("/help\r");
  EXPECT_TRUE(terminal.Shows("/save FILE")) << terminal.shown();
  Leave(terminal);
}

TEST_F(ChatTerminalTest, RegenAnswersTheLastTurnWithAnotherSeed) {
  std::vector<std::string> answers;
  for (const char* seed : {"1", "2"}) {
    Terminal terminal = Start({"--temperature", "1", "-n", "12", "--seed", seed, "--ignore-eos"});
    ASSERT_TRUE(terminal.Shows("> "));
    terminal.Type("/regen\r");
    ASSERT_TRUE(terminal.Shows("there is no turn yet")) << terminal.shown();
    Say(terminal, "Hello");
    answers.push_back(Saved(terminal, "assistant").at(0));
    Say(terminal, "/regen");
    const std::vector<std::string> again = Saved(terminal, "assistant");
    ASSERT_THAT(again, SizeIs(1));
    answers.push_back(again[0]);
    EXPECT_THAT(Saved(terminal), ElementsAre("Hello"));
    fs::remove(Path("saved.json"));
    Leave(terminal);
  }
  EXPECT_NE(answers[0], answers[1]);
  EXPECT_EQ(answers[1], answers[2]) << "of seed 1 the second, of seed 2 the first";
}

TEST_F(ChatTerminalTest, TheSystemTextCanBeShownChangedAndRemoved) {
  Terminal terminal = Start();
  ASSERT_TRUE(terminal.Shows("> "));
  terminal.Type("/system\r");
  ASSERT_TRUE(terminal.Shows("told nothing"));
  terminal.Type("/system Be brief.\r/system\r");
  ASSERT_TRUE(terminal.Shows("Be brief.\r\n"));
  Say(terminal, "Hello");
  EXPECT_THAT(Saved(terminal, "system"), ElementsAre("Be brief."));
  terminal.Type("/system -\r");
  EXPECT_THAT(Saved(terminal, "system"), ElementsAre());
  EXPECT_THAT(Saved(terminal), ElementsAre("Hello"));
  Leave(terminal);
}

TEST_F(ChatTerminalTest, SaveLosesNoFileOfOthers) {
  std::ofstream(Path("there.json")) << "mine";
  Terminal terminal = Start();
  ASSERT_TRUE(terminal.Shows("> "));
  terminal.Type("/save x.json\r");
  ASSERT_TRUE(terminal.Shows("nothing was said yet"));
  Say(terminal, "Hello");
  terminal.Type(fmt::format("/save {}\r", Path("there.json")));
  ASSERT_TRUE(terminal.Shows("is there already"));
  EXPECT_EQ(*ReadFile(Path("there.json"), kMaxBytes), "mine");
  terminal.Type("/save ~/home.json\r");
  ASSERT_TRUE(terminal.Shows("messages saved in"));
  EXPECT_TRUE(fs::exists(Path("home.json")));
  terminal.Type(fmt::format("/save {}/no/such.json\r", directory_.string()));
  ASSERT_TRUE(terminal.Shows("cannot write"));
  Leave(terminal);
}

TEST_F(ChatTerminalTest, TheTerminalIsAsBeforeOnEveryWayOut) {
  const auto lines_of = [](const termios& modes) {
    return std::vector<tcflag_t>{modes.c_iflag, modes.c_oflag, modes.c_cflag, modes.c_lflag};
  };
  for (const std::string_view name : {"Ctrl-D", "TERM at the prompt", "HUP at the prompt",
                                      "QUIT during an answer", "TERM during an answer"}) {
    Terminal terminal = Start({"--temperature", "0", "--ignore-eos"});
    const std::vector<tcflag_t> before = lines_of(terminal.modes());
    ASSERT_TRUE(terminal.Shows("> ")) << name;
    if (name.ends_with("answer")) {
      terminal.Type("Hello\r");
      ASSERT_TRUE(terminal.Shows("Hello\r\n")) << terminal.shown();
      ASSERT_TRUE(terminal.Shows(" ")) << terminal.shown();
    }
    EXPECT_NE(lines_of(terminal.modes()), before) << name;
    const int signal = name.starts_with("TERM")  ? SIGTERM
                       : name.starts_with("HUP") ? SIGHUP
                                                 : SIGQUIT;
    if (name == "Ctrl-D") {
      terminal.Type(kCtrlD);
    } else {
      terminal.Signal(signal);
    }
    ASSERT_TRUE(terminal.Ends()) << name;
    EXPECT_EQ(terminal.status(), name == "Ctrl-D" ? 0 : 128 + signal) << name;
    EXPECT_EQ(lines_of(terminal.modes()), before) << name;
    EXPECT_GT(terminal.shown().rfind("\x1b[?2004l"), terminal.shown().rfind("\x1b[?2004h")) << name;
  }
}

}  // namespace
}  // namespace convene
