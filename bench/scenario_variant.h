// A plan under test, in the words of scenario_bench.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "bench/step_prediction.h"
#include "plan/plan.h"

namespace convene::bench {

struct Variant {
  std::string name;
  plan::Plan plan = {};
  double capacity_factor = 0;
  bool fit_cuts = false;   // chunks of experts end where the planner says
  bool is_solved = false;  // each step by itself, by lines through prices of its tasks
  std::optional<StepPrediction> predicted = {};  // none: not asked for, or nobody can say
};

// Words with commas: base (no overlap), pipeline=N[:experts] or auto, cuts=fit (with --predict),
// micro_batches=N, strategy=naive, pppipe
// or fine and order=asas or aass, online (steps are solved each, with --predict; with at most the
// micro-batches and chunks that other words say), all of layouts with +disaggregate; wire=fp8
// (otherwise bf16), gemm=dense, budget=N, capacity=F, layout=... with '+' in place of ','.
// `layout`: where no word names one.
Result<Variant> ParseVariant(const std::string& text, std::string layout);

}  // namespace convene::bench
