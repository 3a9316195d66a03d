#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/read_file.h"
#include "checkpoint/checkpoint.h"
#include "cli/command_line.h"
#include "cli/commands.h"

namespace convene::cli {
namespace {

namespace fs = std::filesystem;

constexpr CommandEntry kCommands[] = {{"synth", "", "", MakeSynth},
                                      {"inspect", "", "", MakeInspect}};

int RunWords(const std::vector<std::string>& words) {
  std::vector<const char*> argv = {"convene"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return RunCommandLine(static_cast<int>(argv.size()), argv.data(), kCommands);
}

TEST(SynthCommand, WritesACheckpointThatInspectAccepts) {
  const fs::path root = fs::path(testing::TempDir()) / fmt::format("synth_{}", getpid());
  fs::remove_all(root);  // of a killed run with the same number
  fs::create_directories(root);
  const std::string config = root / "source.json";
  std::ofstream(config) << R"({"model_type": "qwen3_moe", "hidden_size": 32, "vocab_size": 40,
      "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 5, "head_dim": 16,
      "num_experts_per_tok": 2, "moe_intermediate_size": 20, "num_hidden_layers": 9})";
  const std::string out = root / "model";
  const std::string figures = root / "figures.json";

  EXPECT_EQ(RunWords({"synth", config, "--out", out, "--layers", "2", "--seed", "3", "--threads",
                      "1", "--json", figures}),
            kSuccess);
  const auto checkpoint = checkpoint::Checkpoint::Open(out);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->spec().num_layers(), 2);
  EXPECT_EQ(ParseJson(*ReadFile(figures, 1 << 20))->at("bytes"), checkpoint->size_bytes());

  EXPECT_EQ(RunWords({"inspect", out, "--context", "64", "--json", figures}), kSuccess);
  EXPECT_EQ(ParseJson(*ReadFile(figures, 1 << 20))->at("stored").at("bytes"),
            checkpoint->size_bytes());

  EXPECT_EQ(RunWords({"synth", config, "--out", out}), kUsage);  // holds a model
  EXPECT_EQ(RunWords({"synth", config, "--out", root / "other", "--layers", "0"}), kUsage);
  EXPECT_EQ(RunWords({"inspect", out, "--context", "1"}), kUsage);
  EXPECT_EQ(RunWords({"synth", config}), kUsage);
  fs::remove_all(root);
}

}  // namespace
}  // namespace convene::cli
