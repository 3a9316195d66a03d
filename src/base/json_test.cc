#include "base/json.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace convene {
namespace {

TEST(ParseJson, ReadsADocument) {
  const auto document = ParseJson(R"({"a": [1, 2.5, "\"]["], "b": null})");
  ASSERT_TRUE(document);
  EXPECT_EQ(document->at("a").size(), 3u);
}

TEST(ParseJson, SaysWhereTheTextIsWrong) {
  const auto document = ParseJson("{\"a\": 1,\n oops}");
  ASSERT_FALSE(document);
  EXPECT_NE(document.error().message.find("line 2, column 2"), std::string::npos)
      << document.error().message;
}

TEST(ParseJson, RefusesInvalidUtf8AndKeepsTheMessagePrintable) {
  const auto document = ParseJson("{\"a\": \"\xff\xfe\"}");
  ASSERT_FALSE(document);
  for (const char c : document.error().message) EXPECT_TRUE(c >= 0x20 && c <= 0x7e);
}

TEST(ParseJson, RefusesNumbersOutOfRange) { EXPECT_FALSE(ParseJson("[1e999]")); }

TEST(ParseJson, RefusesEmptyText) { EXPECT_FALSE(ParseJson("")); }

TEST(ParseJson, RefusesWhatComesAfterAZeroByte) {
  using namespace std::string_view_literals;
  EXPECT_EQ(ParseJson("{}\0garbage"sv).error().message,
            "byte 2 is a zero, which JSON does not have");
}

TEST(ParseJson, BoundsTheNesting) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(ParseJson(nested(kMaxJsonDepth)));
  EXPECT_FALSE(ParseJson(nested(kMaxJsonDepth + 1)));
  EXPECT_FALSE(ParseJson(std::string(1 << 20, '[')));
  EXPECT_FALSE(ParseJson(std::string(1 << 20, '{')));
}

TEST(ParseJson, DoesNotCountBracketsInStrings) {
  EXPECT_TRUE(ParseJson("[\"" + std::string(1000, '[') + "\\\"" + std::string(1000, '{') + "\"]"));
}

TEST(ParseOrderedJson, KeepsTheOrderOfKeysAndRefusesEqualOnes) {
  const auto document = ParseOrderedJson(R"([{"b": 1, "a": {"b": 2}}, {"b": 3}])");
  ASSERT_TRUE(document);
  EXPECT_EQ(document->dump(), R"([{"b":1,"a":{"b":2}},{"b":3}])");
  for (const char* text : {R"({"b": 1, "a": 2, "b": 3})", R"([{"a": [{"b": 1, "\u0062": {}}]}])"}) {
    EXPECT_EQ(ParseOrderedJson(text).error().message, "an object has the key \"b\" twice");
  }
}

TEST(ParseOrderedJson, RefusesObjectsWithVeryManyKeys) {
  const auto with_keys = [](int count) {
    std::string text = "[{\"x\": 0";
    for (int i = 1; i < count; ++i) text += ",\"" + std::to_string(i) + "\": 0";
    return text + "}]";
  };
  EXPECT_TRUE(ParseOrderedJson(with_keys(kMaxOrderedKeys)));
  EXPECT_FALSE(ParseOrderedJson(with_keys(kMaxOrderedKeys + 1)));
  EXPECT_FALSE(ParseOrderedJson("{\"a\":"));
}

}  // namespace
}  // namespace convene
