// tokenize and detokenize of many texts at once.
#include <algorithm>
#include <string>
#include <vector>

#include "cli/commands_test.h"

namespace convene::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using TokenizeTest = CommandsTest;

const std::string kDemo = CONVENE_SOURCE_DIR "/models/demo";

TEST_F(TokenizeTest, EachLineIsATextOfItsOwn) {
  Write("texts", "ab\n\n c\nd");
  const Outcome lines = Run({"tokenize", model_, "--lines", "--file", Path("texts")});
  EXPECT_EQ(lines.status, kSuccess) << lines.err;
  EXPECT_EQ(lines.out, "97 98\n\n32 99\n100\n");
  EXPECT_EQ(Run({"tokenize", model_, "--lines", "--text", "ab\nc"}).out, "97 98\n99\n");
  EXPECT_EQ(Run({"tokenize", model_, "--lines", "--text", ""}).out, "");
  EXPECT_EQ(Run({"detokenize", model_, "--lines", "--ids", "97 98\n\n32,99\n[100]"}).out,
            "ab\n\n c\nd\n");
}

TEST_F(TokenizeTest, EachLineOfJsonIsATextThatMayHaveLineBreaks) {
  Write("texts", "\"a\\nb\"\n\"\"\n\"c\"\n");
  const Outcome lines =
      Run({"tokenize", kDemo, "--json-lines", "--file", Path("texts"), "--json", Path("figures")});
  EXPECT_EQ(lines.status, kSuccess) << lines.err;
  std::string a_b = Run({"tokenize", kDemo, "--text", "a\nb"}).out;
  std::replace(a_b.begin(), a_b.end(), ' ', ',');
  a_b.pop_back();
  const std::string c = Run({"tokenize", kDemo, "--text", "c"}).out;
  EXPECT_EQ(lines.out, fmt::format("[{}]\n[]\n[{}]\n", a_b, c.substr(0, c.size() - 1)));
  const nlohmann::json figures = nlohmann::json::parse(Read("figures"));
  EXPECT_EQ(figures.at("ids").size(), 3u);
  EXPECT_EQ(figures.at("ids")[0], nlohmann::json::parse("[" + a_b + "]"));
  EXPECT_EQ(figures.at("count"), figures.at("ids")[0].size() + 1);
  Write("ids", lines.out);
  EXPECT_EQ(Run({"detokenize", kDemo, "--json-lines", "--file", Path("ids")}).out, Read("texts"));
}

TEST_F(TokenizeTest, LinesGiveWhatEachTextGivesAlone) {
  const std::vector<std::string> texts = {"Call me Ishmael.",  " two  spaces ",   "",
                                          "<|endoftext|>x",    "héllo 日本語 🐋", "tab\there\r",
                                          "\"quoted\" \\ back"};
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--plain"}, {"--no-special"}}) {
    const auto run = [&](std::vector<std::string> words) {
      words.insert(words.end(), flags.begin(), flags.end());
      const Outcome outcome = Run(words);
      EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
      return outcome.out;
    };
    std::string lines;
    std::string json_lines;
    std::string alone;
    for (const std::string& text : texts) {
      lines += text + "\n";
      json_lines += nlohmann::json(text).dump() + "\n";
      alone += run({"tokenize", kDemo, "--text", text});
    }
    Write("lines", lines);
    Write("json_lines", json_lines);
    const std::string ids = run({"tokenize", kDemo, "--lines", "--file", Path("lines")});
    EXPECT_EQ(ids, alone);
    Write("ids", ids);
    EXPECT_EQ(Run({"detokenize", kDemo, "--lines", "--file", Path("ids")}).out, lines);
    const std::string arrays =
        run({"tokenize", kDemo, "--json-lines", "--file", Path("json_lines")});
    Write("arrays", arrays);
    const std::string back =
        Run({"detokenize", kDemo, "--json-lines", "--file", Path("arrays")}).out;
    EXPECT_EQ(nlohmann::json::parse(back.substr(0, back.find('\n'))), texts[0]);
    EXPECT_EQ(back, json_lines);
  }
}

TEST_F(TokenizeTest, AWrongLineIsNamed) {
  const auto error = [](const Outcome& outcome) {
    EXPECT_EQ(outcome.status, kFailure);
    return outcome.err;
  };
  Write("texts", "\"a\"\n{\"text\": \"b\"}\n");
  EXPECT_THAT(error(Run({"tokenize", model_, "--json-lines", "--file", Path("texts")})),
              HasSubstr("line 2: holds no JSON string"));
  Write("texts", "\"a\"\n\"b\"\n\"c\n");
  EXPECT_THAT(error(Run({"tokenize", model_, "--json-lines", "--file", Path("texts")})),
              HasSubstr("line 3: "));
  EXPECT_THAT(error(Run({"detokenize", model_, "--lines", "--ids", "97\n98 x"})),
              HasSubstr("line 2: \"x\" is not a token id"));
  const std::string a_b = Run({"tokenize", kDemo, "--text", "a\nb"}).out;
  EXPECT_THAT(error(Run({"detokenize", kDemo, "--lines", "--ids", "97\n" + a_b})),
              HasSubstr("line 2: its text has line breaks, and would be several lines; use "
                        "--json-lines"));
  EXPECT_THAT(error(Run({"detokenize", model_, "--lines", "--ids", "97\n98\n4000"})),
              HasSubstr("line 3: "));
}

TEST_F(TokenizeTest, LinesExcludeWhatHasLinesOfItsOwn) {
  for (const char* lines : {"--lines", "--json-lines"}) {
    EXPECT_EQ(Run({"tokenize", model_, "--text", "a", "--pieces", lines}).status, kUsage);
  }
  EXPECT_EQ(Run({"detokenize", model_, "--ids", "1", "--lines", "--json-lines"}).status, kUsage);
}

}  // namespace
}  // namespace convene::cli
