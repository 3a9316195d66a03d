// Plans whose keys and values are cached in int8: priced, written, run and learnt from as such.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands_test.h"
#include "cli/planned_question.h"
#include "cost/machine_profile.h"
#include "planner/invented_costs_test.h"

namespace convene::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Costs of one rank in the format, with attention over an int8 cache a millisecond longer.
std::string ProfileOfCaches(const std::string& weights) {
  cost::MachineProfile profile;
  profile.steps.push_back(planner::InventedCosts(1, 1e9, weights));
  cost::StepCosts& costs = profile.steps.front();
  costs.int8_attention = costs.CostOf(schedule::TaskKind::kAttention);
  costs.int8_attention->once += 1e-3;
  costs.int8_attention_held_out = cost::HeldOut{};
  return cost::ToJson(profile).dump();
}

class PlanKvCacheTest : public CommandsTest {
 protected:
  void SetUp() override {
    CommandsTest::SetUp();
    Write("profile.json", ProfileOfCaches("bf16"));
  }

  Outcome Plan(std::vector<std::string> words) const {
    const std::vector<std::string> usual = {
        "plan",         model_, "--profile",       Path("profile.json"),
        "--ranks",      "1",    "--prompt-tokens", "48",
        "--gen-tokens", "8",    "--batch",         "2"};
    words.insert(words.begin(), usual.begin(), usual.end());
    return Run(words);
  }
};

TEST_F(PlanKvCacheTest, AnInt8CacheIsPricedByItsBytesAndItsAttention) {
  const Outcome usual = Plan({"--json", Path("usual.json"), "--kv-cache", "bf16"});
  ASSERT_EQ(usual.status, kSuccess) << usual.err;
  const Outcome told = Plan({"--kv-cache", "int8", "--out", Path("plan.json")});
  ASSERT_EQ(told.status, kSuccess) << told.err;
  EXPECT_THAT(told.out, HasSubstr("1 rank x 1 thread, bf16, int8 KV cache"));
  EXPECT_THAT(usual.out, Not(HasSubstr("KV cache,")));
  const Outcome small = Plan({"--kv-cache", "int8", "--json", "-"});
  ASSERT_EQ(small.status, kSuccess) << small.err;
  const auto of_bf16 = nlohmann::json::parse(Read("usual.json"));
  const auto of_int8 = nlohmann::json::parse(small.out);
  EXPECT_FALSE(of_bf16["plan"].contains("kv_cache"));
  EXPECT_EQ(of_int8["plan"]["kv_cache"], "int8");
  EXPECT_THAT(of_int8["command"].get<std::string>(), HasSubstr("--weights bf16 --kv-cache int8"));
  const auto bytes = [](const nlohmann::json& json) {
    return json["predicted"]["memory_per_rank"]["kv_bytes"].get<double>();
  };
  EXPECT_LT(bytes(of_int8), 0.8 * bytes(of_bf16));
  const double longer = of_int8["predicted"]["time_per_token_s"].get<double>() -
                        of_bf16["predicted"]["time_per_token_s"].get<double>();
  EXPECT_GT(longer, 1e-3);  // of each layer's attention
  // The question is asked again as it was.
  const auto plan = nlohmann::json::parse(Read("plan.json"));
  nlohmann::json question = plan["predicted"]["question"];
  EXPECT_EQ(question["kv_cache"], "int8");
  const auto read = PlannedQuestionFromJson(question);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_TRUE(read->int8_kv);
  question["kv_cache"] = "int3";
  EXPECT_FALSE(PlannedQuestionFromJson(question).ok());
  question.erase("kv_cache");  // as files of before
  const auto before = PlannedQuestionFromJson(question);
  ASSERT_TRUE(before.ok()) << before.error().message;
  EXPECT_FALSE(before->int8_kv);
  // What is simulated of the file is what the search said.
  const Outcome simulated =
      Run({"simulate", Path("plan.json"), "--profile", Path("profile.json"), "--json", "-"});
  ASSERT_EQ(simulated.status, kSuccess) << simulated.err;
  EXPECT_NEAR(nlohmann::json::parse(simulated.out)["predicted"]["time_per_token_s"].get<double>(),
              of_int8["predicted"]["time_per_token_s"].get<double>(), 1e-9);
}

TEST_F(PlanKvCacheTest, APlanOfAnInt8CacheRunsWithOneAndIsComparedAsOne) {
  ASSERT_EQ(Plan({"--kv-cache", "int8", "--out", Path("plan.json")}).status, kSuccess);
  const std::vector<std::string> run = {"run",
                                        model_,
                                        "--prompt",
                                        "abc",
                                        "-n",
                                        "4",
                                        "--temperature",
                                        "0",
                                        "--plan",
                                        Path("plan.json"),
                                        "--trace",
                                        Path("trace.json")};
  const Outcome ran = Run(run);
  ASSERT_EQ(ran.status, kSuccess) << ran.err;
  EXPECT_EQ(nlohmann::json::parse(Read("trace.json"))["otherData"]["kv_cache"], "int8");
  const Outcome told = Run({"report", Path("trace.json"), "--plan", Path("plan.json")});
  ASSERT_EQ(told.status, kSuccess) << told.err;
  EXPECT_THAT(told.out, HasSubstr("the worst misprediction is"));
  // A cache that was given beside the plan is another plan.
  std::vector<std::string> beside = run;
  beside.insert(beside.end(), {"--kv-cache", "bf16"});
  const Outcome other = Run(beside);
  ASSERT_EQ(other.status, kSuccess) << other.err;
  EXPECT_THAT(other.err, HasSubstr("but for what was given beside it (--kv-cache)"));
  const Outcome foreign = Run({"report", Path("trace.json"), "--plan", Path("plan.json")});
  EXPECT_EQ(foreign.status, kFailure);
  EXPECT_THAT(foreign.err, HasSubstr("and the plan is 1 rank x 1 thread, bf16, int8 KV cache"));
}

TEST_F(PlanKvCacheTest, TracesOfAnInt8CacheCorrectItsOwnAttention) {
  std::vector<std::string> words = {"measure", "--from-trace"};
  for (const char* trace : {"a.json", "b.json", "c.json"}) {
    const Outcome ran =
        Run({"run", model_, "--prompt", "abc", "-n", "4", "--temperature", "0", "--weights", "bf16",
             "--threads", "1", "--kv-cache", "int8", "--trace", Path(trace)});
    ASSERT_EQ(ran.status, kSuccess) << ran.err;
    words.push_back(Path(trace));
  }
  words.insert(words.end(), {"--profile", Path("profile.json"), "--out", Path("refined.json")});
  const Outcome outcome = Run(words);
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  const auto costs = [&](const char* name) {
    const auto profile = cost::MachineProfileFromJson(nlohmann::json::parse(Read(name)));
    EXPECT_TRUE(profile.ok()) << profile.error().message;
    return profile->steps.at(0);
  };
  const cost::StepCosts before = costs("profile.json");
  const cost::StepCosts after = costs("refined.json");
  EXPECT_LT(after.int8_attention->once, before.int8_attention->once);
  constexpr auto kAttention = static_cast<size_t>(schedule::TaskKind::kAttention);
  EXPECT_EQ(after.tasks[kAttention], before.tasks[kAttention]);
  Write("profile.json", [&] {
    auto json = nlohmann::json::parse(Read("profile.json"));
    json["steps"][0].erase("int8_attention");
    return json.dump();
  }());
  EXPECT_THAT(Run(words).err, HasSubstr("no costs of attention with one"));
}

TEST_F(PlanKvCacheTest, WhatHasNoPriceOrDoesNotGoTogetherIsSaid) {
  cost::MachineProfile profile;
  profile.steps.push_back(planner::InventedCosts(1, 1e9, "bf16"));
  Write("profile.json", cost::ToJson(profile).dump());
  const Outcome unknown = Plan({"--kv-cache", "int8"});
  EXPECT_EQ(unknown.status, kFailure);
  EXPECT_THAT(unknown.err, HasSubstr("no costs of attention with an int8 KV cache"));
  EXPECT_THAT(unknown.err, HasSubstr("convene measure --steps bf16"));
  const Outcome f32 = Plan({"--kv-cache", "int8", "--weights", "f32"});
  EXPECT_EQ(f32.status, kFailure);
  EXPECT_THAT(f32.err, HasSubstr("with --weights f32 the KV cache is f32, too"));
  const Outcome gpu = Run({"plan", model_, "--profile", "a6000-pcie4", "--kv-cache", "int8"});
  EXPECT_EQ(gpu.status, kFailure);
  EXPECT_THAT(gpu.err, HasSubstr("on a GPU keys and values are cached in bf16 alone"));
}

}  // namespace
}  // namespace convene::cli
