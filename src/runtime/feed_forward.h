// The feed-forward half of a layer: dense, or router, experts and shared expert.
#pragma once

#include <vector>

#include "kernels/route.h"
#include "runtime/expert_capacity.h"
#include "runtime/forward_context.h"

namespace convene::runtime {

class FeedForward {
 public:
  explicit FeedForward(ForwardContext& context) : context_(context) {}

  // Adds the layer's feed-forward to the residual stream, the first num_rows of hidden.
  // Where there is a limit to what an expert takes, it needs all rows of a step.
  void Run(const model::LayerSpec& layer, const weights::LayerWeights& weights, int num_rows,
           const CapacityStep& limit = {});

 private:
  void RunDense(const model::ActivationSpec& activation, const weights::FfnWeights& ffn,
                int num_rows, kernels::Epilogue epilogue, float scale, const RowBuffer& out);
  void RunMoe(const model::MoeSpec& moe, const weights::MoeWeights& weights, int num_rows,
              const CapacityStep& limit);
  void Route(const model::MoeSpec& moe, const weights::MoeWeights& weights, int num_rows,
             const CapacityStep& limit);
  void RunExperts(const model::MoeSpec& moe, const weights::MoeWeights& weights);
  void Combine(const model::MoeSpec& moe, const weights::MoeWeights& weights, int num_rows);

  ForwardContext& context_;
  std::vector<int32_t> experts_;       // (rows, top_k)
  std::vector<float> expert_weights_;  // (rows, top_k)
  kernels::Dispatch dispatch_;
  std::vector<kernels::GemmGroup> groups_;
};

}  // namespace convene::runtime
