// What attention adds to scores by distance, as the kernels read it: a table for each stack of
// layers.
#pragma once

#include <vector>

#include "device/layer.h"
#include "kernels/kernel_set.h"
#include "weights/weight_store.h"

namespace convene::device {

class DistanceBiases {
 public:
  explicit DistanceBiases(const weights::WeightStore& weights);

  // Of self attention; no table where the stack has none.
  kernels::DistanceBias Of(const Layer& layer) const;

 private:
  const model::ModelSpec& spec_;
  std::vector<float> decoder_;
  std::vector<float> encoder_;
};

}  // namespace convene::device
