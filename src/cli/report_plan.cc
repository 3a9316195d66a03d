#include "cli/report_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "base/plain_number.h"
#include "base/quote.h"
#include "base/units.h"
#include "cli/output.h"
#include "cli/plan_report.h"
#include "cli/planned_question.h"
#include "cli/text_table.h"
#include "cli/verify_plan.h"
#include "cost/fit_step_costs.h"
#include "cost/refine_costs.h"
#include "drawing/constant_amount.h"
#include "engine/plan_question.h"
#include "evaluate/refine_profile.h"
#include "planner/plan_search.h"
#include "schedule/activity_graph.h"

namespace convene::cli {
namespace {

constexpr double kGiga = 1e9;

double SecondsOfClock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct PlanFromFile {
  plan::Plan plan;
  PlannedQuestion question;
};

Result<PlanFromFile> ReadPlanFile(const std::string& path) {
  const Result<std::string> text = ReadText(path);
  if (!text) return text.error();
  const Result<nlohmann::json> json = ParseJson(*text);
  if (!json) return json.error().At(path);
  const Result<plan::Plan> plan = plan::PlanFromJson(*json);
  if (!plan) return plan.error().At(path);
  const bool has_question =
      json->contains("predicted") && (*json)["predicted"].contains("question");
  if (!has_question || !plan->made_for || plan->weights.empty()) {
    return Error{
        fmt::format("{} holds no predictions to compare with: it was not written by convene plan, "
                    "or by an earlier version; write it anew with: convene plan MODEL --out {}",
                    path, path)};
  }
  Result<PlannedQuestion> question = PlannedQuestionFromJson((*json)["predicted"]["question"]);
  if (!question) return question.error().At(path + ": predicted.question");
  if (question->profile.steps.empty()) {
    return Error{
        fmt::format("{} was predicted from {}, which has no costs of tasks that could be compared: "
                    "plan with a profile of convene measure",
                    path, question->profile_name)};
  }
  return PlanFromFile{.plan = *plan, .question = *std::move(question)};
}

Status CheckSame(const drawing::Trace& trace, const plan::Plan& plan) {
  for (const drawing::TracedStep& step : trace.steps) {
    const int ranks = step.schedule.num_ranks;
    if (ranks != plan.made_for->num_ranks) {
      return Error{fmt::format("the trace is of {}, and the plan for {}: trace a run with --plan",
                               FormatCount(static_cast<uint64_t>(ranks), "rank"),
                               plan.made_for->num_ranks)};
    }
    if (step.parts.empty() && !step.measured.tasks.empty()) {
      return Error{
          "the trace does not tell parts of tasks: record it again with --trace of this version"};
    }
  }
  if (trace.weights != plan.weights || trace.num_threads != plan.num_threads) {
    return Error{fmt::format(
        "the trace is of weights in {} and {} of each rank, the plan of {} and {}: trace a run "
        "with --plan and nothing given beside it",
        trace.weights.empty() ? "an unknown format" : trace.weights,
        FormatCount(static_cast<uint64_t>(trace.num_threads), "thread"), plan.weights,
        plan.num_threads)};
  }
  const std::string planned = NameOfPlan({.setup = {.num_ranks = plan.made_for->num_ranks,
                                                    .num_threads = plan.num_threads,
                                                    .weights = plan.weights,
                                                    .int8_kv = plan.kv_cache == "int8"},
                                          .plan = plan},
                                         plan.made_for->model);
  if (trace.run.empty() || trace.run == planned) return {};  // older traces do not tell
  return Error{
      fmt::format("the trace is of {}, and the plan is {}: trace a run with --plan and nothing "
                  "given beside it",
                  Printable(trace.run), planned)};
}

// Also where it had nothing to read.
bool UsesDisk(schedule::TaskKind kind) {
  using enum schedule::TaskKind;
  constexpr schedule::TaskKind kKinds[] = {kReadPages, kReadChosen, kReadPredicted,
                                           kReadNext,  kReadKv,     kWriteKv};
  return std::ranges::find(kKinds, kind) != std::end(kKinds);
}

// What is read of experts before it is waited for has no work of its own: that counts as work of
// whoever would read it otherwise (strategy/paged_experts.cc), so both are compared as one.
schedule::TaskKind ComparedAs(schedule::TaskKind kind) {
  using enum schedule::TaskKind;
  return kind == kReadPredicted ? kReadChosen : kind == kReadNext ? kReadPages : kind;
}

// Tasks as costs are fitted to them: a collective is one task of all its ranks. What is read from a
// disk or written to it has the disk's rate.
StepComparison CompareKinds(const drawing::TracedStep& step, const cost::StepCosts& costs,
                            double disk_bytes_per_second) {
  const std::vector<cost::TaskParts> parts = evaluate::PartsOf(step);
  const cost::MachineState state = evaluate::StateOf(step, costs.reference);
  StepComparison found{.name = step.name,
                       .seconds = step.measured.seconds(),
                       .memory_state = state.memory,
                       .compute_state = state.compute,
                       .knows_state = step.has_speed()};
  std::vector<KindComparison> kinds(schedule::kNumTaskKinds);
  const bool overlaps = cost::Overlaps(step.schedule);
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(step.schedule);
  for (int activity = 0; activity < graph.num_activities(); ++activity) {
    const auto ids = graph.tasks_of(activity);
    const schedule::Task& task = step.schedule.tasks[ids.front()];
    const double seconds = cost::CollectiveSeconds(step.measured, ids);
    if (seconds < 0) continue;  // it did not run
    double predicted = 0;
    if (UsesDisk(task.kind)) {
      const double bytes = drawing::ConstantValue(task.work.disk_bytes);
      predicted = disk_bytes_per_second > 0 ? bytes / disk_bytes_per_second : 0;
    } else if (IsCollective(task.kind)) {
      std::vector<double> sent;
      for (const schedule::TaskId id : ids) sent.push_back(parts[id].link_bytes);
      predicted =
          costs.ExchangeSeconds(task.kind, cost::BytesOfSenders(sent, costs.num_ranks), state);
    } else if (const auto& cost = costs.CostOf(task.kind)) {
      predicted = costs.TaskSeconds(*cost, task.lane.rank, parts[ids.front()], state);
    }
    const schedule::TaskKind compared_as = ComparedAs(task.kind);
    KindComparison& kind = kinds[static_cast<size_t>(compared_as)];
    kind.kind = schedule::Name(compared_as);
    ++kind.num_tasks;
    kind.predicted += predicted;
    kind.measured += seconds;
    kind.is_beside = IsCollective(task.kind) ? overlaps : cost::LoadsBeside(task);
  }
  std::erase_if(kinds, [](const KindComparison& kind) { return kind.num_tasks == 0; });
  found.kinds = std::move(kinds);
  return found;
}

std::string WorstOf(const std::vector<StepComparison>& steps) {
  const StepComparison* in = nullptr;
  const KindComparison* worst = nullptr;
  const auto wrong = [](const KindComparison& kind) {
    return std::abs(kind.predicted - kind.measured);
  };
  for (const StepComparison& step : steps) {
    for (const KindComparison& kind : step.kinds) {
      if (kind.is_beside || (worst != nullptr && wrong(kind) <= wrong(*worst))) continue;
      worst = &kind;
      in = &step;
    }
  }
  if (worst == nullptr) return "there is nothing to compare";
  const double tasks_seconds = [&] {
    double sum = 0;
    for (const KindComparison& kind : in->kinds) sum += kind.measured;
    return sum;
  }();
  return fmt::format(
      "the worst misprediction is {} in {}: {} took {}, and {} was predicted ({:+.1f} %), which is "
      "{:.1f} % of the time of all tasks",
      worst->kind, in->name, FormatCount(static_cast<uint64_t>(worst->num_tasks), "task"),
      FormatSeconds(worst->measured), FormatSeconds(worst->predicted), 100 * worst->error(),
      100 * wrong(*worst) / std::max(tasks_seconds, 1e-12));
}

cost::StepCosts Refined(const drawing::Trace& trace, const cost::StepCosts& costs) {
  std::vector<std::vector<cost::TaskParts>> parts;
  std::vector<cost::TracedCosts> traced;
  for (const drawing::TracedStep& step : trace.steps) {
    if (step.measured.tasks.size() != step.schedule.tasks.size()) continue;
    parts.push_back(evaluate::PartsOf(step));
    traced.push_back({.schedule = &step.schedule,
                      .timeline = &step.measured,
                      .state = evaluate::StateOf(step, costs.reference)});
  }
  for (size_t i = 0; i < traced.size(); ++i) traced[i].parts = parts[i];
  return cost::RefineStepCosts(costs, traced, /*cache_bytes=*/0).costs;
}

// Lines are fitted to costs, which a run corrects.
plan::Plan WithoutLines(plan::Plan plan, int usual_step_tokens) {
  plan = DecisionsOf(std::move(plan), usual_step_tokens);
  plan.lines.clear();
  return plan;
}

bool IsPlan(const planner::Candidate& candidate, const PlanFromFile& file) {
  const plan::Plan& plan = file.plan;
  const int usual = file.question.step_tokens;
  return WithoutLines(candidate.plan, usual) == WithoutLines(plan, usual) &&
         candidate.setup.weights == plan.weights &&
         candidate.setup.num_threads == plan.num_threads &&
         candidate.setup.num_ranks == plan.made_for->num_ranks;
}

// What was asked, with the memory of ranks as it was. It refers to both.
planner::PlanQuestion QuestionOf(const PlanFromFile& file, const planner::MeasuredSource& source) {
  const PlannedQuestion& asked = file.question;
  planner::PlanQuestion question{.spec = asked.spec, .workload = asked.workload, .source = source};
  question.num_ranks = asked.num_ranks;
  question.formats = asked.formats;
  question.int8_kv = asked.int8_kv;
  question.expand_from_tokens = asked.expand_from_tokens;
  question.one_host = asked.one_host;
  question.allowed = asked.allowed;
  question.constraints = asked.constraints;
  question.passes_off = asked.passes_off;
  question.present =
      WithoutLines(file.plan, asked.step_tokens);  // it ran: another one must be surely better
  question.clock = SecondsOfClock;
  engine::AnswerPlanQuestion(
      {.rank_memory = asked.rank_memory, .step_tokens = asked.step_tokens, .spills_kv = true},
      question);
  question.memory_per_rank = [&asked](int num_ranks) {
    return asked.memory_per_rank[static_cast<size_t>(num_ranks) - 1];
  };
  return question;
}

// Whether the plan was priced with weights that stay in the last-level cache.
bool HadCachedWeights(const PlanFromFile& file, const cost::StepCosts& costs) {
  if (!(costs.cached_weight_bytes > 0)) return false;
  const planner::MeasuredSource source(file.question.profile);
  const double bytes = planner::WeightBytesOf(
      QuestionOf(file, source),
      {.num_ranks = costs.num_ranks, .num_threads = costs.num_threads, .weights = costs.weights});
  return bytes > 0 && bytes <= costs.cached_weight_bytes;
}

Status SearchAgain(const PlanFromFile& file, PlanComparison& comparison) {
  const planner::MeasuredSource source(file.question.profile);
  const planner::PlanQuestion question = QuestionOf(file, source);
  const Result<planner::PlanAnswer> answer = SearchPlan(question);
  if (!answer) return answer.error();
  const planner::Candidate& best = answer->candidates[answer->chosen];
  comparison.best = Describe(best);
  comparison.stays = IsPlan(best, file);
  const auto ran = std::ranges::find_if(answer->candidates, [&](const planner::Candidate& one) {
    return one.is_ranked() && IsPlan(one, file);
  });
  const bool is_priced = ran != answer->candidates.end();
  if (is_priced) comparison.gain = 1 - best.figures->score / ran->figures->score;
  if (comparison.stays) {
    comparison.afterwards =
        fmt::format("with the costs that were measured the same plan is chosen: {}, {} tokens/s",
                    comparison.best, PlainNumber(best.figures->throughput));
  } else {
    comparison.afterwards = fmt::format(
        "with the costs that were measured the best plan would have been {}{}", comparison.best,
        is_priced
            ? fmt::format(", which would take {:.1f} % {} time than the one that ran",
                          100 * std::abs(comparison.gain), comparison.gain < 0 ? "more" : "less")
            : "; the one that ran is not among those that the search prices");
    if (!answer->why_chosen.empty())
      comparison.afterwards += fmt::format(" ({})", answer->why_chosen);
  }
  return {};
}

}  // namespace

Result<PlanComparison> ComparePlan(const drawing::Trace& trace, const std::string& plan_path) {
  Result<PlanFromFile> file = ReadPlanFile(plan_path);
  if (!file) return file.error();
  if (Status same = CheckSame(trace, file->plan); !same) return same.error();
  const auto costs =
      std::ranges::find_if(file->question.profile.steps, [&](const cost::StepCosts& each) {
        return each.num_ranks == file->plan.made_for->num_ranks &&
               each.num_threads == file->plan.num_threads && each.weights == file->plan.weights;
      });
  if (costs == file->question.profile.steps.end()) {
    return Error{fmt::format("{} holds no costs of its own ranks, threads and weights", plan_path)};
  }
  const bool int8_kv = file->plan.kv_cache == "int8";
  if (int8_kv && !costs->int8_attention) {
    return Error{
        fmt::format("{} holds no costs of attention with its own int8 KV cache", plan_path)};
  }
  const bool cached = HadCachedWeights(*file, *costs);
  if (cached) costs->SwapCachedTasks();
  if (int8_kv) costs->SwapCaches();
  PlanComparison comparison;
  comparison.is_known = std::ranges::any_of(costs->learnt_from, [&](const std::string& name) {
    return name.ends_with(file->plan.made_for->model);
  });
  for (const drawing::TracedStep& step : trace.steps) {
    if (step.measured.tasks.size() != step.schedule.tasks.size()) continue;  // only predicted
    comparison.steps.push_back(
        CompareKinds(step, *costs, kGiga * file->question.profile.machine.disk_gbps));
  }
  if (comparison.steps.empty()) return Error{"the trace has no step that ran"};
  comparison.worst = WorstOf(comparison.steps);
  *costs = Refined(trace, *costs);
  // The search takes those of its question by itself.
  if (int8_kv) costs->SwapCaches();
  if (cached) costs->SwapCachedTasks();
  if (Status searched = SearchAgain(*file, comparison); !searched) return searched.error();
  return comparison;
}

std::string ToText(const PlanComparison& comparison) {
  std::string text = "\nthe plan's prediction, by kind of task\n";
  for (const StepComparison& step : comparison.steps) {
    TextTable table;
    table.AddRow({step.name, "tasks", "predicted ms", "measured ms", "error"});
    table.AddRule();
    bool beside = false;
    for (const KindComparison& kind : step.kinds) {
      beside = beside || kind.is_beside;
      table.AddRow({kind.kind, fmt::to_string(kind.num_tasks),
                    fmt::format("{:.3f}", 1e3 * kind.predicted),
                    fmt::format("{:.3f}", 1e3 * kind.measured),
                    kind.is_beside ? "beside" : fmt::format("{:+.1f} %", 100 * kind.error())});
    }
    text += table.Format();
    if (beside) {
      text +=
          "  beside: exchanges, and experts that were loaded, while others computed; alone they "
          "would "
          "take what is predicted\n";
    }
    text += step.knows_state
                ? fmt::format(
                      "  memory took {:.2f} x and cores {:.2f} x the time of when costs were "
                      "measured, which the prediction takes into account\n",
                      step.memory_state, step.compute_state)
                : "  how fast the machine was meanwhile is not known\n";
  }
  if (comparison.is_known) {
    text +=
        "the costs had learnt from steps of this model before: this is no test of a prediction\n";
  }
  return text + fmt::format("{}\n{}\n", comparison.worst, comparison.afterwards);
}

nlohmann::ordered_json ToJson(const PlanComparison& comparison) {
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  for (const StepComparison& step : comparison.steps) {
    nlohmann::ordered_json kinds = nlohmann::ordered_json::array();
    for (const KindComparison& kind : step.kinds) {
      kinds.push_back({{"kind", kind.kind},
                       {"tasks", kind.num_tasks},
                       {"predicted_s", kind.predicted},
                       {"measured_s", kind.measured},
                       {"error", kind.error()},
                       {"beside_computation", kind.is_beside}});
    }
    steps.push_back({{"name", step.name},
                     {"seconds", step.seconds},
                     {"memory_state", step.memory_state},
                     {"compute_state", step.compute_state},
                     {"kinds", kinds}});
  }
  return {{"steps", steps},
          {"worst", comparison.worst},
          {"afterwards", comparison.afterwards},
          {"stays", comparison.stays},
          {"best", comparison.best},
          {"gain", comparison.gain},
          {"costs_knew_it", comparison.is_known}};
}

}  // namespace convene::cli
