// The points of a prediction's test: which model, step, formats, plan and link; and the files that
// hold what was predicted of each and what was then measured.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "evaluate/step_case.h"
#include "plan/plan.h"

namespace convene::bench {

struct GridPoint {
  std::string model;    // a checkpoint's directory; its last part names the model
  std::string weights;  // kernels::Name of the format
  std::string plan;     // as scenario_variant.h has it, with the layout in it
  std::string link;     // a name: "fast", "350mbit"
  int num_ranks = 1;
  int num_threads = 1;  // of each rank
  evaluate::StepCase step;

  std::string Key() const;  // unique within a file of predictions
};

struct GridOptions {
  std::vector<std::string> models;
  std::vector<std::string> weights = {"int8"};
  std::vector<std::string> plans;
  std::vector<std::string> cases;  // "BATCHxTOKENS@CONTEXT"
  std::string link = "fast";
  int num_ranks = 1;
  int num_threads = 1;
};

// Models, then formats, then steps, then plans. Errors: a case that is none; two points of one key.
Result<std::vector<GridPoint>> MakeGrid(const GridOptions& options);

// What the words of a point's plan say. Errors: words that no plan has; words of scenario_bench
// that a prediction or a run of this test would not follow, so that the two would differ or mean
// nothing.
Result<plan::Plan> PlanOf(const GridPoint& point);

nlohmann::ordered_json ToJson(const GridPoint& point);
Result<GridPoint> PointFromJson(const nlohmann::json& json);

}  // namespace convene::bench
