// Renderings by transformers, made by tools/make_template_fixtures.py. Every directory below
// tests/golden/templates is compared, so a fixture of any other template can be dropped there.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/read_file.h"
#include "text/chat_template.h"

namespace convene::text {
namespace {

using nlohmann::ordered_json;

const std::string kGolden = std::string(CONVENE_SOURCE_DIR) + "/tests/golden/templates";

std::string Read(const std::string& path) {
  auto contents = ReadFile(path, 256 << 20);
  CHECK(contents.ok(), "{}", contents.error().message);
  return *std::move(contents);
}

// The clock that the fixtures were made with, in whatever time zone this runs.
std::chrono::system_clock::time_point FixtureTime() {
  std::tm time{};
  time.tm_year = 2025 - 1900;
  time.tm_mon = 0;
  time.tm_mday = 2;
  time.tm_hour = 3;
  time.tm_min = 4;
  time.tm_sec = 5;
  time.tm_isdst = -1;
  return std::chrono::system_clock::from_time_t(std::mktime(&time));
}

ordered_json Take(ordered_json& object, const char* key) {
  ordered_json value = object.value(key, ordered_json());
  object.erase(key);
  return value;
}

Result<std::string> RenderContext(const ChatTemplate& chat_template, ordered_json context) {
  const ordered_json messages = Take(context, "messages");
  RenderOptions options;
  options.tools = Take(context, "tools");
  options.documents = Take(context, "documents");
  options.add_generation_prompt = Take(context, "add_generation_prompt") == true;
  options.variables = std::move(context);
  options.now = FixtureTime();
  return chat_template.Render(messages, options);
}

class GoldenTemplate : public testing::TestWithParam<std::string> {};

TEST_P(GoldenTemplate, RendersAsTransformersDoes) {
  const std::string directory = kGolden + "/" + GetParam();
  const auto chat_template = ChatTemplate::Parse(Read(directory + "/template.jinja"));
  ASSERT_TRUE(chat_template) << chat_template.error().message;
  const auto document = ordered_json::parse(Read(directory + "/cases.json"));
  ASSERT_FALSE(document.at("cases").empty());
  for (const ordered_json& expected : document.at("cases")) {
    SCOPED_TRACE(expected.at("name").get<std::string>());
    const auto rendered = RenderContext(*chat_template, expected.at("context"));
    if (expected.contains("text")) {
      ASSERT_TRUE(rendered) << rendered.error().message;
      EXPECT_EQ(*rendered, expected.at("text").get<std::string>());
    } else {
      ASSERT_FALSE(rendered) << *rendered;
      if (!expected.at("error").is_null()) {
        EXPECT_NE(rendered.error().message.find(expected.at("error").get<std::string>()),
                  std::string::npos)
            << rendered.error().message;
      }
    }
  }
}

std::vector<std::string> Directories() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kGolden)) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string TestName(const testing::TestParamInfo<std::string>& directory) {
  std::string name = directory.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, GoldenTemplate, testing::ValuesIn(Directories()), TestName);

TEST(GoldenExpressions, EvaluateAsInJinja) {
  const auto expressions = ordered_json::parse(Read(kGolden + "/expressions.json"));
  ASSERT_GT(expressions.size(), 900u);
  const ordered_json messages = ordered_json::parse(R"([{"role": "user"}])");
  RenderOptions options;
  options.now = FixtureTime();
  for (const ordered_json& pair : expressions) {
    const auto source = fmt::format("{{{{ {} }}}}", pair[0].get<std::string>());
    SCOPED_TRACE(source);
    const auto chat_template = ChatTemplate::Parse(source);
    if (pair[1].is_null()) {
      EXPECT_FALSE(chat_template && chat_template->Render(messages, options));
      continue;
    }
    ASSERT_TRUE(chat_template) << chat_template.error().message;
    const auto rendered = chat_template->Render(messages, options);
    ASSERT_TRUE(rendered) << rendered.error().message;
    EXPECT_EQ(*rendered, pair[1].get<std::string>());
  }
}

}  // namespace
}  // namespace convene::text
