#include "model/config_fields.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace convene::model {
namespace {

using nlohmann::json;

struct Fixture {
  explicit Fixture(const char* text) : object(json::parse(text)), fields(object, first_error) {}

  json object;
  std::optional<Error> first_error;
  ConfigFields fields;
};

TEST(ConfigFields, AbsentAndNullFieldsHaveTheirFallback) {
  Fixture config(R"({"nothing": null})");
  for (const char* name : {"nothing", "absent"}) {
    EXPECT_EQ(config.fields.Integer(name, 7, {1, 9}), 7);
    EXPECT_EQ(config.fields.Number(name, 0.5, {0, 1}), 0.5);
    EXPECT_TRUE(config.fields.Boolean(name, true));
    EXPECT_EQ(config.fields.Text(name, "silu"), "silu");
    EXPECT_FALSE(config.fields.OptionalInteger(name, {1, 9}));
    EXPECT_TRUE(config.fields.Integers(name, {0, 9}).empty());
    EXPECT_FALSE(config.fields.Has(name));
  }
  EXPECT_TRUE(config.fields.IsNull("nothing"));
  EXPECT_FALSE(config.fields.IsNull("absent"));
  EXPECT_TRUE(config.fields.ok());
}

TEST(ConfigFields, ReadsValues) {
  Fixture config(R"({"i": 3, "x": 1e-5, "whole": 2, "b": false, "s": "gelu", "list": [1, 2],
                     "names": ["a"]})");
  EXPECT_EQ(config.fields.Integer("i", 7, {1, 9}), 3);
  EXPECT_EQ(config.fields.Integer({"absent", "i"}, 7, {1, 9}), 3);
  EXPECT_EQ(config.fields.Number("x", 1, {0, 1}), 1e-5);
  EXPECT_EQ(config.fields.Number("whole", 1, {0, 9}), 2);
  EXPECT_FALSE(config.fields.Boolean("b", true));
  EXPECT_EQ(config.fields.Text("s", ""), "gelu");
  EXPECT_EQ(config.fields.Integers("list", {0, 9}), (std::vector<int>{1, 2}));
  EXPECT_EQ(config.fields.Texts("names"), std::vector<std::string>{"a"});
  EXPECT_TRUE(config.fields.ok());
}

TEST(ConfigFields, NamesFieldValueAndRange) {
  Fixture config(R"({"num_attention_heads": 0})");
  EXPECT_EQ(config.fields.Integer("num_attention_heads", 32, {1, 4096}), 32);
  ASSERT_FALSE(config.fields.ok());
  EXPECT_EQ(config.fields.error().message,
            "num_attention_heads is 0, but must be an integer from 1 to 4096");
}

TEST(ConfigFields, RefusesOtherTypesAndHugeIntegers) {
  for (const char* value : {"1099511627776", "18446744073709551615", "-9223372036854775808", "1.5",
                            "true", "\"8\"", "[8]", "{}"}) {
    Fixture config(fmt::format(R"({{"n": {}}})", value).c_str());
    EXPECT_EQ(config.fields.Integer("n", 5, {1, 4096}), 5) << value;
    EXPECT_FALSE(config.fields.ok()) << value;
  }
}

TEST(ConfigFields, KeepsTheFirstMistake) {
  Fixture config(R"({"a": "x", "b": 0})");
  EXPECT_TRUE(config.fields.Boolean("a", true));
  EXPECT_EQ(config.fields.Integer("b", 5, {1, 2}), 5);
  EXPECT_EQ(config.fields.error().message, "a is \"x\", but must be true or false");
}

TEST(ConfigFields, GivesThePathOfNestedFields) {
  Fixture config(R"({"ffn_config": {"top_k": -1}, "list": [1, "2"]})");
  config.fields.Object("ffn_config").Integer("top_k", 1, {1, 8});
  EXPECT_EQ(config.fields.error().message,
            "ffn_config.top_k is -1, but must be an integer from 1 to 8");

  Fixture list(R"({"list": [1, "2"]})");
  EXPECT_TRUE(list.fields.Integers("list", {0, 9}).empty());
  EXPECT_EQ(list.fields.error().message, "list[1] is \"2\", but must be an integer from 0 to 9");
}

TEST(ConfigFields, RefusesWhatIsNotAnObject) {
  Fixture list("[1]");
  EXPECT_FALSE(list.fields.ok());
  EXPECT_FALSE(list.fields.Has("x"));

  Fixture text(R"({"sub": "text"})");
  EXPECT_EQ(text.fields.Object("sub").Integer("x", 3, {1, 9}), 3);
  EXPECT_EQ(text.fields.error().message, "sub is \"text\", but must be an object");
}

}  // namespace
}  // namespace convene::model
