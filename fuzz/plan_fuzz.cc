// Any bytes as a plan, as the question that a plan's file keeps, or as the workload that one is
// made for: an error, or decisions in range that are written and read as the same again, and
// lengths in range.
//
// An input that begins with '{' is the JSON of both; one with a comma before its first line break
// is a trace of requests; any other is a layout and, behind a space, a pipeline, as on a command
// line.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "cli/planned_question.h"
#include "plan/plan.h"
#include "planner/workload.h"

namespace {

namespace plan = convene::plan;
namespace planner = convene::planner;
namespace strategy = convene::strategy;

constexpr int kMostRanks = 4096;

// The last part of each degree is on a rank, and consecutive parts are all of it.
void CheckRoles(const strategy::Layout& layout) {
  const strategy::Roles roles = layout;
  CHECK(roles.num_ranks() == layout.num_ranks());
  if (layout.stages > 1) {
    int end = 0;
    for (int rank = 0; rank < roles.num_ranks(); ++rank) {
      const strategy::StageRole& stage = roles.of(rank).stage;
      CHECK(stage.first == end && stage.end > stage.first, "{} to {}", stage.first, stage.end);
      end = stage.end;
    }
    CHECK(roles.of(roles.num_ranks() - 1).stage.is_last());
    return;
  }
  const int with_heads = roles.RankOfPart(layout.attention_dp - 1, layout.attention_tp - 1);
  const strategy::Role& heads = roles.of(with_heads);
  CHECK(heads.attention->part == layout.attention_tp - 1);
  CHECK(heads.attention->group == layout.attention_dp - 1);
  const int with_experts = roles.RankOfSlice(layout.expert_ep - 1, layout.expert_tp - 1);
  const strategy::Role& experts = roles.of(with_experts);
  CHECK(experts.experts->slice == layout.expert_tp - 1);
  CHECK(experts.experts->share == layout.expert_ep - 1);
  const strategy::Part last = roles.ExpertsOf(with_experts, 65535);
  CHECK(last.first + last.size == 65535, "{} and {}", last.first, last.size);
}

void CheckLayout(const strategy::Layout& layout) {
  const int degrees[] = {layout.attention_tp, layout.attention_dp, layout.expert_ep,
                         layout.expert_tp, layout.stages};
  for (const int degree : degrees) CHECK(degree >= 1 && degree <= kMostRanks, "{}", degree);
  CHECK(layout.disaggregates || layout.num_attention_ranks() == layout.num_expert_ranks());
  CHECK(layout.stages == 1 || layout.num_attention_ranks() == 1);
  const auto again = plan::ParseLayout(plan::ToText(layout));
  CHECK(again && *again == layout, "{}", plan::ToText(layout));
  CHECK(plan::CheckRanks(layout, layout.num_ranks()).ok());
  CHECK(!plan::CheckRanks(layout, layout.num_ranks() + 1).ok());
  // Degrees multiply; so many ranks nobody starts.
  if (layout.num_ranks() <= kMostRanks) CheckRoles(layout);
}

void CheckPlan(const plan::Plan& read) {
  CheckLayout(read.layout);
  CHECK(read.pipeline.chunks >= 1 && read.pipeline.chunks <= 256, "{}", read.pipeline.chunks);
  CHECK(read.comm_budget >= 0 && read.comm_budget <= 1024, "{}", read.comm_budget);
  CHECK(read.host_threads >= 0 && read.host_threads <= 1024, "{}", read.host_threads);
  if (read.decode) {
    CheckLayout(*read.decode);
    CHECK(read.decode->num_ranks() == read.layout.num_ranks());
  }
  const auto again = plan::PlanFromJson(plan::ToJson(read));
  CHECK(again.ok(), "{}", again.error().message);
  // Where chunks are chosen later their number is not written.
  plan::Plan written = read;
  if (read.auto_pipeline) written.pipeline.chunks = again->pipeline.chunks;
  CHECK(*again == written);
}

void CheckWorkload(const planner::Workload& workload) {
  CHECK(workload.batch >= 1 && workload.batch <= planner::kMostSequences, "{}", workload.batch);
  CHECK(!workload.requests.empty());
  for (const planner::RequestLengths& request : workload.requests) {
    CHECK(request.prompt_tokens >= 1 && request.prompt_tokens <= planner::kMostTokens);
    CHECK(request.gen_tokens >= 1 && request.gen_tokens <= planner::kMostTokens);
  }
  for (const planner::RequestLengths& request : planner::TypicalSequences(workload, 3)) {
    CHECK(request.prompt_tokens >= 1 && request.gen_tokens >= 1);
  }
  CHECK(workload.mean_context() >= 1);
  CHECK(workload.requests.count() >= 1 && workload.longest_request() >= 2);
}

void CheckQuestion(const convene::cli::PlannedQuestion& question) {
  CHECK(question.num_ranks >= 1 && question.num_ranks <= kMostRanks, "{}", question.num_ranks);
  CHECK(std::ssize(question.memory_per_rank) == question.num_ranks);
  CHECK(question.step_tokens >= 1, "{}", question.step_tokens);
  CheckWorkload(question.workload);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (text.starts_with('{')) {
    const auto json = convene::ParseJson(text);
    if (!json) return 0;
    const auto read = plan::PlanFromJson(*json);
    if (read) CheckPlan(*read);
    const auto question = convene::cli::PlannedQuestionFromJson(*json);
    if (question) CheckQuestion(*question);
    const auto workload = planner::WorkloadFromJson(*json);
    if (workload && workload->trace_path.empty()) CheckWorkload(workload->workload);
    return 0;
  }
  if (text.substr(0, text.find('\n')).find(',') != text.npos && text.find('\n') != text.npos) {
    const auto trace = planner::RequestsFromTrace(text);
    if (trace) CheckWorkload({.requests = trace->requests});
    return 0;
  }
  const size_t space = text.find(' ');
  plan::Plan given;
  if (const auto layout = plan::ParseLayout(text.substr(0, space))) given.layout = *layout;
  if (space != text.npos) {
    plan::Plan with_pipeline = given;
    const bool is_read = plan::ParsePipeline(text.substr(space + 1), &with_pipeline).ok();
    // Commands refuse what does not go together.
    if (is_read && plan::CheckLayout(with_pipeline).ok()) given = with_pipeline;
  }
  CheckPlan(given);
  return 0;
}
