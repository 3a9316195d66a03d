#include "cost/machine_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cost/fit_operator_model.h"

namespace convene::cost {
namespace {

using ::testing::HasSubstr;

MachineProfile Example() {
  std::vector<OperatorSample> samples;
  for (int i = 1; i <= 30; ++i) {
    samples.push_back({.features = {1.0 * i}, .ideal_seconds = 1e-6 * i, .seconds = 3e-6 * i});
  }
  const auto model = FitOperatorModel({.name = "copy", .feature_names = {"bytes"}}, samples);
  CHECK(model.ok());
  MachineProfile profile;
  profile.machine.cpu_name = "Example 9000";
  profile.device = {.name = "Example GPU",
                    .flops = {{"bf16", 1e14}, {"int8", 2e14}},
                    .memory_bytes_per_second = 2e12,
                    .memory_bytes = uint64_t{80} << 30,
                    .num_multiprocessors = 108,
                    .source = "its data sheet"};
  profile.operators = {{"copy", *model}};
  profile.links = {
      {.name = "NVLink", .num_ranks = 8, .bytes_per_second = 3e11, .latency_seconds = 1e-5},
      {.name = "network",
       .bytes_per_second = 2.5e10,
       .latency_seconds = 2e-5,
       .shared_by = LinkSharing::kHost,
       .assumptions = "the latency"}};
  return profile;
}

TEST(MachineProfile, ComesBackFromJsonAsItWas) {
  const MachineProfile profile = Example();
  const auto read = MachineProfileFromJson(ToJson(profile));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(ToJson(*read), ToJson(profile));
  EXPECT_EQ(read->device, profile.device);
  EXPECT_EQ(read->links, profile.links);
  EXPECT_EQ(read->operators, profile.operators);
  EXPECT_EQ(read->machine.cpu_name, "Example 9000");
}

TEST(MachineProfile, NeedsNoDeviceNoLinksAndNoOperators) {
  const auto read = MachineProfileFromJson(ToJson(MachineProfile{}));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_FALSE(read->device.has_value());
  EXPECT_TRUE(read->links.empty());
  EXPECT_TRUE(read->operators.empty());
}

TEST(MachineProfile, WhatIsDamagedIsNamed) {
  const auto message = [](const char* pointer, nlohmann::json value) {
    nlohmann::json object = ToJson(Example());
    object[nlohmann::json::json_pointer(pointer)] = std::move(value);
    const auto profile = MachineProfileFromJson(object);
    return profile ? "accepted" : profile.error().message;
  };
  EXPECT_THAT(message("/version", 2), HasSubstr("version is 2"));
  EXPECT_THAT(message("/machine/read_gbps", -1), HasSubstr("\"machine\""));
  EXPECT_THAT(message("/machine", 1), HasSubstr("\"machine\""));
  EXPECT_THAT(message("/device", 1), HasSubstr("\"device\""));
  EXPECT_THAT(message("/device/flops/bf16", "fast"), HasSubstr("bf16"));
  EXPECT_THAT(message("/device/flops/bf16", 1e-300), HasSubstr("bf16"));
  EXPECT_THAT(message("/device/memory_bytes_per_second", 1e300), HasSubstr("memory_bytes_per"));
  EXPECT_THAT(message("/device/memory_bytes", -1), HasSubstr("memory_bytes"));
  EXPECT_THAT(message("/links/0/bytes_per_second", 0.5), HasSubstr("0, or a number from 1"));
  EXPECT_THAT(message("/links/1/shared_by", "all"), HasSubstr("link 1"));
  EXPECT_THAT(message("/links/0/latency_seconds", 1e9), HasSubstr("latency_seconds"));
  EXPECT_THAT(message("/operators/copy/curve", 1), HasSubstr("operator \"copy\""));
  EXPECT_FALSE(MachineProfileFromJson(nlohmann::json(3)));
}

}  // namespace
}  // namespace convene::cost
