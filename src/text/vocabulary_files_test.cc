#include "text/vocabulary_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace convene::text {
namespace {

using Ids = std::vector<int32_t>;

// A directory with vocab.json and merges.txt of a few letters.
class VocabularyFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    directory_ = testing::TempDir() + "convene_" + info->name();
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    Write("vocab.json",
          R"({"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "1": 5, "é": 6, "Ã": 7, "©": 8})");
    Write("merges.txt", "#version: 0.2\r\na b\r\nĠ ab\r\n");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Write(const std::string& name, const std::string& contents) {
    std::ofstream(directory_ + "/" + name, std::ios::binary) << contents;
  }
  Tokenizer Load() {
    auto tokenizer = Tokenizer::Load(directory_);
    EXPECT_TRUE(tokenizer) << tokenizer.error().message;
    return *std::move(tokenizer);
  }
  std::string Refusal() {
    const auto tokenizer = Tokenizer::Load(directory_);
    EXPECT_FALSE(tokenizer);
    return tokenizer ? "" : tokenizer.error().message;
  }
  bool Refuses(std::string_view part) {
    const std::string message = Refusal();
    SCOPED_TRACE(message);
    return message.find(part) != std::string::npos;
  }

  std::string directory_;
};

TEST_F(VocabularyFiles, CutAndNormalizeAsTheirClassSays) {
  Write("tokenizer_config.json", R"({"tokenizer_class": "Qwen2TokenizerFast"})");
  const Tokenizer qwen2 = Load();
  EXPECT_EQ(*qwen2.Encode("ab ab11"), (Ids{3, 4, 5, 5}));
  EXPECT_EQ(*qwen2.Encode("e\u0301"), (Ids{7, 8})) << "composed, then spelt in bytes";
  EXPECT_EQ(*qwen2.Decode(Ids{4, 7, 8}, false), " ab\u00e9");
  EXPECT_EQ(qwen2.named_tokens().eos->text, "<|endoftext|>");
  EXPECT_EQ(qwen2.named_tokens().eos->id, 9) << "which was added";

  Write("tokenizer_config.json",
        R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true})");
  const Tokenizer gpt2 = Load();
  EXPECT_EQ(*gpt2.Encode("ab"), Ids{4});
  EXPECT_EQ(*gpt2.Encode("e\u0301"), Ids{2}) << "no normal form; letters outside are dropped";
}

TEST_F(VocabularyFiles, TakeTheClassFromTheModelWhereNothingElseSaysIt) {
  Write("config.json", R"({"model_type": "qwen2_moe"})");
  EXPECT_EQ(*Load().Encode("ab"), Ids{3});
  Write("config.json", R"({"model_type": "mixtral"})");
  EXPECT_TRUE(Refuses("tokenizer_class"));
}

TEST_F(VocabularyFiles, NameAClassThatIsNotKnown) {
  Write("tokenizer_config.json", R"({"tokenizer_class": "XLMTokenizer"})");
  EXPECT_TRUE(Refuses("\"XLMTokenizer\""));
}

TEST_F(VocabularyFiles, AddTokensInTheOrderOfTheirIds) {
  Write("tokenizer_config.json", R"({"tokenizer_class": "Qwen2Tokenizer", "unk_token": null,
      "eos_token": "<e>", "pad_token": "<e>", "bos_token": null, "additional_special_tokens": ["<x>"],
      "added_tokens_decoder": {"10": {"content": "<t>", "special": false},
                               "9": {"content": "<e>", "special": true}}})");
  const Tokenizer tokenizer = Load();
  EXPECT_EQ(*tokenizer.Encode("<e>a<t><x>"), (Ids{9, 0, 10, 11}));
  EXPECT_EQ(*tokenizer.Decode(Ids{9, 10, 11}, true), "<t>");
}

TEST_F(VocabularyFiles, TakeTokensFromOlderFiles) {
  Write("config.json", R"({"model_type": "qwen2"})");
  Write("added_tokens.json", R"({"<s>": 9, "<t>": 10})");
  Write("special_tokens_map.json", R"({"eos_token": {"content": "<s>"}, "pad_token": "<s>",
                                       "unk_token": "<s>", "additional_special_tokens": ["<u>"]})");
  const Tokenizer tokenizer = Load();
  EXPECT_EQ(*tokenizer.Encode("<s><t><u>"), (Ids{9, 10, 11}));
  EXPECT_TRUE(tokenizer.IsSpecial(9));
  EXPECT_FALSE(tokenizer.IsSpecial(10));
  EXPECT_TRUE(tokenizer.IsSpecial(11));
}

TEST_F(VocabularyFiles, PutBeginningAndEndAroundTheTextIfToldTo) {
  Write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": true,
                                     "add_eos_token": true, "bos_token": "<b>", "eos_token": "<e>"})");
  const Tokenizer tokenizer = Load();
  EXPECT_EQ(*tokenizer.Encode("ab"), (Ids{9, 3, 10}));
  EXPECT_EQ(*tokenizer.Encode("ab", {.add_special_tokens = false}), Ids{3});
}

TEST_F(VocabularyFiles, SayWhichLineOfMergesIsWrong) {
  Write("config.json", R"({"model_type": "qwen2"})");
  Write("merges.txt", "#version: 0.2\na b\nĠab\n");
  EXPECT_TRUE(Refuses("merges.txt, line 3"));
  Write("merges.txt", "a b\na z\n");
  EXPECT_TRUE(Refuses("\"z\""));
  Write("merges.txt", "a b\n\xff a\n");
  EXPECT_TRUE(Refuses("merges.txt"));
}

TEST_F(VocabularyFiles, AreBothNeeded) {
  std::filesystem::remove(directory_ + "/merges.txt");
  EXPECT_TRUE(Refuses("no tokenizer"));
  Write("tokenizer.model", "");
  EXPECT_TRUE(Refuses("tokenizer.model"));
}

}  // namespace
}  // namespace convene::text
