#include "cost/xgboost/train_trees.h"

namespace convene::cost {

Result<RegressionTrees> TrainTrees(std::span<const int32_t>, int, std::span<const double>, double,
                                   const TreeOptions&) {
  return Unavailable(
      "this build has no XGBoost; install it (libxgboost-dev) and build again in a new folder");
}

}  // namespace convene::cost
