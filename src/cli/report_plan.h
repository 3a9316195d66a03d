// What a plan foresaw beside what its steps took, by kind of task, and what would have been chosen
// had that been known. What a trace says by itself is report.cc.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "drawing/trace.h"

namespace convene::cli {

struct KindComparison {
  std::string kind;  // read_chosen and read_pages with what was read ahead in their place
  int num_tasks = 0;
  double predicted = 0;  // seconds of all of them, by the costs that the plan was made with
  double measured = 0;
  // Exchanges beside computation: their time is not theirs alone, and is no error of the costs.
  bool is_beside = false;

  double error() const { return measured > 0 ? predicted / measured - 1 : 0; }
};

struct StepComparison {
  std::string name;
  double seconds = 0;       // measured
  double memory_state = 1;  // how slow the machine was, beside when costs were measured
  double compute_state = 1;
  bool knows_state = false;
  std::vector<KindComparison> kinds = {};
};

struct PlanComparison {
  std::vector<StepComparison> steps;
  std::string worst;       // the worst misprediction, in words
  std::string afterwards;  // what would have been the best plan
  bool stays = false;
  std::string best;       // its name
  double gain = 0;        // 0.1: it would take 10 % less time than the plan that ran
  bool is_known = false;  // the costs had learnt from the plan before
};

// Errors: no plan, one without predictions, one for other ranks, threads or weights than the trace
// is of; a trace that does not tell parts of tasks.
Result<PlanComparison> ComparePlan(const drawing::Trace& trace, const std::string& plan_path);

std::string ToText(const PlanComparison& comparison);
nlohmann::ordered_json ToJson(const PlanComparison& comparison);

}  // namespace convene::cli
