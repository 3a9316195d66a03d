#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/commands_test.h"
#include "cli/invented_profile_test.h"
#include "cli/mixtral_config_test.h"
#include "plan/plan.h"

namespace convene::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class SimulateTest : public CommandsTest {
 protected:
  void SetUp() override {
    CommandsTest::SetUp();
    Write("profile.json", InventedProfile());
    Write("workload.json", R"({"version": 1, "prompt_tokens": 48, "gen_tokens": 8, "batch": 4})");
    Write("hand.json",
          R"({"version": 1, "layout": "attention=dp2,experts=ep2", "weights": "bf16"})");
  }

  Outcome Simulate(const std::string& plan, std::vector<std::string> words) const {
    words.insert(words.begin(), {"simulate", Path(plan)});
    return Run(words);
  }
};

TEST_F(SimulateTest, ForeseesOfAPlanWhatTheSearchForesaw) {
  const Outcome planned =
      Run({"plan", model_, "--profile", Path("profile.json"), "--ranks", "2", "--workload",
           Path("workload.json"), "--memory-per-rank", "1", "--out", Path("plan.json")});
  ASSERT_EQ(planned.status, kSuccess) << planned.err;
  // The plan names its model.
  const Outcome outcome =
      Simulate("plan.json", {"--profile", Path("profile.json"), "--workload", Path("workload.json"),
                             "--memory-per-rank", "1", "--json", Path("out.json")});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  for (const char* part : {"time to first token", "time per token", "tokens/s", "memory per rank",
                           "seconds by kind of task", "experts"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  const auto plan = nlohmann::json::parse(Read("plan.json"));
  const auto json = nlohmann::json::parse(Read("out.json"));
  for (const char* figure : {"ttft_s", "time_per_token_s", "throughput_tokens_per_s",
                             "ttft_s_interval", "extrapolated_share", "memory_per_rank"}) {
    EXPECT_EQ(json["predicted"][figure], plan["predicted"][figure]) << figure;
  }
  for (const char* phase : {"prefill", "decode"}) {
    double sum = json["phases"][phase]["besides_tasks"];
    for (const auto& [kind, seconds] : json["phases"][phase]["tasks"].items()) {
      sum += seconds.get<double>();
    }
    EXPECT_NEAR(sum / json["phases"][phase]["seconds"].get<double>(), 1, 1e-6) << phase;
  }
}

// Lines of a trace of which few are long.
std::string UnevenTrace() {
  std::string csv = "num_prefill_tokens,num_decode_tokens\n";
  for (int i = 0; i < 300; ++i) {
    csv += fmt::format("{},{}\n", i % 50 == 3 ? 400 + i % 7 : 5 + i * 7 % 60,
                       i % 60 == 5 ? 90 : 2 + i % 9);
  }
  return csv;
}

// Sequences that run together, the memory for them, and what is counted of all.
TEST_F(SimulateTest, ATraceIsInThePlansFileAsFarAsFiguresNeedIt) {
  Write("trace.csv", UnevenTrace());
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"--batch", "1"},
           {"--batch", "12"},
           {"--batch", "100"},
           {"--arrival-rate", "0.5"},
           {"--requests", "500"},
           {"--batch", "50", "--objective", "goodput", "--ttft-limit", "0.02"}}) {
    std::vector<std::string> plan = {
        "plan", model_, "--ranks", "2", "--trace", Path("trace.csv"), "--out", Path("plan.json")};
    const std::vector<std::string> machine = {"--profile", Path("profile.json"),
                                              "--memory-per-rank", "1"};
    plan.insert(plan.end(), machine.begin(), machine.end());
    plan.insert(plan.end(), words.begin(), words.end());
    const Outcome planned = Run(plan);
    ASSERT_EQ(planned.status, kSuccess) << planned.err << words[0] << " " << words[1];
    std::vector<std::string> simulate = {"--json", "-"};
    simulate.insert(simulate.end(), machine.begin(), machine.end());
    const Outcome outcome = Simulate("plan.json", simulate);
    ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
    const auto file = nlohmann::json::parse(Read("plan.json"))["predicted"];
    const auto json = nlohmann::json::parse(outcome.out);
    for (const char* figure : {"batch", "ttft_s", "time_per_token_s", "throughput_tokens_per_s",
                               "ttft_s_interval", "memory_per_rank"}) {
      EXPECT_EQ(json["predicted"][figure], file[figure])
          << figure << " with " << words[0] << " " << words[1];
    }
    for (const char* mean : {"requests", "mean_prompt_tokens", "mean_gen_tokens"}) {
      EXPECT_EQ(json["workload"][mean], file["workload"][mean]) << mean;
    }
  }
}

TEST_F(SimulateTest, WhatIsNotGivenIsWhatThePlanWasMadeFor) {
  const Outcome planned =
      Run({"plan", model_, "--profile", Path("profile.json"), "--ranks", "2", "--prompt-tokens",
           "77", "--gen-tokens", "9", "--batch", "3", "--out", Path("plan.json")});
  ASSERT_EQ(planned.status, kSuccess) << planned.err;
  const auto workload_with = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--profile", Path("profile.json"), "--json", "-"});
    const Outcome outcome = Simulate("plan.json", words);
    EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
    return nlohmann::json::parse(outcome.out)["workload"];
  };
  const auto more = workload_with({"--batch", "5"});
  EXPECT_EQ(more["mean_prompt_tokens"], 77);
  EXPECT_EQ(more["mean_gen_tokens"], 9);
  EXPECT_EQ(more["batch"], 5);
  const auto longer = workload_with({"--gen-tokens", "12", "--objective", "ttft"});
  EXPECT_EQ(longer["mean_prompt_tokens"], 77);
  EXPECT_EQ(longer["mean_gen_tokens"], 12);
  EXPECT_EQ(longer["batch"], 3);
  EXPECT_EQ(longer["objective"], "ttft");
}

TEST_F(SimulateTest, OneOptionLeavesATraceAndLimitsAsTheyWere) {
  Write("trace.csv", UnevenTrace());
  const auto plan_with = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"plan", model_, "--profile", Path("profile.json"), "--ranks", "2",
                                 "--trace", Path("trace.csv"), "--out", Path("plan.json")});
    const Outcome planned = Run(words);
    EXPECT_EQ(planned.status, kSuccess) << planned.err;
    return nlohmann::json::parse(Read("plan.json"))["predicted"];
  };
  const auto of_batch = plan_with({"--batch", "12"});
  const std::vector<std::string> common = {"--profile", Path("profile.json"), "--json", "-"};
  std::vector<std::string> words = {"--batch", "12"};
  words.insert(words.end(), common.begin(), common.end());
  const Outcome same = Simulate("plan.json", words);
  ASSERT_EQ(same.status, kSuccess) << same.err;
  EXPECT_EQ(nlohmann::json::parse(same.out)["predicted"]["ttft_s"], of_batch["ttft_s"]);

  plan_with({"--batch", "12", "--objective", "goodput", "--ttft-limit", "20"});
  words = {"--ttft-limit", "30"};
  words.insert(words.end(), common.begin(), common.end());
  const Outcome limited = Simulate("plan.json", words);
  ASSERT_EQ(limited.status, kSuccess) << limited.err;
  EXPECT_EQ(nlohmann::json::parse(limited.out)["workload"]["objective"], "goodput");
}

TEST_F(SimulateTest, WhatAFileSaysOfATraceIsChecked) {
  Write("trace.csv", UnevenTrace());
  const Outcome planned = Run({"plan", model_, "--profile", Path("profile.json"), "--ranks", "2",
                               "--trace", Path("trace.csv"), "--out", Path("plan.json")});
  ASSERT_EQ(planned.status, kSuccess) << planned.err;
  nlohmann::json plan = nlohmann::json::parse(Read("plan.json"));
  nlohmann::json& workload = plan["predicted"]["question"]["workload"];
  const auto simulated = [&] {
    Write("changed.json", plan.dump());
    return Simulate("changed.json", {"--profile", Path("profile.json")});
  };
  const nlohmann::json written = workload["trace"];
  const auto error_with = [&](const char* member, const char* text) {
    workload["trace"] = written;
    workload["trace"][member] = nlohmann::json::parse(text);
    const Outcome outcome = simulated();
    EXPECT_NE(outcome.status, kSuccess) << text;
    return outcome.err;
  };
  for (const char* parts :
       {"7", "[7]", "[[1, 2]]", "[[1, 2, 3, 4]]", "[[0, 2, 3]]", "[[-1, 2, 3]]", "[[4, 3, 9]]",
        "[[4, 9, 3]]", "[[1, 2.5, 3]]", "[[1, 1e300, 3]]", "[[1, 18446744073709551615, 3]]",
        "[[9223372036854775807, 9223372036854775807, 9223372036854775807]]", R"([["1", 2, 3]])",
        "[]", "[[1048576, 1048576, 1048576], [1, 2, 3]]"}) {
    EXPECT_THAT(error_with("parts", parts), HasSubstr("\"parts\"")) << parts;
  }
  for (const char* context : {"null", "0", "-3", "1e300", "\"9\""}) {
    EXPECT_THAT(error_with("mean_context", context), HasSubstr("\"mean_context\"")) << context;
  }
  workload["trace"] = 7;
  EXPECT_THAT(simulated().err, HasSubstr("\"mean_context\""));
  // Files of before have a few requests in place of it.
  workload.erase("trace");
  EXPECT_THAT(simulated().err, HasSubstr("\"requests\""));
  workload["requests"] = {{30, 4}, {60, 8}};
  EXPECT_THAT(simulated().out, HasSubstr("prompts of 45 tokens and answers of 6 tokens on average"
                                         " of 2 requests"));
}

TEST_F(SimulateTest, PricesPlansOfOnesOwnOnPresetsAndDrawsThem) {
  const auto seconds = [&](const char* preset, const char* plan) {
    Write("own.json", plan);
    const Outcome outcome = Simulate("own.json", {"--model", model_, "--profile", preset, "--batch",
                                                  "8", "--json", "-", "--svg", Path("step.svg")});
    EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
    return nlohmann::json::parse(outcome.out)["predicted"]["ttft_s"].get<double>();
  };
  const double first =
      seconds("a100-nvlink", R"({"version": 1, "layout": "attention=dp2,experts=tp2"})");
  EXPECT_GT(first, 0);
  EXPECT_THAT(Read("step.svg"), HasSubstr("<svg"));
  EXPECT_NE(first,
            seconds("a6000-pcie4", R"({"version": 1, "layout": "attention=dp2,experts=tp2"})"));
  EXPECT_NE(first,
            seconds("a100-nvlink", R"({"version": 1, "layout": "attention=dp2,experts=ep2"})"));
  EXPECT_NE(seconds("a100-nvlink",
                    R"({"version": 1, "layout": "attention=dp2,experts=tp2", "gemm": "grouped"})"),
            seconds("a100-nvlink",
                    R"({"version": 1, "layout": "attention=dp2,experts=tp2", "gemm": "dense"})"));
}

// A rank of a machine that is not here has all of its threads.
TEST_F(SimulateTest, ThreadsThatPricesDoNotKnowAreNoted) {
  const std::vector<std::string> words = {"--model", model_, "--profile", "epyc-7763"};
  Write("some.json", R"({"version": 1, "weights": "bf16", "threads": 8})");
  const Outcome some = Simulate("some.json", words);
  ASSERT_EQ(some.status, kSuccess) << some.err;
  EXPECT_THAT(some.out, AllOf(HasSubstr("1 rank x 64 threads"),
                              HasSubstr("the 8 threads of the plan are not in the prices")));
  Write("all.json", R"({"version": 1, "weights": "bf16", "threads": 64})");
  EXPECT_THAT(Simulate("all.json", words).out, Not(HasSubstr("not in the prices")));
}

// The time that found a plan is part of what it takes.
TEST_F(SimulateTest, ThePlansFileNamesTheSolversTime) {
  const auto seconds = [&](const char* predicted) {
    Write("hybrid.json",
          fmt::format(R"({{"version": 1, "layout": "attention=dp2,experts=ep2", "weights": "bf16",
                        "decode": {{"experts": "tp2"}}, "predicted": {}}})",
                      predicted));
    const Outcome outcome = Simulate(
        "hybrid.json", {"--model", model_, "--profile", Path("profile.json"), "--json", "-"});
    EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
    return nlohmann::json::parse(outcome.out)["predicted"]["ttft_s"].get<double>();
  };
  EXPECT_NEAR(seconds(R"({"solver_s": 2.5})"), seconds("{}") + 2.5, 1e-9);
}

TEST_F(SimulateTest, APlanWithoutALayoutHasTheUsualOneOfTheRanksThatItWasMadeFor) {
  const std::string model = plan::ModelHash(nlohmann::json::parse(Read("model/config.json")));
  Write("made.json",
        fmt::format(R"({{"version": 1, "weights": "bf16", "made_for":)"
                    R"( {{"model": "{}", "ranks": 2}}, "decode": {{"experts": "tp2"}}}})",
                    model));
  const Outcome outcome =
      Simulate("made.json", {"--model", model_, "--profile", Path("profile.json"), "--json", "-"});
  ASSERT_EQ(outcome.status, kSuccess) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["plan"]["layout"], "attention=dp2,experts=ep2");
}

TEST_F(SimulateTest, AThousandRanksAreSimulated) {
  nlohmann::json config = nlohmann::json::parse(Read("model/config.json"));
  config["num_experts"] = 1024;
  fs::create_directories(Path("many"));
  Write("many/config.json", config.dump());
  Write("thousand.json",
        R"({"version": 1, "layout": "attention=dp1024,experts=ep1024", "weights": "bf16"})");
  const Outcome outcome =
      Simulate("thousand.json", {"--model", Path("many"), "--profile", "h100-nvlink-200g",
                                 "--batch", "1024", "--prompt-tokens", "64", "--json", "-"});
  EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
  EXPECT_GT(nlohmann::json::parse(outcome.out)["predicted"]["ttft_s"].get<double>(), 0);
}

// A step has a token of each sequence of its group of ranks.
TEST_F(SimulateTest, StepsThatWereAskedForAreNotMadeLonger) {
  const auto simulate = [&](const std::string& chunk) {
    return Simulate("hand.json", {"--model", model_, "--profile", Path("profile.json"), "--batch",
                                  "8", "--prompt-tokens", "48", "--chunk", chunk, "--json", "-"});
  };
  const auto ttft = [&](const std::string& chunk) {
    const Outcome outcome = simulate(chunk);
    EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
    return nlohmann::json::parse(outcome.out)["predicted"]["ttft_s"].get<double>();
  };
  EXPECT_GT(ttft("4"), 1.5 * ttft("8"));
  const Outcome refused = simulate("3");
  EXPECT_NE(refused.status, kSuccess);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("a group of ranks has 4"), HasSubstr("raise --chunk")));
}

TEST_F(SimulateTest, WhatWouldGiveRoomIsTried) {
  const auto error = [&](const std::string& plan, const std::string& memory,
                         const std::string& model, const std::string& chunk) {
    const Outcome outcome = Simulate(plan, {"--model", model, "--profile", "a100-nvlink", "--chunk",
                                            chunk, "--batch", "1", "--memory-per-rank", memory});
    EXPECT_NE(outcome.status, kSuccess);
    return outcome.err;
  };
  Write("int4.json", R"({"version": 1, "layout": "attention=dp2,experts=ep2", "weights": "int4"})");
  EXPECT_THAT(error("int4.json", "0.05", model_, "16384"),
              AllOf(HasSubstr("--chunk "), Not(HasSubstr("weights in int4 or")),
                    Not(HasSubstr("more ranks")), HasSubstr("--memory-per-rank")));
  EXPECT_THAT(error("int4.json", "0.001", model_, "16384"),
              HasSubstr(": more memory (--memory-per-rank) would do"));
  Write("config.json", kTwoLayersOfMixtral);
  EXPECT_THAT(error("hand.json", "2.5", Path("config.json"), "512"),
              HasSubstr(": weights in int8, a plan of more ranks or more memory"));
  EXPECT_THAT(
      error("int4.json", "1.2", Path("config.json"), "512"),
      AllOf(HasSubstr("a plan of more ranks or more memory"), Not(HasSubstr("weights in int8"))));
}

TEST_F(SimulateTest, WhatCannotBeSimulatedIsAnErrorThatSaysWhatToChange) {
  const auto error = [&](const std::string& plan, const std::vector<std::string>& words) {
    const Outcome outcome = Simulate(plan, words);
    EXPECT_NE(outcome.status, kSuccess);
    return outcome.err;
  };
  const std::string profile = Path("profile.json");
  EXPECT_THAT(error("hand.json", {"--profile", profile}), HasSubstr("--model"));
  EXPECT_THAT(error("hand.json", {"--model", model_, "--profile", "nowhere"}),
              HasSubstr("no preset of that name"));
  EXPECT_THAT(error("hand.json", {"--model", model_, "--profile", "a100-nvlnk"}),
              AllOf(HasSubstr("import-profile --list"), HasSubstr("did you mean a100-nvlink?")));
  EXPECT_THAT(error("hand.json", {"--model", model_, "--profile", profile, "--ttft-limit", "1"}),
              HasSubstr("--objective goodput"));
  EXPECT_THAT(error("hand.json", {"--model", model_, "--profile", profile, "--prompt-tokens", "0"}),
              HasSubstr("at least 1"));
  EXPECT_THAT(error("hand.json",
                    {"--model", model_, "--profile", "a100-nvlink", "--memory-per-rank", "0.001"}),
              HasSubstr("more memory (--memory-per-rank) would do"));
  EXPECT_THAT(error("nowhere.json", {"--model", model_}), HasSubstr("nowhere.json"));
  Write("other.json",
        R"({"version": 1, "layout": "attention=dp4,experts=ep4", "weights": "bf16", "made_for":)"
        R"( {"model": "0123456789abcdef", "ranks": 4}})");
  EXPECT_THAT(error("other.json", {"--model", model_, "--profile", profile}),
              HasSubstr("made for another model"));
  Write("four.json", R"({"version": 1, "layout": "attention=dp4,experts=ep4", "weights": "bf16"})");
  EXPECT_THAT(error("four.json", {"--model", model_, "--profile", profile}),
              HasSubstr("mpirun -n 4 --bind-to none convene measure"));
  Write("many.json",
        R"({"version": 1, "layout": "attention=dp2048,experts=ep2048", "weights": "bf16"})");
  EXPECT_THAT(error("many.json", {"--model", model_, "--profile", "a100-nvlink"}),
              HasSubstr("at most 1024"));
  Write("heads.json",
        R"({"version": 1, "layout": "attention=tp64,experts=ep64", "weights": "bf16"})");
  EXPECT_THAT(error("heads.json", {"--model", model_, "--profile", "a100-nvlink"}),
              HasSubstr("heads"));
  Write("cut.json", R"({"version": 1, "layout": "attention=dp1,experts=ep1,disaggregate",)"
                    R"( "pipeline": {"cut": "experts"}})");
  EXPECT_THAT(error("cut.json", {"--model", model_, "--profile", profile}),
              HasSubstr("use --pipeline 1:tokens"));
  Write("old.json", R"({"version": 9, "layout": "attention=dp2,experts=ep2"})");
  EXPECT_THAT(error("old.json", {"--model", model_, "--profile", profile}), HasSubstr("version 9"));
  Write("old_profile.json", R"({"version": 7, "machine": {}, "links": [], "operators": {}})");
  EXPECT_THAT(error("hand.json", {"--model", model_, "--profile", Path("old_profile.json")}),
              HasSubstr("version is 7"));
  Write("old_workload.json", R"({"version": 9, "prompt_tokens": 8})");
  EXPECT_THAT(error("hand.json", {"--model", model_, "--profile", profile, "--workload",
                                  Path("old_workload.json")}),
              HasSubstr("version"));
}

}  // namespace
}  // namespace convene::cli
