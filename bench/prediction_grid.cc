#include "bench/prediction_grid.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "bench/scenario_variant.h"

namespace convene::bench {
namespace {

Result<evaluate::StepCase> ParseCase(const std::string& text) {
  evaluate::StepCase step;
  char rest = 0;
  const int read =
      std::sscanf(text.c_str(), "%dx%d@%d%c", &step.batch, &step.tokens, &step.context, &rest);
  if (read != 3 || step.batch < 1 || step.tokens < 1 || step.context < 0) {
    return Error{fmt::format("'{}' is no step: write BATCHxTOKENS@CONTEXT, as 8x1@512", text)};
  }
  return step;
}

// The last part of a directory, which may end with slashes.
std::string NameOfModel(std::string directory) {
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  return directory.substr(directory.find_last_of('/') + 1);
}

}  // namespace

std::string GridPoint::Key() const {
  return fmt::format("{}|{}|{}|{}|{}x{}|{}x{}@{}", NameOfModel(model), weights, plan, link,
                     num_ranks, num_threads, step.batch, step.tokens, step.context);
}

Result<std::vector<GridPoint>> MakeGrid(const GridOptions& options) {
  std::vector<GridPoint> points;
  std::set<std::string> keys;
  for (const std::string& model : options.models) {
    for (const std::string& weights : options.weights) {
      for (const std::string& text : options.cases) {
        const Result<evaluate::StepCase> step = ParseCase(text);
        if (!step) return step.error();
        for (const std::string& plan : options.plans) {
          points.push_back(
              {model, weights, plan, options.link, options.num_ranks, options.num_threads, *step});
          if (keys.insert(points.back().Key()).second) continue;
          return Error{
              fmt::format("{} is there twice: of options that were given twice, or of two models "
                          "whose directories have one name",
                          points.back().Key())};
        }
      }
    }
  }
  return points;
}

Result<plan::Plan> PlanOf(const GridPoint& point) {
  const Result<Variant> variant = ParseVariant(point.plan, "");
  if (!variant) return variant.error();
  const std::pair<bool, const char*> not_followed[] = {
      {variant->plan.auto_pipeline, "pipeline=auto"},
      {variant->fit_cuts, "cuts=fit"},
      {variant->is_solved, "online"},
      {variant->plan.gemm != plan::GemmChoice::kAuto, "gemm="},
      {variant->plan.comm_budget != 0, "budget="},
      {variant->capacity_factor != 0, "capacity="}};
  std::string words;
  for (const auto& [is_there, word] : not_followed) {
    if (is_there) words += (words.empty() ? "" : ", ") + std::string(word);
  }
  if (words.empty()) return variant->plan;
  return Error{
      fmt::format("the plan '{}' has words that its prediction would not follow: {}; leave them "
                  "out, or time the plan with scenario_bench",
                  point.plan, words)};
}

nlohmann::ordered_json ToJson(const GridPoint& point) {
  return {{"key", point.Key()},           {"model", point.model},
          {"weights", point.weights},     {"plan", point.plan},
          {"link", point.link},           {"ranks", point.num_ranks},
          {"threads", point.num_threads}, {"batch", point.step.batch},
          {"tokens", point.step.tokens},  {"context", point.step.context}};
}

Result<GridPoint> PointFromJson(const nlohmann::json& json) {
  for (const char* key : {"model", "weights", "plan", "link"}) {
    if (!json.contains(key) || !json[key].is_string()) {
      return Error{fmt::format("a point of the grid has no text \"{}\"", key)};
    }
  }
  for (const char* key : {"ranks", "threads", "batch", "tokens", "context"}) {
    if (!json.contains(key) || !json[key].is_number_integer()) {
      return Error{fmt::format("a point of the grid has no number \"{}\"", key)};
    }
  }
  return GridPoint{
      .model = json["model"],
      .weights = json["weights"],
      .plan = json["plan"],
      .link = json["link"],
      .num_ranks = json["ranks"],
      .num_threads = json["threads"],
      .step = {.batch = json["batch"], .tokens = json["tokens"], .context = json["context"]}};
}

}  // namespace convene::bench
