#include "runtime/feed_forward.h"

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>

namespace convene::runtime {
namespace {

using kernels::Epilogue;

kernels::Gate GateOf(const model::MoeSpec& moe, const weights::MoeWeights& weights) {
  kernels::Gate gate{.num_experts = moe.num_experts,
                     .top_k = moe.top_k,
                     .score = moe.score == model::RouterScore::kSigmoid
                                  ? kernels::GateScoreKind::kSigmoid
                                  : kernels::GateScoreKind::kSoftmax,
                     .num_groups = moe.num_groups,
                     .top_groups = moe.top_groups,
                     .group_score = moe.group_score == model::GroupScore::kTopTwoSum
                                        ? kernels::GroupScoreKind::kTopTwoSum
                                        : kernels::GroupScoreKind::kMax,
                     .scale = moe.routed_scale};
  if (!weights.correction_bias.empty()) gate.correction = weights.correction_bias.data();
  switch (moe.gate_norm) {
    case model::GateNorm::kNone:
      gate.norm = kernels::GateNormKind::kNone;
      break;
    case model::GateNorm::kSum:
      gate.norm = kernels::GateNormKind::kSum;
      break;
    case model::GateNorm::kPNorm:
      gate.norm = kernels::GateNormKind::kPNorm;
      gate.norm_p = moe.gate_norm_p;
      break;
  }
  return gate;
}

Epilogue EpilogueOf(const model::ActivationSpec& activation) {
  switch (activation.kind) {
    case model::Activation::kSiluMul:
      return Epilogue::kSiluMul;
    case model::Activation::kClampedSwiglu:
      return Epilogue::kClampedSwiglu;
    case model::Activation::kRelu:
      return Epilogue::kRelu;
  }
  return Epilogue::kSiluMul;
}

kernels::EpilogueParameters ParametersOf(const model::ActivationSpec& activation) {
  return {.limit = activation.limit, .alpha = activation.alpha};
}

}  // namespace

void FeedForward::Run(const model::LayerSpec& layer, const weights::LayerWeights& weights,
                      int num_rows, const CapacityStep& limit) {
  Activations& buffers = context_.activations;
  context_.Normalize(weights.ffn_norm, num_rows, /*also_float=*/layer.moe.has_value());
  if (layer.moe) {
    RunMoe(*layer.moe, *weights.moe, num_rows, limit);
    return;
  }
  RunDense(layer.dense_activation, *weights.dense, num_rows, Epilogue::kAdd,
           context_.spec().residual_scale, buffers.hidden);
}

void FeedForward::RunDense(const model::ActivationSpec& activation, const weights::FfnWeights& ffn,
                           int num_rows, Epilogue epilogue, float scale, const RowBuffer& out) {
  Activations& buffers = context_.activations;
  context_.Multiply(ffn.up, buffers.normed, num_rows, EpilogueOf(activation),
                    buffers.intermediate_wide, ffn.up_bias, ParametersOf(activation));
  context_.Narrow(buffers.intermediate_wide, num_rows, ffn.down.cols, buffers.intermediate);
  context_.Multiply(ffn.down, buffers.intermediate, num_rows, epilogue, out, ffn.down_bias,
                    {.scale = scale});
}

void FeedForward::RunMoe(const model::MoeSpec& moe, const weights::MoeWeights& weights,
                         int num_rows, const CapacityStep& limit) {
  Activations& buffers = context_.activations;
  Route(moe, weights, num_rows, limit);
  if (weights.shared) {
    RunDense(moe.activation, *weights.shared, num_rows, Epilogue::kStore, 1, buffers.shared_out);
  }
  RunExperts(moe, weights);
  Combine(moe, weights, num_rows);
}

void FeedForward::Route(const model::MoeSpec& moe, const weights::MoeWeights& weights, int num_rows,
                        const CapacityStep& limit) {
  Activations& buffers = context_.activations;
  context_.Multiply(weights.router, buffers.normed_float, num_rows, Epilogue::kStore,
                    buffers.router_logits, weights.router_bias);
  experts_.resize(size_t(num_rows) * moe.top_k);
  expert_weights_.resize(experts_.size());
  const kernels::Gate gate = GateOf(moe, weights);
  context_.pool.ParallelFor(
      num_rows,
      [&](int64_t row, int) {
        kernels::SelectExperts(gate, buffers.router_logits.floats(row), &experts_[row * moe.top_k],
                               &expert_weights_[row * moe.top_k]);
      },
      16);
  if (limit.capacity != nullptr) {
    limit.capacity->Apply(limit.layer, moe.num_experts, limit.rows, experts_, expert_weights_);
  }
  kernels::SortByExpert(moe.num_experts, moe.top_k, experts_, &dispatch_);
}

void FeedForward::RunExperts(const model::MoeSpec& moe, const weights::MoeWeights& weights) {
  const auto start = std::chrono::steady_clock::now();
  const double flops_before = context_.statistics.flops;
  Activations& buffers = context_.activations;
  const auto num_slots = static_cast<int>(dispatch_.token_of_slot.size());
  const auto gather_groups = [&](kernels::PackedMatrix weights::FfnWeights::*matrix,
                                 std::vector<float> weights::FfnWeights::*bias) {
    groups_.clear();
    for (size_t expert = 0; expert < weights.experts.size(); ++expert) {
      const int first = dispatch_.first_slot[expert];
      const int count = dispatch_.first_slot[expert + 1] - first;
      if (count == 0) continue;
      const weights::FfnWeights& ffn = weights.experts[expert];
      groups_.push_back({.weights = &(ffn.*matrix),
                         .first_row = first,
                         .num_rows = count,
                         .bias = (ffn.*bias).empty() ? nullptr : (ffn.*bias).data()});
    }
  };
  context_.pool.ParallelFor(
      num_slots,
      [&](int64_t slot, int) {
        std::memcpy(buffers.expert_in.row(slot), buffers.normed.row(dispatch_.token_of_slot[slot]),
                    buffers.normed.stride_bytes);
      },
      16);
  gather_groups(&weights::FfnWeights::up, &weights::FfnWeights::up_bias);
  context_.statistics.activated_experts += std::ssize(groups_);
  context_.MultiplyGroups(groups_, buffers.expert_in, EpilogueOf(moe.activation),
                          buffers.intermediate_wide, ParametersOf(moe.activation));
  context_.Narrow(buffers.intermediate_wide, num_slots, weights.experts.front().down.cols,
                  buffers.intermediate);
  gather_groups(&weights::FfnWeights::down, &weights::FfnWeights::down_bias);
  context_.MultiplyGroups(groups_, buffers.intermediate, Epilogue::kStore, buffers.slot_out);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  context_.statistics.expert_seconds += elapsed.count();
  context_.statistics.expert_flops += context_.statistics.flops - flops_before;
}

void FeedForward::Combine(const model::MoeSpec& moe, const weights::MoeWeights& weights,
                          int num_rows) {
  Activations& buffers = context_.activations;
  const auto combine_row = [&](int64_t row, int) {
    const int64_t first = row * moe.top_k;
    std::array<const float*, kernels::kMaxTopK> outputs;
    std::array<kernels::Merge, kernels::kMaxTopK> merges;
    for (int i = 0; i < moe.top_k; ++i) {
      outputs[i] = buffers.slot_out.floats(dispatch_.slot[first + i]);
    }
    kernels::TreeMerges(&experts_[first], moe.top_k, merges.data());
    kernels::Combine combine{.rows = outputs.data(),
                             .weights = &expert_weights_[first],
                             .merges = merges.data(),
                             .count = moe.top_k,
                             .scale = context_.spec().residual_scale,
                             .out = buffers.hidden.floats(row),
                             .size = context_.spec().hidden_size};
    if (weights.shared) combine.shared = buffers.shared_out.floats(row);
    if (moe.shared_expert_gate) {
      // The router's extra row is the shared expert's gate.
      const float logit = buffers.router_logits.floats(row)[moe.num_experts];
      combine.shared_weight = 1.0f / (1.0f + std::exp(-logit));
    }
    context_.kernels.combine(combine);
  };
  context_.pool.ParallelFor(num_rows, combine_row, 4);
}

}  // namespace convene::runtime
