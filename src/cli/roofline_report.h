// What convene roofline says, as text, as JSON and as charts. The figures are cost/'s and
// planner/'s.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cost/hierarchical_roofline.h"
#include "drawing/roofline_chart.h"
#include "planner/offload_policy.h"

namespace convene::cli {

// An operation of a decode step between two tiers.
struct RooflineOperation {
  std::string name;  // "attention", "experts"
  cost::TierWork work;
  // What would bring it to its balance point: so many sequences, or so large a share of the cache
  // in the fast tier; 0: nothing.
  int balance_batch = 0;
  double balance_resident = 0;
};

struct RooflinePair {
  cost::HierarchicalRoofline roofline;
  std::vector<RooflineOperation> operations;
};

// A step of generated tokens that ran with all experts in the slow tier.
struct MeasuredStep {
  int batch = 0;
  double tokens_per_second = 0;
  cost::TierWork experts = {};

  // What its experts reached over the whole step, whatever else was in it.
  double flops_per_second() const { return experts.flops * tokens_per_second / batch; }
};

struct RooflineReport {
  std::string model;
  std::string profile;
  std::vector<std::string> formats;  // of weights, of which the policy takes one
  int format = 0;                    // that one, or the first: all that is shown is of it
  std::string kv_cache;
  double context = 0;  // tokens that attention sees
  int batch = 0;
  int micro_batch = 0;
  std::vector<RooflinePair> pairs;
  std::vector<MeasuredStep> measured;  // held against the first pair
  planner::OffloadQuestion question;
  std::optional<planner::OffloadAnswer> policy;
  std::string no_policy;  // why there is none

  const std::string& weights() const { return formats[static_cast<size_t>(format)]; }
};

std::string DescribeRoofline(const RooflineReport& report);
nlohmann::ordered_json ToJson(const RooflineReport& report);

// One for each operation and pair of tiers (as Figs. 4 and 5 of MoE-Lightning).
std::vector<drawing::RooflineChart> ChartsOf(const RooflineReport& report,
                                             const planner::OffloadModel& model);

}  // namespace convene::cli
