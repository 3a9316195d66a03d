// Weights that are NaN or infinite, as a user meets them: no command takes them for an answer.
#include <fmt/format.h>

#include <cstring>
#include <map>
#include <span>
#include <sstream>
#include <utility>

#include "checkpoint/safetensors.h"
#include "cli/commands_test.h"
#include "kernels/packed_matrix.h"

namespace convene::cli {
namespace {

using ::testing::HasSubstr;

class NotFiniteTest : public CommandsTest {
 protected:
  // Overwrites bytes of a tensor in a safetensors file.
  void Poke(const std::string& file, const std::string& name, uint64_t at,
            const std::string& bytes) const {
    std::string content = Read(file);
    const auto tensors =
        checkpoint::ParseSafetensors(std::as_bytes(std::span(content)), content.size());
    ASSERT_TRUE(tensors);
    for (const checkpoint::StoredTensor& tensor : *tensors) {
      if (tensor.name == name) content.replace(tensor.offset + at, bytes.size(), bytes);
    }
    Write(file, content);
  }

  // A directory with weights packed in int8, which are mapped and not looked at.
  std::string Pack() {
    const Outcome packed = Run({"quantize", model_, "--out", Path("packed"), "--threads", "1"});
    EXPECT_EQ(packed.status, kSuccess) << packed.err;
    return Path("packed");
  }

  // The embedding of 'Q' is NaN; all other tokens are as they were.
  void PoisonEmbedding() const {
    const kernels::PackedMatrix embedding{
        .format = kernels::WeightFormat::kBf16, .rows = 128, .cols = kHidden};
    const auto before_panel =
        static_cast<uint64_t>(embedding.panel('Q' / 64).data - embedding.panel(0).data);
    Poke("packed/convene.safetensors", "embedding", before_panel + 'Q' % 64 * 4, "\xff\x7f");
  }

  static std::string Line(const std::string& prompt) {
    return fmt::format(
        R"({{"custom_id":"{0}","method":"POST","url":"/v1/completions",)"
        R"("body":{{"model":"m","prompt":"{0}","max_tokens":12,"ignore_eos":true}}}})"
        "\n",
        prompt);
  }

  static constexpr int kHidden = 48;
};

TEST_F(NotFiniteTest, EveryCommandRefusesACheckpointByTheNameOfItsTensor) {
  const std::string name = "model.layers.1.mlp.experts.3.down_proj.weight";
  std::string content = Read("model/model.safetensors");
  ASSERT_NE(content.find(name), std::string::npos);
  // Of four bytes whatever the type: all ones.
  Poke("model/model.safetensors", name, 0, "\xff\xff\xff\xff");
  Write("ids.txt", "1 2 3");
  Write("text.txt", "some text to score");
  Write("in.jsonl", Line("a"));
  const std::vector<std::vector<std::string>> lines = {
      {"run", model_, "--prompt", "a"},
      {"logits", model_, "--tokens", Path("ids.txt"), "--out", Path("l.npy")},
      {"perplexity", model_, "--text", Path("text.txt")},
      {"compare", model_, "--text", Path("text.txt"), "--formats", "int8"},
      {"compare", model_, "--weight-errors"},
      {"batch", model_, "--input", Path("in.jsonl"), "--output", Path("out.jsonl")},
      {"quantize", model_, "--out", Path("refused")},
  };
  for (const std::vector<std::string>& line : lines) {
    const Outcome outcome = Run(line);
    EXPECT_EQ(outcome.status, kFailure) << line[0];
    EXPECT_THAT(outcome.err, HasSubstr(name)) << line[0];
    EXPECT_EQ(outcome.out, "");
  }
  EXPECT_FALSE(fs::exists(Path("refused")));
}

TEST_F(NotFiniteTest, OnlyTheRequestsOfABatchThatMeetItFail) {
  const std::string packed = Pack();
  const std::vector<std::string> prompts = {"aaaa", "acc", "Qad", "dd", "eeeeeee", "foQ", "gg"};
  std::string input;
  for (const std::string& prompt : prompts) input += Line(prompt);
  Write("in.jsonl", input);
  const auto results = [&](const std::string& output) {
    Run({"batch", packed, "--input", Path("in.jsonl"), "--output", Path(output)});
    std::map<std::string, nlohmann::json> by_id;
    std::istringstream lines(Read(output));
    for (std::string line; std::getline(lines, line);) {
      nlohmann::json json = nlohmann::json::parse(line);
      const std::string id = json["custom_id"];
      by_id[id] = std::move(json);
    }
    return by_id;
  };
  const auto before = results("before.jsonl");
  for (const auto& [id, result] : before) ASSERT_TRUE(result["error"].is_null()) << result;
  PoisonEmbedding();
  const auto after = results("after.jsonl");
  ASSERT_EQ(after.size(), prompts.size());
  int num_failed = 0;
  for (const std::string& prompt : prompts) {
    const auto text_of = [](const nlohmann::json& result) {
      return result["response"]["body"]["choices"][0]["text"].get<std::string>();
    };
    // What the model is given: the prompt, and the answer but for its last token.
    const std::string text = text_of(before.at(prompt));
    const bool meets = (prompt + text.substr(0, text.size() - 1)).find('Q') != std::string::npos;
    const nlohmann::json& result = after.at(prompt);
    if (meets) {
      ++num_failed;
      EXPECT_TRUE(result["response"].is_null()) << result;
      EXPECT_THAT(result["error"]["message"].get<std::string>(),
                  HasSubstr("NaN or infinite, so that no token can be chosen: the packed weights "
                            "embedding (row 81) are"));
    } else {
      ASSERT_TRUE(result["error"].is_null()) << result << " was " << text;
      EXPECT_EQ(text_of(result), text) << prompt;
    }
  }
  EXPECT_GE(num_failed, 2);
  EXPECT_LT(num_failed, std::ssize(prompts));
}

TEST_F(NotFiniteTest, WhatIsMetWhileAModelRunsIsAnErrorOfEveryCommand) {
  const std::string packed = Pack();
  PoisonEmbedding();
  Write("ids.txt", fmt::format("1 2 {} 3", int{'Q'}));
  Write("text.txt", "a text with Q in it");
  for (const std::vector<std::string>& line : std::vector<std::vector<std::string>>{
           {"run", packed, "--prompt", "aQ"},
           {"logits", packed, "--tokens", Path("ids.txt"), "--out", Path("l.npy")},
           {"perplexity", packed, "--text", Path("text.txt")}}) {
    const Outcome outcome = Run(line);
    EXPECT_EQ(outcome.status, kFailure) << line[0];
    EXPECT_THAT(outcome.err, HasSubstr("embedding (row 81)")) << line[0];
  }
}

// Activations that are int8 must not make numbers of it.
TEST_F(NotFiniteTest, AScaleOfAPackedMatrixIsNamed) {
  const std::string packed = Pack();
  for (const auto& [name, rows] :
       {std::pair{"layers.0.qkv", 64}, {"layers.1.output", kHidden}, {"head", 64}}) {
    const kernels::PackedPanel panel{
        .format = kernels::WeightFormat::kInt8, .width = rows, .depth = kHidden};
    const std::string healthy = Read("packed/convene.safetensors");
    Poke("packed/convene.safetensors", name, panel.values_bytes() + 4 * 7,
         std::string("\0\0\xc0\x7f", 4));
    const Outcome outcome = Run({"run", packed, "--prompt", "abc"});
    EXPECT_EQ(outcome.status, kFailure) << name;
    EXPECT_THAT(outcome.err, HasSubstr(fmt::format("{} (row 7)", name)));
    Write("packed/convene.safetensors", healthy);
  }
}

}  // namespace
}  // namespace convene::cli
