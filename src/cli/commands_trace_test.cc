// --trace, --record-routing and the commands that show what they wrote, as a user calls them.
#include "cli/commands_test.h"
#include "cost/expected_sizes.h"
#include "cost/machine_profile.h"
#include "drawing/trace.h"

namespace convene::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class TraceTest : public CommandsTest {
 protected:
  // The trace of a prompt and some generated tokens.
  std::string Traced() {
    const std::string path = Path("trace.json");
    const Outcome outcome = Run({"run", model_, "--prompt", "some text", "--max-tokens", "12",
                                 "--temperature", "0", "--trace", path, "--threads", "1"});
    EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
    return path;
  }
};

TEST_F(TraceTest, ATraceHoldsAPrefillAndADecodeStepMeasuredAndPredicted) {
  const Result<drawing::Trace> trace = drawing::TraceFromJson(*ReadFile(Traced(), kMaxBytes));
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  ASSERT_EQ(trace->steps.size(), 2);
  EXPECT_EQ(trace->steps[0].name, "prefill, 9 tokens of 1 sequence");
  EXPECT_EQ(trace->steps[1].name, "decode, 1 token of 1 sequence");
  const drawing::TracedStep& decode = trace->steps[1];
  EXPECT_THAT(decode.predicted_by, HasSubstr("other steps of this run"));
  EXPECT_EQ(decode.predicted.tasks.size(), decode.schedule.tasks.size());
  for (const drawing::TracedStep& step : trace->steps) {
    EXPECT_TRUE(step.has_speed());  // so that the machine's drift is in no factor
    ASSERT_EQ(step.measured.tasks.size(), step.schedule.tasks.size());
    for (size_t id = 0; id < step.schedule.tasks.size(); ++id) {
      EXPECT_GE(step.measured.tasks[id].end, step.measured.tasks[id].start);
      const schedule::Task& task = step.schedule.tasks[id];
      if (task.kind != schedule::TaskKind::kExperts) continue;
      EXPECT_GT(task.work.flops.at(0).factor, 0);  // sizes were known
    }
    int64_t tokens = 0;
    for (const int64_t count : step.expert_tokens.at(0)) tokens += count;
    EXPECT_EQ(tokens % (&step == &decode ? 1 : 9), 0);
    EXPECT_GT(tokens, 0);
  }
}

TEST_F(TraceTest, StandardOutputIsTheSameWithATrace) {
  const std::vector<std::string> words = {"run",          model_, "--prompt",      "a",
                                          "--max-tokens", "5",    "--temperature", "0"};
  std::vector<std::string> traced = words;
  traced.insert(traced.end(), {"--trace", Path("t.json"), "--record-routing", Path("r.json")});
  EXPECT_EQ(Run(words).out, Run(traced).out);
}

TEST_F(TraceTest, ReportShowsEverySectionAsTextAndJson) {
  const Outcome outcome = Run({"report", Traced(), "--json", Path("report.json")});
  EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
  for (const char* part :
       {"prefill, 9 tokens", "decode, 1 token", "predicted by: ", "experts", "attention", "idle",
        "load of experts", "sent by all ranks: 0 B counted, 0 B by the schedule"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  const auto report = nlohmann::json::parse(Read("report.json"));
  EXPECT_EQ(report["steps"].size(), 2);
  EXPECT_GT(report["steps"][1]["seconds"], 0);
  EXPECT_GT(report["steps"][1]["predicted_seconds"], 0);
  EXPECT_GE(report["steps"][0]["expert_load_by_expert"]["worst"], 1);
}

TEST_F(TraceTest, NamesInATraceSendNothingToTheTerminal) {
  static_cast<void>(Traced());
  auto trace = nlohmann::json::parse(Read("trace.json"));
  trace["otherData"]["steps"][0]["name"] = "\x1b[2Ja name";
  Write("names.json", trace.dump());
  const Outcome outcome = Run({"report", Path("names.json")});
  EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("step 0: ?[2Ja name"));
}

TEST_F(TraceTest, GanttDrawsAStepOrSomeOfItsLayers) {
  const std::string trace = Traced();
  Outcome outcome = Run({"gantt", trace, "--out", Path("step.svg"), "--step", "1"});
  EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
  const std::string whole = Read("step.svg");
  EXPECT_THAT(whole, HasSubstr("head"));
  EXPECT_THAT(whole, HasSubstr("measured"));
  outcome = Run({"gantt", trace, "--out", Path("part.svg"), "--layers", "1"});
  EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
  EXPECT_THAT(Read("part.svg"), HasSubstr("layers 1"));
  EXPECT_THAT(Read("part.svg"), HasSubstr("experts L1"));
  EXPECT_THAT(Read("part.svg"), ::testing::Not(HasSubstr("experts L0")));
}

TEST_F(TraceTest, WhatCannotBeShownIsRefusedWithWhatToChange) {
  const std::string trace = Traced();
  Write("other.json", "{\"a\": 1}");
  Write("empty.json", drawing::TraceJson({}));
  const auto message = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--out", Path("x.svg")});
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.status, kFailure);
    EXPECT_THAT(outcome.err, StartsWith("convene: "));
    return outcome.err;
  };
  EXPECT_THAT(message({"gantt", Path("nowhere")}), HasSubstr("nowhere"));
  EXPECT_THAT(message({"gantt", Path("other.json")}), HasSubstr("that --trace has written"));
  EXPECT_THAT(message({"gantt", Path("empty.json")}), HasSubstr("holds no steps"));
  EXPECT_THAT(message({"gantt", trace, "--step", "2"}), HasSubstr("0: prefill, 9 tokens"));
  EXPECT_THAT(message({"gantt", trace, "--layers", "0-99"}), HasSubstr("has layers 0-"));
  for (const char* layers : {"2-1", "a", "", "1-", "-1", "1-2-3"}) {
    const Outcome outcome = Run({"gantt", trace, "--out", Path("x.svg"), "--layers", layers});
    EXPECT_EQ(outcome.status, kUsage) << layers;
    EXPECT_THAT(outcome.err, HasSubstr("write one as 3"));
  }
  EXPECT_EQ(Run({"report", Path("other.json")}).status, kFailure);
  EXPECT_EQ(Run({"run", model_, "--prompt", "x", "--trace", Path("no/t.json")}).status, kUsage);
}

TEST_F(TraceTest, RecordedRoutingIsWhatTheSimulatorReads) {
  const Outcome outcome = Run({"run", model_, "--prompt", "some text", "--max-tokens", "3",
                               "--temperature", "0", "--record-routing", Path("routing.json")});
  EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
  const auto counts = cost::RouterCountsFromJson(nlohmann::json::parse(Read("routing.json")));
  ASSERT_TRUE(counts.ok()) << counts.error().message;
  const auto config = nlohmann::json::parse(Read("model/config.json"));
  EXPECT_EQ(counts->size(), config["num_hidden_layers"]);
  EXPECT_EQ(counts->at(0).size(), config["num_experts"]);
  double tokens = 0;
  for (const double count : counts->at(0)) tokens += count;
  // The prompt's and all generated ones but the last.
  EXPECT_EQ(tokens, 11 * config["num_experts_per_tok"].get<int>());
}

TEST_F(TraceTest, ATraceRefinesAProfile) {
  const std::string trace = Traced();
  cost::MachineProfile profile;
  profile.machine.cpu_name = "a machine";
  profile.machine.cpus = {0};
  cost::StepCosts costs{.weights = "bf16"};
  // A second for each task: nothing here takes so long.
  for (auto& task : costs.tasks) task.emplace().once = 1;
  profile.steps = {costs};
  Write("profile.json", cost::ToJson(profile).dump());
  const std::vector<std::string> words = {"measure",           "--from-trace",       trace,
                                          "--profile",         Path("profile.json"), "--out",
                                          Path("refined.json")};
  const Outcome outcome = Run(words);
  EXPECT_EQ(outcome.status, kSuccess) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("refined by 2 steps that ran"));
  EXPECT_THAT(outcome.out, HasSubstr("experts"));
  const auto refined = cost::MachineProfileFromJson(nlohmann::json::parse(Read("refined.json")));
  ASSERT_TRUE(refined.ok()) << refined.error().message;
  const auto& experts =
      refined->steps.at(0).tasks[static_cast<size_t>(schedule::TaskKind::kExperts)];
  EXPECT_LT(experts->once, 0.5);
  // Each of the two steps has one task of some kinds, and two are too few.
  EXPECT_THAT(outcome.out, HasSubstr("left as it was"));
  EXPECT_THAT(outcome.out, HasSubstr("give those of several runs together"));
  std::vector<std::string> twice = words;
  twice.insert(twice.begin() + 2, trace);
  EXPECT_THAT(Run(twice).err, HasSubstr("is given twice"));

  costs.num_threads = 7;
  profile.steps = {costs};
  Write("profile.json", cost::ToJson(profile).dump());
  const Outcome other = Run(words);
  EXPECT_EQ(other.status, kFailure);
  EXPECT_THAT(other.err, HasSubstr("no costs of steps on 1 rank of 1 thread"));
  auto old = nlohmann::json::parse(*ReadFile(trace, kMaxBytes));
  old["otherData"].erase("weights");
  Write("trace.json", old.dump());
  EXPECT_THAT(Run(words).err, HasSubstr("record it again"));
  EXPECT_THAT(Run({"measure", "--profile", Path("profile.json")}).err, HasSubstr("--from-trace"));
  for (const std::vector<std::string>& ignored : std::vector<std::vector<std::string>>{
           {"--threads", "2"}, {"--seconds", "1"}, {"--disk", "/"}, {"--steps", "int8"}}) {
    std::vector<std::string> with = words;
    with.insert(with.end(), ignored.begin(), ignored.end());
    EXPECT_EQ(Run(with).status, kUsage) << ignored.front();
  }
}

}  // namespace
}  // namespace convene::cli
