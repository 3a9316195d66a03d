#include "plan/lane_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace convene::plan {
namespace {

using testing::HasSubstr;

std::vector<LaneLines> Some() {
  return {{.attention = {1e-5, 3.3e-7},
           .shared = {0, 1.0 / 3},
           .counts = 2e-5,
           .dispatch = {1e-5, 1e-7},
           .experts = {4e-5, 2e-6},
           .combine = {1e-5, 1e-7},
           .num_layers = 16,
           .attention_per_key = 1e-10,
           .most_rows = 8},
          {.num_layers = 1, .most_rows = 512}};
}

TEST(LaneLines, AreReadAsTheyWereWritten) {
  const Result<std::vector<LaneLines>> read =
      LaneLinesFromJson(nlohmann::json::parse(ToJson(Some()).dump()));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, Some());
}

TEST(LaneLines, WhatIsNoneOfThemIsRefused) {
  const auto complaint = [](const auto& change) {
    nlohmann::json json = nlohmann::json::parse(ToJson(Some()).dump());
    change(json);
    const Result<std::vector<LaneLines>> read = LaneLinesFromJson(json);
    return read ? "nothing" : read.error().message;
  };
  using nlohmann::json;
  EXPECT_THAT(complaint([](json& list) { list = json::array(); }), HasSubstr("list of 1 to 16"));
  EXPECT_THAT(complaint([](json& list) { list = 7; }), HasSubstr("list of 1 to 16"));
  EXPECT_THAT(complaint([](json& list) { list[0] = 7; }), HasSubstr("not an object"));
  EXPECT_THAT(complaint([](json& list) { list[0].erase("experts"); }),
              HasSubstr("experts is missing"));
  EXPECT_THAT(complaint([](json& list) {
                list[0]["experts"] = {1, -1};
              }),
              HasSubstr("experts is not a list of two numbers"));
  EXPECT_THAT(complaint([](json& list) {
                list[0]["experts"] = {1, 2, 3};
              }),
              HasSubstr("two numbers"));
  EXPECT_THAT(complaint([](json& list) { list[0]["counts"] = 1e300; }), HasSubstr("counts"));
  EXPECT_THAT(complaint([](json& list) { list[0]["layers"] = 0; }), HasSubstr("layers"));
  EXPECT_THAT(complaint([](json& list) { list[0]["layers"] = 1.5; }), HasSubstr("layers"));
  EXPECT_THAT(complaint([](json& list) { list[0]["more"] = 1; }), HasSubstr("not known"));
  EXPECT_THAT(complaint([](json& list) { list[1]["most_rows"] = 8; }), HasSubstr("must increase"));
  EXPECT_THAT(complaint([](json& list) { list[0]["most_rows"] = 0; }),
              HasSubstr("most_rows of 0 is of any number of rows"));
  EXPECT_EQ(complaint([](json& list) {
              list.erase(1);
              list[0]["most_rows"] = 0;
            }),
            "nothing");
}

}  // namespace
}  // namespace convene::plan
