// Whole workloads under several plans, which take turns in one process of each rank, there and
// back, so that they share whatever the machine does meanwhile. A run is all prompts and some steps
// of generated tokens, behind half of the answers (evaluate/try_plans.h). bench/plan_floor.py has
// the plans and compares them.
//   mpirun -n 2 plan_turns_bench MODEL --plan a.json --plan b.json -p 512 -n 64 --batch 8 --json F
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/results_file.h"
#include "comm/agree.h"
#include "comm/connect.h"
#include "evaluate/try_plans.h"
#include "strategy/role.h"

namespace convene::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string model;
  std::vector<std::string> plans;
  int prompt_tokens = 64;
  int gen_tokens = 1;
  int batch = 1;
  runtime::RouterOverride router;
  double seconds = 10;
  std::string json;
};

Result<plan::Plan> ReadPlan(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Error{fmt::format("{} cannot be read", path)};
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  Result<plan::Plan> plan = plan::PlanFromJson(json);
  if (!plan) return plan.error().At(path);
  if (plan->weights.empty()) return Error{fmt::format("{} has no \"weights\"", path)};
  return plan;
}

Result<evaluate::TrialQuestion> QuestionOf(const Options& options) {
  evaluate::TrialQuestion question{.prompt_tokens = options.prompt_tokens,
                                   .expand_from_tokens = strategy::kExpandFromTokens,
                                   .router = options.router,
                                   .seconds = options.seconds};
  for (const std::string& path : options.plans) {
    Result<plan::Plan> plan = ReadPlan(path);
    if (!plan) return plan.error();
    question.plans.push_back(*std::move(plan));
  }
  question.sequences.assign(
      static_cast<size_t>(options.batch),
      {.prompt_tokens = options.prompt_tokens, .gen_tokens = options.gen_tokens});
  if (options.gen_tokens > 1) question.context = options.prompt_tokens + options.gen_tokens / 2;
  return question;
}

// All prompts, with which the first tokens come; a step for each further token; and where decode
// divides the experts otherwise, their way there and back.
double WorkloadSeconds(const evaluate::TrialRun& run, int gen_tokens) {
  return run.prefill_seconds + (gen_tokens - 1) * run.decode_seconds + run.transition_seconds;
}

Json ToJson(const evaluate::TriedPlan& plan, int gen_tokens) {
  Json json = {{"why_not", plan.why_not}, {"seconds", Json::array()}, {"runs", Json::array()}};
  for (const evaluate::TrialRun& run : plan.runs) {
    json["seconds"].push_back(WorkloadSeconds(run, gen_tokens));
    json["runs"].push_back({{"prefill_s", run.prefill_seconds},
                            {"decode_step_s", run.decode_seconds},
                            {"transition_s", run.transition_seconds},
                            {"read_bytes_per_s", run.speed.read_bytes_per_second}});
  }
  return json;
}

Status Run(const Options& options) {
  Result<std::unique_ptr<comm::Group>> group = comm::Connect();
  if (!group) return group.error();
  const Result<evaluate::TrialQuestion> question = QuestionOf(options);
  Status ready = question ? Status() : Status(question.error());
  if (ready && (*group)->rank() == 0) ready = CheckResultsFile(options.json);
  if (Status all = comm::AgreeOnSuccess(**group, ready); !all) return all;
  const Result<evaluate::Trials> trials = evaluate::TryPlans(**group, options.model, *question);
  if (!trials) return trials.error();
  if ((*group)->rank() != 0) return {};
  Json json = {{"batch", options.batch},
               {"prompt_tokens", options.prompt_tokens},
               {"gen_tokens", options.gen_tokens},
               {"plans", Json::array()}};
  for (const evaluate::TriedPlan& plan : trials->plans) {
    json["plans"].push_back(ToJson(plan, options.gen_tokens));
  }
  return WriteResultsFile(options.json, json.dump(1) + "\n");
}

int Main(int argc, char** argv) {
  CLI::App app("Runs plans in turn");
  Options options;
  app.add_option("MODEL", options.model)->required();
  app.add_option("--plan", options.plans, "A plan's file, with weights and threads")->required();
  app.add_option("-p", options.prompt_tokens, "Tokens of each prompt")->check(CLI::PositiveNumber);
  app.add_option("-n", options.gen_tokens, "Tokens of each answer")->check(CLI::PositiveNumber);
  app.add_option("--batch", options.batch, "Sequences together")->check(CLI::PositiveNumber);
  app.add_option("--router-skew", options.router.skew,
                 "Share of the tokens that prefer some experts")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--num-experts-skew", options.router.num_experts, "How many experts these are");
  app.add_option("--seconds", options.seconds,
                 "That runs may take: at least one turn there and back")
      ->check(CLI::PositiveNumber);
  app.add_option("--json", options.json)->required();
  CLI11_PARSE(app, argc, argv);
  const Status status = Run(options);
  if (!status) fmt::print(stderr, "plan_turns_bench: {}\n", status.error().message);
  return status ? 0 : 1;
}

}  // namespace
}  // namespace convene::bench

int main(int argc, char** argv) { return convene::bench::Main(argc, argv); }
