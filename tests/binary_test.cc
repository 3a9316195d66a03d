// The executable as a shell starts it, where the library's tests cannot stand in: standard input,
// and a conversation with the demo model.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/read_file.h"

namespace convene {
namespace {

using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
namespace fs = std::filesystem;

constexpr uint64_t kMaxBytes = 1 << 20;
const std::string kDemo = CONVENE_SOURCE_DIR "/models/demo";

struct Outcome {
  int status = 0;
  std::string out;
  std::string err;
};

class BinaryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) / fmt::format("binary_test_{}", getpid());
    fs::remove_all(directory_);  // of a killed run with the same number
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  // `arguments` as a shell reads them.
  Outcome Run(const std::string& arguments, const std::string& input) const {
    const auto path = [&](const char* name) { return (directory_ / name).string(); };
    std::ofstream(path("in"), std::ios::binary) << input;
    const int status = std::system(fmt::format("'{}' {} <'{}' >'{}' 2>'{}'", CONVENE_BINARY,
                                               arguments, path("in"), path("out"), path("err"))
                                       .c_str());
    return {.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            .out = *ReadFile(path("out"), kMaxBytes),
            .err = *ReadFile(path("err"), kMaxBytes)};
  }

  Outcome Chat(const std::string& input) const {
    return Run(fmt::format("chat '{}' --temperature 0 --max-tokens 8", kDemo), input);
  }

  // On a terminal where `input` is typed; `out` is all that it shows, its echo too.
  static Outcome RunOnTerminal(std::vector<std::string> words, std::string_view input) {
    words.insert(words.begin(), CONVENE_BINARY);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    int terminal = -1;
    const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
    CHECK(child >= 0, "no terminal to be had");
    if (child == 0) {
      execv(argv[0], argv.data());
      _exit(127);
    }
    EXPECT_EQ(write(terminal, input.data(), input.size()), std::ssize(input));
    Outcome outcome;
    char buffer[4096];
    for (;;) {
      const ssize_t num_read = read(terminal, buffer, sizeof buffer);
      if (num_read <= 0) break;  // an error once the child is gone
      outcome.out.append(buffer, static_cast<size_t>(num_read));
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    close(terminal);
    outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return outcome;
  }

  fs::path directory_;
};

TEST_F(BinaryTest, ChatAnswersEachLineAfterThoseBefore) {
  const Outcome one = Chat("Hello there\n");
  ASSERT_EQ(one.status, 0) << one.err;
  EXPECT_GT(one.out.size(), 8u);
  EXPECT_THAT(one.out, EndsWith("\n"));
  EXPECT_THAT(one.err, ContainsRegex("\\[8 tokens after a prompt of [0-9]+, 0 of them reused"));
  EXPECT_THAT(one.err, Not(HasSubstr("Ctrl-C"))) << "the hints are for terminals";

  const Outcome two = Chat("Hello there\nHello there\n");
  ASSERT_EQ(two.status, 0) << two.err;
  EXPECT_THAT(two.out, StartsWith(one.out));
  EXPECT_NE(two.out, one.out + one.out) << "the second turn does not see the first";
}

TEST_F(BinaryTest, ChatWritesWhatRunWritesAfterTheRenderedConversation) {
  // As the demo's template renders a turn.
  const Outcome continued = Run(
      fmt::format("run '{}' --temperature 0 --max-tokens 8 --prompt '\"Hello there\"\n\n'", kDemo),
      "");
  ASSERT_EQ(continued.status, 0) << continued.err;
  EXPECT_EQ(Chat("Hello there\n").out, continued.out);
}

TEST_F(BinaryTest, WhatTheModelAsksForInVainIsNotedUnlessQuiet) {
  fs::copy(kDemo, directory_ / "demo");
  std::ofstream(directory_ / "demo/generation_config.json") << R"({"num_beams": 4})";
  const std::string chat = fmt::format("chat '{}' --max-tokens 1", (directory_ / "demo").string());
  EXPECT_THAT(Run(chat, "").err, HasSubstr("generation_config.json also asks for num_beams=4"));
  EXPECT_EQ(Run(chat + " --quiet", "").err, "");
}

TEST_F(BinaryTest, ChatStartsOverAndLeavesWhenTold) {
  const Outcome one = Chat("Hello there\n");
  const Outcome both = Chat("Hello there\n/reset\nHello there\n/exit\nHello there\n");
  EXPECT_EQ(both.status, 0) << both.err;
  EXPECT_EQ(both.out, one.out + one.out);
}

TEST_F(BinaryTest, ChatSkipsEmptyTurnsAndHelpsWithoutTheModel) {
  const Outcome one = Chat("Hello there\n");
  const Outcome other = Chat("\n  \n\t\r\n/help\r\nHello there\r\n");
  EXPECT_EQ(other.status, 0) << other.err;
  EXPECT_EQ(other.out, one.out);
  EXPECT_THAT(other.err, HasSubstr("/reset "));
}

TEST_F(BinaryTest, ChatEndsWithItsInput) {
  EXPECT_EQ(Chat("Hello there").out, Chat("Hello there\n").out);
  const Outcome nothing = Chat("");
  EXPECT_EQ(nothing.status, 0) << nothing.err;
  EXPECT_EQ(nothing.out, "");
}

TEST_F(BinaryTest, ChatSaysWhichCommandsOfAFileItRefusesAndGoesOn) {
  const Outcome one = Chat("Hello there\n");
  const Outcome other = Chat("/rest\n/save\n/usr/bin\nHello there\n/reset now\n");
  EXPECT_EQ(other.status, 1);
  EXPECT_EQ(other.out, one.out);
  EXPECT_THAT(other.err, HasSubstr("there is no command \"/rest\"; did you mean /reset?"));
  EXPECT_THAT(other.err, HasSubstr("/save needs the name of a file"));
  EXPECT_THAT(other.err, HasSubstr("there is no command \"/usr/bin\""));
  EXPECT_THAT(other.err, HasSubstr("/reset stands alone"));
  EXPECT_THAT(other.err, HasSubstr("were refused"));
}

TEST_F(BinaryTest, ChatSavesAConversationOfAFile) {
  const std::string path = directory_ / "talk.json";
  const Outcome outcome = Chat("/system Be brief.\n\"\"\"\n//a\\\n/save " + path + "\n");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const nlohmann::json saved = *ParseJson(*ReadFile(path, kMaxBytes));
  const auto& messages = saved.at("messages");
  ASSERT_EQ(messages.size(), 5u);
  const nlohmann::json system = {{"role", "system"}, {"content", "Be brief."}};
  EXPECT_EQ(messages[0], system);
  EXPECT_EQ(messages[1].at("content"), "\"\"\"") << "every line is a turn as it is";
  EXPECT_EQ(messages[3].at("content"), "/a\\");
  EXPECT_EQ(outcome.out, messages[2].at("content").get<std::string>() + "\n" +
                             messages[4].at("content").get<std::string>() + "\n");
}

TEST_F(BinaryTest, QuietLeavesOnlyResultsAndErrorsBeforeAndBehindTheCommand) {
  const std::string options = fmt::format("'{}' --temperature 0 -n 8 -p 'The old house'", kDemo);
  const Outcome loud = Run("run " + options, "");
  ASSERT_EQ(loud.status, 0) << loud.err;
  EXPECT_THAT(loud.err, HasSubstr("generated:"));
  for (const char* command : {"--quiet run ", "run --quiet ", "-q run ", "run -q "}) {
    const Outcome quiet = Run(command + options, "");
    EXPECT_EQ(quiet.status, 0);
    EXPECT_EQ(quiet.out, loud.out);
    EXPECT_EQ(quiet.err, "");
  }
  EXPECT_THAT(Run("run --quiet /nowhere -p x", "").err, StartsWith("convene: "));
}

TEST_F(BinaryTest, BatchShowsAtATerminalHowFarItIs) {
  std::ofstream requests(directory_ / "requests.jsonl");
  for (int i = 0; i < 40; ++i) {
    requests << fmt::format(R"({{"custom_id":"{}","method":"POST","url":"/v1/completions",)"
                            R"("body":{{"model":"m","prompt":"Once","max_tokens":64}}}})"
                            "\n",
                            i);
  }
  requests.close();
  const Outcome outcome =
      RunOnTerminal({"batch", kDemo, "--input", directory_ / "requests.jsonl", "--output",
                     directory_ / "results.jsonl", "--max-batch", "2"},
                    "");
  EXPECT_EQ(outcome.status, 0) << outcome.out;
  EXPECT_THAT(outcome.out, ContainsRegex("batch: [0-9]+ of 40 requests done, [0-9.]+ tokens/s"));
  EXPECT_THAT(outcome.out, ContainsRegex("requests done, [0-9.]+ tokens/s, [0-9]+ s left"));
}

TEST_F(BinaryTest, ChatFailsOnATurnThatTheContextCannotHold) {
  std::string words;
  for (int i = 0; i < 2000; ++i) words += "word ";
  const Outcome outcome = Chat(words + "\nHello there\n");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("convene: the conversation would have"));
}

TEST_F(BinaryTest, RunReadsItsPromptFromStandardInputWithoutTheLastLineBreak) {
  const std::string options = fmt::format("run '{}' --temperature 0 --max-tokens 8", kDemo);
  const Outcome piped = Run(options, "The old house\n");
  ASSERT_EQ(piped.status, 0) << piped.err;
  EXPECT_EQ(piped.out, Run(options + " --prompt 'The old house'", "").out);
  const Outcome empty = Run(options, "\n");
  EXPECT_EQ(empty.status, 1);
  EXPECT_THAT(empty.err, HasSubstr("the prompt is empty"));
}

TEST_F(BinaryTest, RunSaysThatItReadsFromTheTerminalUntilOneCtrlD) {
  const Outcome outcome = RunOnTerminal({"run", kDemo, "--temperature", "0", "--max-tokens", "4"},
                                        "The old house\n\x04");
  EXPECT_EQ(outcome.status, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("reading from the terminal; Ctrl-D"));
  EXPECT_THAT(outcome.out, HasSubstr("generated: 4 tokens"));
}

TEST_F(BinaryTest, ChatOnATerminalGoesOnAfterATurnThatFails) {
  const Outcome outcome =
      RunOnTerminal({"chat", kDemo, "--temperature", "0", "--max-tokens", "4", "--context", "32"},
                    "a b c d e f g h i j k l m n o p q r s t u v w x y z 1 2 3 4 5 6\nHello\n\x04");
  EXPECT_EQ(outcome.status, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("Ctrl-C ends an answer"));
  EXPECT_THAT(outcome.out, HasSubstr("convene: the conversation would have"));
  EXPECT_THAT(outcome.out, HasSubstr("[4 tokens after a prompt of"));
}

// What a program knows of many tensors is a part of its budget, in one process as in the other.
TEST_F(BinaryTest, TheLeastBudgetThatInspectNamesIsEnoughForARun) {
  const std::string model = (directory_ / "model").string();
  std::ofstream(directory_ / "many.json")
      << R"({"model_type": "olmoe", "hidden_size": 64, "intermediate_size": 32,
             "num_attention_heads": 1, "num_key_value_heads": 1, "num_experts": 128,
             "num_experts_per_tok": 2, "num_hidden_layers": 48, "vocab_size": 4096,
             "max_position_embeddings": 512, "tie_word_embeddings": false})";
  const Outcome made =
      Run(fmt::format("synth '{}' --out '{}'", (directory_ / "many.json").string(), model), "");
  ASSERT_EQ(made.status, 0) << made.err;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy(fs::path(kDemo) / name, fs::path(model) / name);
  }
  const Outcome told = Run(fmt::format("inspect '{}' --memory-budget 40MiB", model), "");
  ASSERT_EQ(told.status, 0) << told.err;
  const std::string before = "the least budget is --memory-budget ";
  const size_t at = told.out.rfind(before);
  ASSERT_NE(at, std::string::npos) << told.out;
  const std::string least =
      told.out.substr(at + before.size(), told.out.find("MiB", at) - at - before.size());
  const Outcome ran =
      Run(fmt::format("run '{}' --prompt hello -n 2 --memory-budget {}MiB --page-dir '{}'", model,
                      least, (directory_ / "pages").string()),
          "");
  EXPECT_EQ(ran.status, 0) << ran.err;
}

}  // namespace
}  // namespace convene
