#include "drawing/trace.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace convene::drawing {
namespace {

using schedule::LaneKind;
using schedule::TaskKind;
using testing::HasSubstr;

TracedStep StepToTrace() {
  TracedStep step = {.name = "prefill \"512\" tokens", .start = 0.5};
  step.schedule.num_ranks = 2;
  step.schedule.tasks = {
      {.kind = TaskKind::kRoute, .layer = 3, .encoder = true},
      {.kind = TaskKind::kDispatch,
       .lane = {0, LaneKind::kSend},
       .layer = 3,
       .chunk = 1,
       .after = {0},
       .collective = 4,
       .work = {.link_bytes = {{1024, {schedule::SizeKind::kSent, 3, 1, 0, 1}}}}},
      {.kind = TaskKind::kDispatch,
       .lane = {1, LaneKind::kSend},
       .micro_batch = 2,
       .collective = 4,
       .work = {.flops = schedule::Constant(7)}}};
  step.measured.tasks = {{0, 0.001}, {0.001, 0.0035}, {}};
  step.predicted.tasks = {{0, 0.002}, {0.002, 0.003}, {0.002, 0.003}};
  step.predicted_by = "guessed";
  step.expert_tokens = {{}, {3, 0, 5}};
  step.sent_bytes = {0, 2048, int64_t{3} << 40};
  step.parts = {{.weight_bytes = 1e6, .groups = 3}, {}, {.score_flops = 5, .cache_bytes = 6}};
  return step;
}

Trace Reread(const Trace& trace) {
  Result<Trace> read = TraceFromJson(TraceJson(trace));
  CHECK(read.ok(), "{}", read.error().message);
  return *std::move(read);
}

TEST(Trace, IsReadAsItWasWritten) {
  const TracedStep step = StepToTrace();
  const Trace read = Reread({.steps = {step, step}, .weights = "int8", .num_threads = 3});
  EXPECT_EQ(read.weights, "int8");
  EXPECT_EQ(read.num_threads, 3);
  ASSERT_EQ(read.steps.size(), 2);
  EXPECT_EQ(read.steps[1].name, step.name);
  EXPECT_EQ(read.steps[1].start, step.start);
  EXPECT_EQ(read.steps[1].schedule.num_ranks, 2);
  EXPECT_EQ(read.steps[1].predicted_by, step.predicted_by);
  EXPECT_EQ(read.steps[1].expert_tokens, step.expert_tokens);
  EXPECT_EQ(read.steps[1].sent_bytes, step.sent_bytes);
  EXPECT_EQ(read.steps[1].parts, step.parts);
  EXPECT_EQ(ToText(read.steps[1].schedule, false), ToText(step.schedule, false));
  for (size_t id = 0; id < step.schedule.tasks.size(); ++id) {
    EXPECT_NEAR(read.steps[1].measured.tasks[id].end, step.measured.tasks[id].end, 1e-9);
    EXPECT_NEAR(read.steps[1].predicted.tasks[id].start, step.predicted.tasks[id].start, 1e-9);
  }
}

TEST(Trace, WhatTheLoadLaneReadsFirstMayBeReadBeforeTheStep) {
  TracedStep step = StepToTrace();
  step.schedule.tasks.push_back(
      {.kind = TaskKind::kReadPages, .lane = {0, LaneKind::kLoad}, .layer = 0});
  step.measured.tasks.push_back({-0.003, -0.001});
  step.predicted.tasks.push_back({});
  step.sent_bytes.push_back(0);
  step.parts.emplace_back();
  const Trace read = Reread({.steps = {step}});
  EXPECT_NEAR(read.steps[0].measured.tasks[3].start, -0.003, 1e-9);
  EXPECT_NEAR(read.steps[0].measured.tasks[3].end, -0.001, 1e-9);
}

TEST(Trace, AmountsAreKeptWhereTheyAreKnown) {
  TracedStep step = StepToTrace();
  Trace read = Reread({{step}});
  EXPECT_TRUE(read.steps[0].schedule.tasks[1].work.link_bytes.empty());
  EXPECT_EQ(read.steps[0].schedule.tasks[2].work.flops[0].factor, 7);
  step.schedule = WithAmounts(step.schedule, [](const schedule::Size&) { return 3.0; });
  read = Reread({{step}});
  EXPECT_EQ(read.steps[0].schedule.tasks[1].work.link_bytes[0].factor, 3072);
}

TEST(Trace, AStepMayHaveBeenPredictedOnly) {
  TracedStep step = StepToTrace();
  step.measured = {};
  const Trace read = Reread({{step}});
  EXPECT_TRUE(read.steps[0].measured.tasks.empty());
  EXPECT_EQ(read.steps[0].predicted.tasks.size(), 3);
}

TEST(Trace, NothingIsATraceToo) { EXPECT_TRUE(Reread({}).steps.empty()); }

TEST(Trace, ViewersFindRanksAsProcessesAndLanesAsThreads) {
  const auto document = nlohmann::json::parse(TraceJson({{StepToTrace()}}));
  int num_threads = 0;
  for (const auto& event : document["traceEvents"]) {
    num_threads += event["name"] == "thread_name";
    if (event["ph"] == "X" && event["name"] == "dispatch L3 c1" && event["pid"] == 0) {
      EXPECT_EQ(event["tid"], static_cast<int>(LaneKind::kSend));
      EXPECT_EQ(event["ts"], 501000);
      EXPECT_EQ(event["dur"], 2500);
    }
  }
  EXPECT_EQ(num_threads, 6);  // compute and send of rank 0, send of rank 1; twice
}

std::string Message(std::string text, std::string_view part, std::string_view replacement) {
  const size_t place = text.find(part);
  CHECK(place != std::string::npos);
  const Result<Trace> read = TraceFromJson(text.replace(place, part.size(), replacement));
  return read.ok() ? "read" : read.error().message;
}

TEST(Trace, OtherFilesAreRefused) {
  const std::string text = TraceJson({{StepToTrace()}});
  EXPECT_THAT(Message("[", "[", "{"), HasSubstr("trace:"));
  EXPECT_THAT(Message("{}", "{}", "[]"), HasSubstr("not a trace of convene"));
  EXPECT_THAT(Message(text, "\"convene_trace\": 1", "\"convene_trace\": 2"),
              HasSubstr("not a trace of convene of version 1"));
  EXPECT_THAT(Message(text, "\"route\",\"lane\"", "\"rout\",\"lane\""), HasSubstr("\"kind\""));
  EXPECT_THAT(Message(text, "\"ranks\": 2", "\"ranks\": 1"), HasSubstr("on rank 1 of 1"));
  EXPECT_THAT(Message(text, "[3,0,5]", "[3,-1]"), HasSubstr("no number of tokens"));
  EXPECT_THAT(Message(text, "[3,0,5]", "3"), HasSubstr("no list"));
  EXPECT_THAT(Message(text, "\"ranks\": 2", "\"ranks\": 1e300"), HasSubstr("whole number"));
  EXPECT_THAT(Message(text, "\"after\":[0]", "\"after\":[7]"), HasSubstr("waits for task 7"));
  EXPECT_THAT(Message(text, "\"after\":[0]", "\"after\":[\"a\"]"), HasSubstr("no task"));
  EXPECT_THAT(Message(text, "\"task\": 1", "\"task\": 9"), HasSubstr("task 9 of step 0"));
  EXPECT_THAT(Message(text, "\"dur\": 2500", "\"dur\": -1"), HasSubstr("no time of a run"));
  EXPECT_THAT(Message(text, "\"ts\": 501000", "\"ts\": -501000"), HasSubstr("no time of a run"));
  EXPECT_THAT(Message(text, "\"ts\": 501000", "\"ts\": 1000"), HasSubstr("before its step"));
  EXPECT_THAT(Message(text, "\"ranks\": 2", "\"ranks\": 2.5"), HasSubstr("whole number"));
  EXPECT_THAT(Message(text, "\"layer\":3", "\"layer\":-3"), HasSubstr("\"layer\""));
  EXPECT_THAT(Message(text, "\"layer\":3", "\"layer\":1000000000"), HasSubstr("\"layer\""));
  EXPECT_THAT(Message(text, "\"flops\":7", "\"flops\":-7"), HasSubstr("less than"));
  EXPECT_THAT(Message(text, "\"dur\": 2500.000", "\"dur\": 1e300"), HasSubstr("no time of a run"));
}

TEST(Trace, RanksWithoutTasksAreRefusedWhereThereAreMany) {
  // A step of which most ranks have nothing to do, and nothing else, is one that may have run.
  TracedStep step;
  step.schedule.num_ranks = 1000;
  EXPECT_EQ(Reread({.steps = {step}}).steps.at(0).schedule.num_ranks, 1000);
  // Of a few bytes each, such steps would take any memory.
  std::string text = R"({"traceEvents": [], "otherData": {"convene_trace": 1, "steps": [)";
  for (int i = 0; i < 3; ++i) {
    text += fmt::format(R"({}{{"ranks": 1000, "tasks": []}})", i > 0 ? ", " : "");
  }
  const Result<Trace> read = TraceFromJson(text + "]}}");
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(read.error().message, HasSubstr("3000 ranks in all, and 0 tasks"));
}

TEST(Trace, NamesTheRolesOfRanksWithAttentionOrExpertsAlone) {
  TracedStep step;
  step.schedule.num_ranks = 2;
  step.schedule.tasks = {{.kind = TaskKind::kAttention, .layer = 0},
                         {.kind = TaskKind::kExperts, .lane = {1, LaneKind::kCompute}, .layer = 0}};
  step.measured.tasks = step.predicted.tasks = {{0, 1}, {1, 2}};
  const std::string json = TraceJson({.steps = {step}});
  EXPECT_THAT(json, HasSubstr("\"rank 0 (attention)\""));
  EXPECT_THAT(json, HasSubstr("\"rank 1 (experts), predicted\""));
  step.schedule.tasks[1].lane.rank = 0;
  EXPECT_THAT(TraceJson({.steps = {step}}), HasSubstr("\"rank 0\""));
}

}  // namespace
}  // namespace convene::drawing
