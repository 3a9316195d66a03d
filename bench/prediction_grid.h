// The points of a prediction's test: which model, step, formats, plan and link; and the files that
// hold what was predicted of each and what was then measured.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "evaluate/step_case.h"

namespace convene::bench {

struct GridPoint {
  std::string model;    // a checkpoint's directory; its last part names the model
  std::string weights;  // kernels::Name of the format
  std::string plan;     // as scenario_variant.h has it, with the layout in it
  std::string link;     // a name: "fast", "350mbit"
  int num_ranks = 1;
  evaluate::StepCase step;

  std::string Key() const;  // unique within a grid
};

struct GridOptions {
  std::vector<std::string> models;
  std::vector<std::string> weights = {"int8"};
  std::vector<std::string> plans;
  std::vector<std::string> cases;  // "BATCHxTOKENS@CONTEXT"
  std::string link = "fast";
  int num_ranks = 1;
};

// Models, then formats, then steps, then plans. Errors: a case that is none.
Result<std::vector<GridPoint>> MakeGrid(const GridOptions& options);

nlohmann::ordered_json ToJson(const GridPoint& point);
Result<GridPoint> PointFromJson(const nlohmann::json& json);

}  // namespace convene::bench
