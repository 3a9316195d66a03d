// The scripts of `convene completion` in the shells they are for, with keys as a person types them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/terminal.h"

namespace convene {
namespace {

namespace fs = std::filesystem;

struct Shell {
  const char* name;
  std::vector<std::string> words;
  const char* begin;  // reads the script; then convene is a function that shows its arguments
};

const Shell kShells[] = {
    {"bash",
     {"--norc", "--noprofile", "-i"},
     "source <(convene completion bash); convene() { printf 'GOT<%s>\\n' \"$*\"; }; PS1='READY'"},
    {"zsh",
     {"-f", "-i"},
     "autoload -Uz compinit; compinit -D -u; source <(convene completion zsh); "
     "convene() { print -r -- \"GOT<$*>\" }; PS1=READY"},
    {"fish",
     {"--no-config", "-i"},
     "convene completion fish | source; function convene; echo \"GOT<$argv>\"; end; "
     "function fish_prompt; echo READY; end"},
};

std::string PathOf(const std::string& shell) {
  for (const char* directory : {"/bin/", "/usr/bin/", "/usr/local/bin/"}) {
    if (access((directory + shell).c_str(), X_OK) == 0) return directory + shell;
  }
  return "";
}

class CompletionTest : public ::testing::TestWithParam<Shell> {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) / fmt::format("completion_test_{}", getpid());
    fs::remove_all(directory_);
    fs::create_directories(directory_ / "a model");
    std::ofstream(directory_ / "afile.txt") << "";
  }
  void TearDown() override { fs::remove_all(directory_); }

  fs::path directory_;
};

TEST_P(CompletionTest, CompletesCommandsOptionsValuesAndFiles) {
  std::vector<std::string> words = GetParam().words;
  words.insert(words.begin(), PathOf(GetParam().name));
  if (words[0].empty()) GTEST_SKIP() << GetParam().name << " is not installed";
  const std::string path = fs::path(CONVENE_BINARY).parent_path().string() + ":/usr/bin:/bin";
  Terminal terminal(
      words, {{"PATH", path}, {"HOME", directory_}, {"TERM", "dumb"}, {"LC_ALL", "C.UTF-8"}});
  terminal.Type(fmt::format("cd '{}'\r", directory_.string()));
  terminal.Type(std::string(GetParam().begin) + "\r");
  const auto completes = [&](const std::string& typed, const std::string& expected) {
    terminal.Type("convene " + typed + "\r");
    EXPECT_TRUE(terminal.Shows("GOT<" + expected))
        << typed << " is not completed to " << expected << " in:\n"
        << terminal.shown();
  };
  const std::string sign = std::string(GetParam().name) == "zsh" ? "=" : " ";
  completes("detok\t", "detokenize");
  completes("run --prompt-f\tx", "run --prompt-file" + sign + "x");
  completes("run --wei\tint4", "run --weights" + sign + "int4");
  completes("run --weights bf\t", "run --weights bf16");
  completes("run --weights=bf\t", "run --weights=bf16");
  completes("bench --trac\tx", "bench --trace" + sign + "x");  // rare options, too
  completes("--qui\t run", "--quiet");
  completes("run --json af\t", "run --json afile.txt");
  completes("chat a\t", "chat a model");  // a directory: the file is passed over
  completes("report af\t", "report afile.txt");
  completes("completion f\t", "completion fish");
  terminal.Type("exit\r");
  EXPECT_TRUE(terminal.Ends());
}

INSTANTIATE_TEST_SUITE_P(Shells, CompletionTest, ::testing::ValuesIn(kShells),
                         [](const auto& shell) { return std::string(shell.param.name); });

}  // namespace
}  // namespace convene
