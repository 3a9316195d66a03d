// Compares with what the Hugging Face tokenizers package makes of the fixtures that
// tools/make_tokenizer_fixtures.py writes below tests/golden/tokenizers.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/read_file.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_steps_json.h"

namespace convene::text {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

std::string GoldenDirectory() {
  return std::string(CONVENE_SOURCE_DIR) + "/tests/golden/tokenizers";
}

json ReadGolden(const std::string& path) {
  const auto contents = ReadFile(path, uint64_t{1} << 30);
  if (!contents) {
    ADD_FAILURE() << contents.error().message;
    return json::object();
  }
  auto document = ParseJson(*contents);
  if (!document) {
    ADD_FAILURE() << path << ": " << document.error().message;
    return json::object();
  }
  return *std::move(document);
}

// The text in ASCII, as a failure should show it.
std::string Shown(const std::string& text) {
  return json(text).dump(-1, ' ', /*ensure_ascii=*/true);
}

std::vector<std::string> FixtureNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(GoldenDirectory())) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class TokenizerGolden : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string directory = GoldenDirectory() + "/" + GetParam();
    auto tokenizer = Tokenizer::Load(directory);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    tokenizer_.emplace(*std::move(tokenizer));
    document_ = ReadGolden(directory + "/cases.json");
    ASSERT_TRUE(document_.contains("cases"));
    ASSERT_GT(document_["cases"].size(), 50u);
  }

  void ExpectIds(const std::string& text, const EncodeOptions& options, const Ids& expected) const {
    const auto ids = tokenizer_->Encode(text, options);
    ASSERT_TRUE(ids) << Shown(text) << ": " << ids.error().message;
    EXPECT_EQ(*ids, expected) << Shown(text) << ", special tokens "
                              << (options.add_special_tokens ? "added" : "not added")
                              << (options.parse_special ? "" : ", not parsed");
  }

  std::optional<Tokenizer> tokenizer_;
  json document_;
};

TEST_P(TokenizerGolden, EncodesAsThePackageDoes) {
  for (const json& item : document_["cases"]) {
    if (!item.contains("text")) continue;
    const std::string text = item["text"];
    const Ids ids = item["ids"];
    const Ids plain = item.value("ids_without_special", ids);
    ExpectIds(text, {.add_special_tokens = true}, ids);
    ExpectIds(text, {.add_special_tokens = false}, plain);
    ExpectIds(text, {.add_special_tokens = false, .parse_special = false},
              item.value("ids_unparsed", plain));
  }
}

TEST_P(TokenizerGolden, DecodesAsThePackageDoesAtOnceAndInAStream) {
  for (const json& item : document_["cases"]) {
    const Ids ids = item["ids"];
    const std::string all = item.contains("decoded") ? item["decoded"] : item["text"];
    const std::string plain = item.value("decoded_without_special", all);
    for (const bool skip_special : {false, true}) {
      const std::string& expected = skip_special ? plain : all;
      const auto text = tokenizer_->Decode(ids, skip_special);
      ASSERT_TRUE(text) << json(ids).dump() << ": " << text.error().message;
      EXPECT_EQ(Shown(*text), Shown(expected)) << json(ids).dump();

      StreamDecoder stream(*tokenizer_, skip_special);
      std::string streamed;
      for (const int32_t id : ids) {
        const auto part = stream.Push(id);
        ASSERT_TRUE(part);
        // Whole characters only: otherwise this JSON could not be written.
        EXPECT_NO_THROW(Shown(*part)) << json(ids).dump();
        streamed += *part;
      }
      const auto rest = stream.Finish();
      ASSERT_TRUE(rest);
      EXPECT_EQ(Shown(streamed + *rest), Shown(expected)) << json(ids).dump();
    }
  }
}

TEST_P(TokenizerGolden, KnowsTheBytesOfEveryToken) {
  // A word's bytes are those of its tokens, but for the space that some decoders strip at the
  // start.
  const std::string word = "Häuser 東京 🦜";
  const auto ids = tokenizer_->Encode("x " + word, {.add_special_tokens = false});
  ASSERT_TRUE(ids);
  std::string bytes;
  for (const int32_t id : *ids) {
    const auto token = tokenizer_->BytesOf(id);
    ASSERT_TRUE(token);
    bytes += *token;
  }
  const auto text = tokenizer_->Decode(*ids, false);
  ASSERT_TRUE(text);
  // Without byte fallback unknown characters are lost, and tokens are joined by spaces.
  if (GetParam() != "unknown") {
    EXPECT_TRUE(bytes.ends_with(*text)) << Shown(*text);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, TokenizerGolden, testing::ValuesIn(FixtureNames()),
                         [](const auto& test) { return test.param; });

// One of the components in components.json on each of its inputs.
void CheckNormalizer(const json& item) {
  const auto normalizer = ReadNormalizer(item["config"]);
  ASSERT_TRUE(normalizer) << normalizer.error().message;
  for (const json& pair : item["cases"]) {
    NormalizedText text{.text = pair[0]};
    ASSERT_TRUE(normalizer->Apply(&text));
    EXPECT_EQ(Shown(text.text), pair[1].dump(-1, ' ', true)) << item["config"] << pair[0];
  }
}

void CheckPreTokenizer(const json& item) {
  const auto pre_tokenizer = ReadPreTokenizer(item["config"]);
  ASSERT_TRUE(pre_tokenizer) << pre_tokenizer.error().message;
  for (const json& pair : item["cases"]) {
    Pieces pieces{.text = pair[0], .pieces = {}, .num_origin_bytes = 1};
    pieces.pieces.push_back({.begin = 0, .end = pieces.text.size()});
    ASSERT_TRUE(pre_tokenizer->Apply(&pieces));
    json cut = json::array();
    for (const Piece& piece : pieces.pieces) {
      cut.push_back(pieces.text.substr(piece.begin, piece.end - piece.begin));
    }
    EXPECT_EQ(cut.dump(-1, ' ', true), pair[1].dump(-1, ' ', true)) << item["config"] << pair[0];
  }
}

void CheckDecoder(const json& item) {
  const auto decoder = ReadDecoder(item["config"]);
  ASSERT_TRUE(decoder) << decoder.error().message;
  for (const json& pair : item["cases"]) {
    DecoderState state(*decoder);
    std::string text;
    for (const json& token : pair[0]) {
      ASSERT_TRUE(state.Push(token.get_ref<const std::string&>(), &text));
      EXPECT_NO_THROW(Shown(text)) << item["config"] << pair[0];
    }
    ASSERT_TRUE(state.Finish(&text));
    EXPECT_EQ(Shown(text), pair[1].dump(-1, ' ', true)) << item["config"] << pair[0];
  }
}

void CheckTokenizer(const json& item) {
  const auto tokenizer = Tokenizer::FromJson(item["config"].dump());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  for (const json& pair : item["cases"]) {
    const auto ids = tokenizer->Encode(pair[0].get_ref<const std::string&>());
    ASSERT_TRUE(ids) << ids.error().message;
    EXPECT_EQ(json(*ids), pair[1]) << item["config"] << pair[0];
    if (pair.size() == 2) continue;
    const auto unparsed =
        tokenizer->Encode(pair[0].get_ref<const std::string&>(), {.parse_special = false});
    ASSERT_TRUE(unparsed) << unparsed.error().message;
    EXPECT_EQ(json(*unparsed), pair[2]) << item["config"] << pair[0];
    const auto decoded = tokenizer->Decode(*ids, /*skip_special_tokens=*/true);
    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_EQ(Shown(*decoded), pair[3].dump(-1, ' ', true)) << item["config"] << pair[0];
  }
}

TEST(TokenizerComponents, WorkAsThePackagesDo) {
  const json items = ReadGolden(GoldenDirectory() + "/components.json");
  ASSERT_GT(items.size(), 100u);
  for (const json& item : items) {
    const std::string kind = item["kind"];
    if (kind == "normalizer") {
      CheckNormalizer(item);
    } else if (kind == "pre_tokenizer") {
      CheckPreTokenizer(item);
    } else if (kind == "decoder") {
      CheckDecoder(item);
    } else {
      ASSERT_EQ(kind, "tokenizer");
      CheckTokenizer(item);
    }
  }
}

}  // namespace
}  // namespace convene::text
