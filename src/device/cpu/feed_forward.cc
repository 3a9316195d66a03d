#include "device/cpu/feed_forward.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>

#include "device/epilogue_of.h"
#include "kernels/route.h"

namespace convene::device {
namespace {

// Points into `weights`.
kernels::Router RouterOf(const model::MoeSpec& moe, const weights::MoeWeights& weights) {
  kernels::Router router{.num_experts = moe.num_experts,
                         .top_k = moe.top_k,
                         .score = moe.score,
                         .num_expert_groups = moe.num_expert_groups,
                         .top_expert_groups = moe.top_expert_groups,
                         .group_score = moe.group_score,
                         .norm = moe.router_norm,
                         .norm_p = moe.router_norm_p,
                         .scale = moe.routed_scale};
  if (!weights.correction_bias.empty()) router.correction = weights.correction_bias.data();
  return router;
}

using kernels::Epilogue;
using weights::LayerPart;

kernels::EpilogueParameters ParametersOf(const model::ActivationSpec& activation) {
  return {.limit = activation.limit, .alpha = activation.alpha};
}

// The outputs of experts on their way into one row.
struct RowSum {
  std::array<const float*, kernels::kMaxTopK> rows;
  std::array<float, kernels::kMaxTopK> weights;
  std::array<int32_t, kernels::kMaxTopK> experts;  // in increasing order
  std::array<kernels::Merge, kernels::kMaxTopK> merges;
  int count = 0;

  void Add(int32_t expert, const float* row, float weight) {
    int place = count++;
    for (; place > 0 && experts[place - 1] > expert; --place) {
      rows[place] = rows[place - 1];
      weights[place] = weights[place - 1];
      experts[place] = experts[place - 1];
    }
    rows[place] = row;
    weights[place] = weight;
    experts[place] = expert;
  }

  void Add(const ExpertRows& all, const WorkRow& work, const RowBuffer& slot_out) {
    for (int i = work.first_pair; i < work.first_pair + work.num_pairs; ++i) {
      const ExpertPair& pair = all.pairs()[i];
      Add(pair.expert, slot_out.floats(pair.slot), pair.weight);
    }
  }

  kernels::Combine Combine(float* out, size_t size) {
    kernels::TreeMerges(experts.data(), count, merges.data());
    return {.rows = rows.data(),
            .weights = weights.data(),
            .merges = merges.data(),
            .count = count,
            .out = out,
            .size = static_cast<int>(size)};
  }
};

// Of an own row: the router's extra row is the shared expert's gate.
float SharedWeight(const model::MoeSpec& moe, const Frame& frame, int row) {
  const RowBuffer& logits = ActivationsOf(frame).router_logits;
  return 1.0f / (1.0f + std::exp(-logits.floats(frame.own().first + row)[moe.num_experts]));
}

}  // namespace

Status FeedForward::Dense(const Layer& layer, Frame& frame) {
  const auto weights = context_.weights.LeaseLayer(layer.id(), LayerPart::kDense);
  if (!weights) return weights.error();
  const weights::FfnWeights& ffn = *(*weights)->dense;
  const Activations& buffers = ActivationsOf(frame);
  if (dense_sums_ != nullptr) {
    const OwnRows all = {0, frame.num_rows()};
    RunDense(layer.spec.dense_activation, ffn, all, frame, Epilogue::kStore, 1,
             buffers.partial_out);
    dense_sums_->Pack(frame, all.count);
    return {};
  }
  Normalize(layer, frame);
  RunDense(layer.spec.dense_activation, ffn, frame.own(), frame, Epilogue::kAdd,
           context_.spec().residual_scale, buffers.hidden);
  return {};
}

void FeedForward::Normalize(const Layer& layer, Frame& frame) {
  context_.Normalize(context_.weights.FfnNorm(layer.id()), frame.own(), /*also_float=*/false,
                     ActivationsOf(frame));
}

void FeedForward::RunDense(const model::ActivationSpec& activation, const weights::FfnWeights& ffn,
                           OwnRows rows, Frame& frame, Epilogue epilogue, float scale,
                           const RowBuffer& out) {
  const Workspace& workspace = context_.workspace;
  const Activations& buffers = ActivationsOf(frame);
  context_.Multiply(ffn.up, buffers.normed.From(rows.first), rows.count, EpilogueOf(activation),
                    workspace.intermediate_wide, ffn.up_bias, ParametersOf(activation));
  context_.Narrow(workspace.intermediate_wide, rows.count, ffn.down.cols, workspace.intermediate);
  context_.Multiply(ffn.down, workspace.intermediate, rows.count, epilogue, out.From(rows.first),
                    ffn.down_bias, {.scale = scale});
}

Status FeedForward::Shared(const Layer& layer, Frame& frame) {
  const auto weights = context_.weights.LeaseLayer(layer.id(), LayerPart::kShared);
  if (!weights) return weights.error();
  if (frame.visits_shared) {
    SharedSlots(layer.spec.moe->activation, *(*weights)->moe->shared, frame);
    return {};
  }
  RunDense(layer.spec.moe->activation, *(*weights)->moe->shared, frame.own(), frame,
           Epilogue::kStore, 1, ActivationsOf(frame).shared_out);
  return {};
}

void FeedForward::SharedSlots(const model::ActivationSpec& activation,
                              const weights::FfnWeights& ffn, Frame& frame) {
  const Workspace& workspace = context_.workspace;
  const ChunkSlots& slots = frame.expert_rows.selected();
  // The last expert is the shared one.
  const int first = *(slots.first_slot.end() - 2);
  const int count = slots.first_slot.back() - first;
  GatherRows(slots, first - slots.first_slot.front(), count, frame);
  context_.Multiply(ffn.up, workspace.expert_in, count, EpilogueOf(activation),
                    workspace.intermediate_wide, ffn.up_bias, ParametersOf(activation));
  context_.Narrow(workspace.intermediate_wide, count, ffn.down.cols, workspace.intermediate);
  context_.Multiply(ffn.down, workspace.intermediate, count, Epilogue::kStore,
                    ActivationsOf(frame).slot_out.From(first), ffn.down_bias);
}

Status FeedForward::Route(const Layer& layer, Frame& frame) {
  CpuFrame& routing = CpuFrameOf(frame);
  Status chosen = ChooseExperts(layer, frame, &routing.experts, &routing.expert_weights);
  const model::MoeSpec& moe = *layer.spec.moe;
  frame.shared_weights.assign(static_cast<size_t>(frame.own().count), 1);
  for (int row = 0; moe.shared_expert_gate && chosen && row < frame.own().count; ++row) {
    frame.shared_weights[static_cast<size_t>(row)] = SharedWeight(moe, frame, row);
  }
  return chosen;
}

Status FeedForward::Predict(const Layer& next, Frame& frame) {
  std::vector<float> weights;
  return ChooseExperts(next, frame, &CpuFrameOf(frame).predicted, &weights);
}

Status FeedForward::ChooseExperts(const Layer& layer, Frame& frame, std::vector<int32_t>* experts,
                                  std::vector<float>* expert_weights) {
  const auto leased = context_.weights.LeaseLayer(layer.id(), LayerPart::kRouter);
  if (!leased) return leased.error();
  const OwnRows own = frame.own();
  const Activations& buffers = ActivationsOf(frame);
  const model::MoeSpec& moe = *layer.spec.moe;
  const weights::MoeWeights& weights = *(*leased)->moe;
  context_.Normalize(context_.weights.FfnNorm(layer.id()), own, /*also_float=*/true, buffers);
  const RowBuffer logits = buffers.router_logits.From(own.first);
  context_.Multiply(weights.router, buffers.normed_float.From(own.first), own.count,
                    Epilogue::kStore, logits, weights.router_bias);
  experts->resize(size_t(own.count) * moe.top_k);
  expert_weights->resize(experts->size());
  const kernels::Router router = RouterOf(moe, weights);
  context_.pool.ParallelFor(
      own.count,
      [&](int64_t row, int) {
        kernels::SelectExperts(router, logits.floats(row), &(*experts)[row * moe.top_k],
                               &(*expert_weights)[row * moe.top_k]);
      },
      16);
  return {};
}

void FeedForward::PackDispatch(Frame& frame) {
  const OwnRows own = frame.own();
  const Activations& buffers = ActivationsOf(frame);
  const std::span<const ExpertRows::Outgoing> outgoing = frame.expert_rows.outgoing();
  const auto hidden_size = static_cast<size_t>(context_.spec().hidden_size);
  context_.pool.ParallelFor(
      std::ssize(outgoing),
      [&](int64_t i, int) {
        const int64_t row = own.first + outgoing[i].row;
        if (context_.wire.dispatch) {
          comm::EncodeRow(*context_.wire.dispatch, {buffers.normed_float.floats(row), hidden_size},
                          outgoing[i].to);
        } else {
          std::memcpy(outgoing[i].to, buffers.normed.row(row),
                      size_t(context_.wire.dispatch_bytes));
        }
      },
      16);
}

void FeedForward::UnpackRow(const std::byte* from, std::byte* to, int thread_idx) {
  if (!context_.wire.dispatch) {
    std::memcpy(to, from, size_t(context_.wire.dispatch_bytes));
    return;
  }
  const auto hidden_size = static_cast<size_t>(context_.spec().hidden_size);
  float* row = context_.workspace.unpacked.floats(thread_idx);
  comm::DecodeRow(*context_.wire.dispatch, from, {row, hidden_size});
  context_.ToActivations(row, context_.spec().hidden_size, to);
}

// The rows of some of a chunk's slots to expert_in, from its beginning.
void FeedForward::GatherRows(const ChunkSlots& slots, int first, int count, Frame& frame) {
  const OwnRows own = frame.own();
  const Workspace& workspace = context_.workspace;
  const Activations& buffers = ActivationsOf(frame);
  context_.pool.ParallelFor(
      count,
      [&](int64_t i, int thread_idx) {
        const int32_t work_row = slots.work_row[first + i];
        if (work_row < 0) return;  // padding: whatever lies there
        const WorkRow& work = frame.expert_rows.work_rows()[work_row];
        if (work.data != nullptr) {
          UnpackRow(work.data, workspace.expert_in.row(i), thread_idx);
        } else {
          std::memcpy(workspace.expert_in.row(i), buffers.normed.row(own.first + work.row),
                      buffers.normed.stride_bytes);
        }
      },
      16);
}

Status FeedForward::Experts(const Layer& layer, Frame& frame) {
  const Workspace& workspace = context_.workspace;
  const auto start = std::chrono::steady_clock::now();
  const double flops_before = context_.statistics.flops;
  const Activations& buffers = ActivationsOf(frame);
  const model::MoeSpec& moe = *layer.spec.moe;
  const ChunkSlots& slots = frame.expert_rows.selected();
  const int first_slot = slots.first_slot.front();
  CHECK(slots.first_slot.back() <= buffers.num_slots, "{} slots of {}", slots.first_slot.back(),
        buffers.num_slots);
  const strategy::Part here = context_.weights.Experts(layer.id());
  CHECK(here.first == frame.expert_rows.first_expert() &&
            here.size + (frame.visits_shared ? 1 : 0) == frame.expert_rows.num_local_experts(),
        "experts {} to {} are here", here.first, here.first + here.size - 1);
  const int num_slots = slots.first_slot[here.size] - first_slot;  // but for the shared expert's
  active_experts_.clear();
  for (int expert = 0; expert < here.size; ++expert) {
    if (slots.first_slot[expert] < slots.first_slot[expert + 1]) active_experts_.push_back(expert);
  }
  if (active_experts_.empty()) return {};
  const auto leased = context_.weights.LeaseExperts(layer.id(), active_experts_);
  if (!leased) return leased.error();
  const std::vector<weights::FfnWeights>& experts = **leased;
  const auto gather_groups = [&](kernels::PackedMatrix weights::FfnWeights::*matrix,
                                 std::vector<float> weights::FfnWeights::*bias) {
    groups_.clear();
    for (const int expert : active_experts_) {
      const int first = slots.first_slot[expert];
      const int count = slots.first_slot[expert + 1] - first;
      const weights::FfnWeights& ffn = experts[expert];
      groups_.push_back({.weights = &(ffn.*matrix),
                         .first_row = first - first_slot,
                         .num_rows = count,
                         .bias = (ffn.*bias).empty() ? nullptr : (ffn.*bias).data()});
    }
  };
  GatherRows(slots, 0, num_slots, frame);
  gather_groups(&weights::FfnWeights::up, &weights::FfnWeights::up_bias);
  context_.statistics.activated_experts += std::ssize(groups_);
  context_.MultiplyGroups(groups_, workspace.expert_in, EpilogueOf(moe.activation),
                          workspace.intermediate_wide, ParametersOf(moe.activation));
  context_.Narrow(workspace.intermediate_wide, num_slots,
                  experts[active_experts_.front()].down.cols, workspace.intermediate);
  gather_groups(&weights::FfnWeights::down, &weights::FfnWeights::down_bias);
  context_.MultiplyGroups(groups_, workspace.intermediate, Epilogue::kStore,
                          buffers.slot_out.From(first_slot));
  groups_.clear();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  context_.statistics.expert_seconds += elapsed.count();
  context_.statistics.expert_flops += context_.statistics.flops - flops_before;
  return {};
}

void FeedForward::Reduce(std::span<const ExpertRows::Returning> sums, Frame& frame) {
  const Activations& buffers = ActivationsOf(frame);
  const auto hidden_size = static_cast<size_t>(context_.spec().hidden_size);
  context_.pool.ParallelFor(
      std::ssize(sums),
      [&](int64_t i, int thread_idx) {
        float* sum = context_.workspace.unpacked.floats(thread_idx);
        std::fill_n(sum, hidden_size, 0.0f);
        RowSum row_sum;
        row_sum.Add(frame.expert_rows, frame.expert_rows.work_rows()[sums[i].work_row],
                    buffers.slot_out);
        context_.kernels.combine(row_sum.Combine(sum, hidden_size));
        comm::EncodeRow(context_.wire.returned, {sum, hidden_size}, sums[i].to);
      },
      4);
}

void FeedForward::Finish(const Layer& layer, Frame& frame) {
  const OwnRows own = frame.own();
  const Activations& buffers = ActivationsOf(frame);
  const model::MoeSpec& moe = *layer.spec.moe;
  const auto hidden_size = static_cast<size_t>(context_.spec().hidden_size);
  const bool has_shared = moe.shared_intermediate_size > 0 && !frame.visits_shared;
  context_.pool.ParallelFor(
      own.count,
      [&](int64_t row, int thread_idx) {
        RowSum row_sum;
        const WorkRow* work = frame.expert_rows.own_work(static_cast<int>(row));
        if (work != nullptr) row_sum.Add(frame.expert_rows, *work, buffers.slot_out);
        std::array<ExpertRows::Partial, kernels::kMaxTopK> partials;
        const int count = frame.expert_rows.Partials(static_cast<int>(row), partials.data());
        float* unpacked = context_.workspace.unpacked.floats(thread_idx);
        for (int i = 0; i < count; ++i, unpacked += hidden_size) {
          comm::DecodeRow(context_.wire.returned, partials[i].data, {unpacked, hidden_size});
          row_sum.Add(partials[i].expert, unpacked, 1);
        }
        kernels::Combine combine =
            row_sum.Combine(buffers.hidden.floats(own.first + row), hidden_size);
        combine.scale = context_.spec().residual_scale;
        if (has_shared) combine.shared = buffers.shared_out.floats(own.first + row);
        if (has_shared && moe.shared_expert_gate) {
          combine.shared_weight = SharedWeight(moe, frame, static_cast<int>(row));
        }
        context_.kernels.combine(combine);
      },
      4);
}

}  // namespace convene::device
