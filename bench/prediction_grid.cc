#include "bench/prediction_grid.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

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

}  // namespace

std::string GridPoint::Key() const {
  return fmt::format("{}|{}|{}|{}|{}|{}x{}@{}", model.substr(model.find_last_of('/') + 1), weights,
                     plan, link, num_ranks, step.batch, step.tokens, step.context);
}

Result<std::vector<GridPoint>> MakeGrid(const GridOptions& options) {
  std::vector<GridPoint> points;
  for (const std::string& model : options.models) {
    for (const std::string& weights : options.weights) {
      for (const std::string& text : options.cases) {
        const Result<evaluate::StepCase> step = ParseCase(text);
        if (!step) return step.error();
        for (const std::string& plan : options.plans) {
          points.push_back({model, weights, plan, options.link, options.num_ranks, *step});
        }
      }
    }
  }
  return points;
}

nlohmann::ordered_json ToJson(const GridPoint& point) {
  return {
      {"key", point.Key()},        {"model", point.model},        {"weights", point.weights},
      {"plan", point.plan},        {"link", point.link},          {"ranks", point.num_ranks},
      {"batch", point.step.batch}, {"tokens", point.step.tokens}, {"context", point.step.context}};
}

Result<GridPoint> PointFromJson(const nlohmann::json& json) {
  for (const char* key : {"model", "weights", "plan", "link"}) {
    if (!json.contains(key) || !json[key].is_string()) {
      return Error{fmt::format("a point of the grid has no text \"{}\"", key)};
    }
  }
  for (const char* key : {"ranks", "batch", "tokens", "context"}) {
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
      .step = {.batch = json["batch"], .tokens = json["tokens"], .context = json["context"]}};
}

}  // namespace convene::bench
