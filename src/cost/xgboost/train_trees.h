// Grows regression trees with XGBoost's C interface, as a random forest or by boosting. Trees are
// evaluated without it (cost/regression_trees.h), so a build without XGBoost has a stub here and
// still predicts with trees that another build has grown.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "cost/regression_trees.h"

namespace convene::cost {

struct TreeOptions {
  bool boosting = false;  // each tree corrects those before it; else all are grown at once
  int num_trees = 32;
  int max_depth = 8;
  double learning_rate = 1;   // boosting: the part of a correction that is taken
  double sample_share = 0.8;  // of the samples, drawn for each tree
  double term_share = 0.5;    // of the terms, drawn for each split
};

// Trees whose Sum(terms) times `leaf_unit` comes close to the target. `terms` (targets.size(),
// num_terms), each below 2^24, so that XGBoost's float32 holds it. One thread and a fixed seed: the
// same samples in the same order give the same trees, bit for bit.
// Errors: this build has no XGBoost (kUnavailable), or the library failed (kInternal).
Result<RegressionTrees> TrainTrees(std::span<const int32_t> terms, int num_terms,
                                   std::span<const double> targets, double leaf_unit,
                                   const TreeOptions& options);

}  // namespace convene::cost
