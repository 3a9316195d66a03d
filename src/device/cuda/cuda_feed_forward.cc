// The half of a layer behind attention, of CudaStream: dense blocks, routing and experts.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_stream.h"
#include "device/epilogue_of.h"
#include "kernels/cuda/routing.h"
#include "kernels/cuda/rows.h"
#include "kernels/packed_matrix.h"

namespace convene::device {

using kernels::Epilogue;
using kernels::cuda::Bf16;

void CudaStream::RunFfn(const CudaFfn& ffn, const model::ActivationSpec& activation,
                        const CudaRows<Bf16>& x, int num_rows, const int32_t* first_row,
                        Epilogue epilogue, float scale, const CudaRows<float>& out,
                        double num_read) {
  if (num_rows == 0) return;
  const double of_one = static_cast<double>(ffn.up.matrix_stride + ffn.down.matrix_stride);
  statistics_.weight_bytes += static_cast<int64_t>(num_read * of_one * sizeof(Bf16));
  statistics_.flops +=
      2.0 * num_rows * ffn.intermediate * ffn.up.cols * (activation.gated() ? 3 : 2);
  const CudaRows<Bf16> intermediate{workspace_.intermediate.data,
                                    kernels::PaddedDepth(ffn.intermediate)};
  kernels::cuda::Multiply({.weights = ffn.up,
                           .bias = ffn.up_bias,
                           .x = x.data,
                           .x_stride = x.stride,
                           .num_rows = num_rows,
                           .first_row = first_row,
                           .epilogue = EpilogueOf(activation),
                           .parameters = {.limit = activation.limit, .alpha = activation.alpha},
                           .out = intermediate.data,
                           .out_stride = intermediate.stride,
                           .columns = ffn.intermediate},
                          stream_);
  kernels::cuda::Multiply({.weights = ffn.down,
                           .bias = ffn.down_bias,
                           .x = intermediate.data,
                           .x_stride = intermediate.stride,
                           .num_rows = num_rows,
                           .first_row = first_row,
                           .first_row_is_known = true,
                           .epilogue = epilogue,
                           .parameters = {.scale = scale},
                           .out = out.data,
                           .out_stride = out.stride,
                           .columns = spec().hidden_size},
                          stream_);
}

Status CudaStream::Dense(const Layer& layer, Frame& frame) {
  if (graphs_.replays()) return {};
  const CudaActivations& buffers = CudaFrameOf(frame).activations;
  const CudaLayer& weights = WeightsOf(layer);
  const int num_rows = frame.own().count;
  if (Status brought = weights_.BringDense(layer.id(), store_, stream_); !brought) return brought;
  NormalizeRows(weights.ffn_norm, frame);
  CudaFrameOf(frame).normed_by = nullptr;
  RunFfn(*weights.dense, layer.spec.dense_activation, buffers.normed, num_rows, nullptr,
         Epilogue::kAdd, spec().residual_scale, buffers.hidden);
  return Enqueued("a dense block");
}

Status CudaStream::Shared(const Layer& layer, Frame& frame) {
  if (graphs_.replays()) return {};
  const CudaActivations& buffers = CudaFrameOf(frame).activations;
  RunFfn(*WeightsOf(layer).moe->shared, layer.spec.moe->activation, buffers.normed,
         frame.own().count, nullptr, Epilogue::kStore, 1, buffers.shared_out);
  return Enqueued("a shared expert");
}

Status CudaStream::ChooseExperts(const Layer& layer, Frame& frame) {
  CudaFrame& at = CudaFrameOf(frame);
  const CudaActivations& buffers = at.activations;
  const CudaLayer& weights = WeightsOf(layer);
  const model::MoeSpec& moe = *layer.spec.moe;
  const int num_rows = frame.own().count;
  kernels::cuda::NormRows norm = NormOf(weights.ffn_norm, frame);
  norm.out_float = buffers.normed_float.data;
  const kernels::cuda::RouterRows router{.weights = weights.moe->router,
                                         .weight_stride = spec().hidden_size,
                                         .bias = weights.moe->router_bias,
                                         .num_outputs = weights.moe->num_outputs,
                                         .size = spec().hidden_size,
                                         .x = buffers.normed_float.data,
                                         .x_stride = buffers.normed_float.stride,
                                         .num_rows = num_rows,
                                         .logits = buffers.router_logits.data,
                                         .logits_stride = buffers.router_logits.stride};
  const CudaRouting& routing = buffers.routing;
  const kernels::cuda::SelectRows select{.router = {.num_experts = moe.num_experts,
                                                    .top_k = moe.top_k,
                                                    .score = moe.score,
                                                    .correction = weights.moe->correction,
                                                    .num_expert_groups = moe.num_expert_groups,
                                                    .top_expert_groups = moe.top_expert_groups,
                                                    .group_score = moe.group_score,
                                                    .norm = moe.router_norm,
                                                    .norm_p = moe.router_norm_p,
                                                    .scale = moe.routed_scale},
                                         .logits = buffers.router_logits.data,
                                         .logits_stride = buffers.router_logits.stride,
                                         .num_rows = num_rows,
                                         .experts = routing.experts,
                                         .weights = routing.weights};
  at.normed_by = nullptr;
  at.rows_are_gathered = false;
  if (!at.routing_is_kept) {
    kernels::cuda::Normalize(norm, stream_);
    kernels::cuda::RouterLogits(router, stream_);
    kernels::cuda::SelectExpertsOfRows(select, stream_);
    return Enqueued("a router");
  }
  kernels::cuda::RouteRows route{.norm = norm,
                                 .router = router,
                                 .select = select,
                                 .group = {.experts = routing.experts,
                                           .num_rows = num_rows,
                                           .top_k = moe.top_k,
                                           .num_experts = moe.num_experts,
                                           .first_slot = routing.first_slot,
                                           .slot_row = routing.slot_row,
                                           .pair_slot = routing.pair_slot,
                                           .scratch = routing.scratch,
                                           .count = workspace_.route_count}};
  // The projections of the next layer, or the head.
  const auto next = static_cast<size_t>(layer.index) + 1;
  const kernels::cuda::WeightMatrices& read_next =
      next < weights_.layers.size() ? weights_.layers[next].qkv : weights_.head;
  constexpr int64_t kMostPrefetched = int64_t{24} << 20;  // half of the L2 cache
  route.prefetched = read_next.data;
  route.prefetched_bytes =
      std::min(kMostPrefetched, read_next.rows * read_next.row_stride * int64_t{sizeof(Bf16)});
  // Frames share the workspace: of several another one's router may come before these experts.
  if (frame.is_seen_at_end_alone) {
    route.gathered = workspace_.expert_in.data;
    route.gathered_stride = workspace_.expert_in.stride;
  }
  at.rows_are_gathered = kernels::cuda::GathersRows(route);
  kernels::cuda::Route(route, stream_);
  return Enqueued("a router");
}

Status CudaStream::RouteHere(const Layer& layer, Frame& frame) {
  CudaFrameOf(frame).routing_is_kept = true;
  if (graphs_.replays()) return {};
  return ChooseExperts(layer, frame);
}

Status CudaStream::Route(const Layer& layer, Frame& frame) {
  CudaFrame& at = CudaFrameOf(frame);
  at.routing_is_kept = false;
  if (Status chosen = ChooseExperts(layer, frame); !chosen) return chosen;
  const size_t pairs =
      static_cast<size_t>(frame.own().count) * static_cast<size_t>(layer.spec.moe->top_k);
  CHECK(pairs <= at.host_experts.size(), "{} pairs of {}", pairs, at.host_experts.size());
  frame.experts.resize(pairs);
  frame.expert_weights.resize(pairs);
  Fail(CudaStatus(cudaMemcpyAsync(at.host_experts.data(), at.activations.routing.experts,
                                  pairs * sizeof(int32_t), cudaMemcpyDeviceToHost, stream_),
                  "fetching chosen experts"));
  Fail(CudaStatus(cudaMemcpyAsync(at.host_weights.data(), at.activations.routing.weights,
                                  pairs * sizeof(float), cudaMemcpyDeviceToHost, stream_),
                  "fetching chosen experts"));
  return Enqueued("fetching chosen experts");
}

void CudaStream::FetchRouting(Frame& frame) {
  const CudaFrame& at = CudaFrameOf(frame);
  std::copy_n(at.host_experts.begin(), frame.experts.size(), frame.experts.begin());
  std::copy_n(at.host_weights.begin(), frame.expert_weights.size(), frame.expert_weights.begin());
  frame.predicted.clear();
}

Status CudaStream::Predict(const Layer&, Frame&) {
  return Internal("experts of later layers are not predicted on a GPU yet");
}

// The rows of the experts as the host has them: where it changed the routing, or cut it.
Status CudaStream::BringSlots(const Layer& layer, Frame& frame) {
  CudaFrame& at = CudaFrameOf(frame);
  const ChunkSlots& slots = frame.expert_rows.selected();
  CHECK(std::ssize(slots.first_slot) == layer.spec.moe->num_experts + 1, "{} experts",
        slots.first_slot.size());
  std::vector<int32_t> first_slot = slots.first_slot;
  for (int32_t& first : first_slot) first -= slots.first_slot.front();
  std::vector<int32_t> rows;
  for (const int32_t work_row : slots.work_row) {
    rows.push_back(work_row < 0 ? 0 : frame.expert_rows.work_rows()[work_row].row);
  }
  const auto first = at.uploads.Add(std::span<const int32_t>(first_slot));
  if (!first) return first.error();
  const auto row = at.uploads.Add(std::span<const int32_t>(rows));
  if (!row) return row.error();
  if (Status brought = at.uploads.Flush(stream_); !brought) return brought;
  CudaRouting& routing = at.activations.routing;
  Fail(CudaStatus(cudaMemcpyAsync(routing.first_slot, *first, first_slot.size() * 4,
                                  cudaMemcpyDeviceToDevice, stream_),
                  "bringing rows to experts"));
  Fail(CudaStatus(
      cudaMemcpyAsync(routing.slot_row, *row, rows.size() * 4, cudaMemcpyDeviceToDevice, stream_),
      "bringing rows to experts"));
  return failed_;
}

// Those that have rows, as far as the host knows.
std::vector<int> CudaStream::WantedExperts(const Layer& layer, const Frame& frame) {
  const bool are_known = !CudaFrameOf(frame).routing_is_kept;
  const std::vector<int32_t>& first_slot = frame.expert_rows.selected().first_slot;
  std::vector<int> wanted;
  for (int expert = 0; expert < layer.spec.moe->num_experts; ++expert) {
    const auto at = static_cast<size_t>(expert);
    if (!are_known || first_slot[at] < first_slot[at + 1]) wanted.push_back(expert);
  }
  return wanted;
}

Status CudaStream::Experts(const Layer& layer, Frame& frame) {
  if (graphs_.replays()) return {};
  const CudaFrame& at = CudaFrameOf(frame);
  const CudaActivations& buffers = at.activations;
  const model::MoeSpec& moe = *layer.spec.moe;
  int first_slot = 0;
  int num_slots = frame.own().count * moe.top_k;
  if (!at.routing_is_kept) {
    const ChunkSlots& slots = frame.expert_rows.selected();
    first_slot = slots.first_slot.front();
    num_slots = static_cast<int>(slots.work_row.size());
    if (Status brought = BringSlots(layer, frame); !brought) return brought;
  }
  CHECK(first_slot + num_slots <= buffers.num_slots, "{} slots of {}", first_slot + num_slots,
        buffers.num_slots);
  if (Status brought =
          weights_.BringExperts(layer.id(), WantedExperts(layer, frame), store_, stream_);
      !brought) {
    return brought;
  }
  if (!at.rows_are_gathered) {
    kernels::cuda::Copy({.x = buffers.normed.data,
                         .x_stride = buffers.normed.stride * int64_t{sizeof(Bf16)},
                         .from = buffers.routing.slot_row,
                         .num_rows = num_slots,
                         .bytes = buffers.normed.stride * int64_t{sizeof(Bf16)},
                         .out = workspace_.expert_in.data,
                         .out_stride = workspace_.expert_in.stride * int64_t{sizeof(Bf16)}},
                        stream_);
  }
  const CudaRows<float> out{buffers.slot_out.row(first_slot), buffers.slot_out.stride};
  const double flops_before = statistics_.flops;
  // Where the host does not know which, as many as even routing would choose.
  const double experts = moe.num_experts;
  const double num_read = at.routing_is_kept
                              ? experts * (1 - std::pow(1 - moe.top_k / experts, frame.own().count))
                              : static_cast<double>(WantedExperts(layer, frame).size());
  RunFfn(WeightsOf(layer).moe->experts, moe.activation, workspace_.expert_in, num_slots,
         buffers.routing.first_slot, Epilogue::kStore, 1, out, num_read);
  statistics_.expert_flops += statistics_.flops - flops_before;
  return Enqueued("experts");
}

void CudaStream::Reduce(std::span<const ExpertRows::Returning> sums, Frame&) {
  CHECK(sums.empty(), "{} sums for other ranks", sums.size());
}

// The pairs of each own row with the slots that the host gave them.
Status CudaStream::BringPairs(const Layer& layer, Frame& frame) {
  CudaFrame& at = CudaFrameOf(frame);
  const auto top_k = static_cast<size_t>(layer.spec.moe->top_k);
  const auto num_rows = static_cast<size_t>(frame.own().count);
  // A row that has fewer experts gets some that count for nothing.
  std::vector<int32_t> experts(num_rows * top_k, layer.spec.moe->num_experts);
  std::vector<int32_t> slots(num_rows * top_k, 0);
  std::vector<float> weights(num_rows * top_k, 0);
  for (size_t row = 0; row < num_rows; ++row) {
    const WorkRow* const work = frame.expert_rows.own_work(static_cast<int>(row));
    if (work == nullptr) continue;
    std::vector<ExpertPair> pairs(
        frame.expert_rows.pairs().begin() + work->first_pair,
        frame.expert_rows.pairs().begin() + work->first_pair + work->num_pairs);
    std::ranges::sort(pairs, {}, &ExpertPair::expert);
    for (size_t i = 0; i < pairs.size(); ++i) {
      experts[row * top_k + i] = pairs[i].expert;
      slots[row * top_k + i] = pairs[i].slot;
      weights[row * top_k + i] = pairs[i].weight;
    }
  }
  const CudaRouting& routing = at.activations.routing;
  const auto bring = [&](const auto& values, auto* to) -> Status {
    const auto added = at.uploads.Add(std::span(std::as_const(values)));
    if (!added) return added.error();
    if (Status brought = at.uploads.Flush(stream_); !brought) return brought;
    return CudaStatus(
        cudaMemcpyAsync(to, *added, values.size() * 4, cudaMemcpyDeviceToDevice, stream_),
        "bringing the experts of rows");
  };
  if (Status done = bring(experts, routing.experts); !done) return done;
  if (Status done = bring(slots, routing.pair_slot); !done) return done;
  return bring(weights, routing.weights);
}

void CudaStream::Finish(const Layer& layer, Frame& frame) {
  if (graphs_.replays()) return;
  CudaFrame& at = CudaFrameOf(frame);
  const CudaActivations& buffers = at.activations;
  const model::MoeSpec& moe = *layer.spec.moe;
  if (!at.routing_is_kept) Fail(BringPairs(layer, frame));
  // What comes next begins with the norm of these rows.
  const auto next = static_cast<size_t>(layer.index) + 1;
  at.normed_by =
      next < weights_.layers.size() ? weights_.layers[next].attention_norm : weights_.final_norm;
  const bool has_shared = moe.shared_intermediate_size > 0;
  kernels::cuda::CombineAndNormalize(
      {.experts = buffers.routing.experts,
       .weights = buffers.routing.weights,
       .pair_slot = buffers.routing.pair_slot,
       .num_rows = frame.own().count,
       .top_k = moe.top_k,
       .size = spec().hidden_size,
       .slot_out = buffers.slot_out.data,
       .slot_stride = buffers.slot_out.stride,
       .shared = has_shared ? buffers.shared_out.data : nullptr,
       .shared_stride = buffers.shared_out.stride,
       .gate_logits =
           moe.shared_expert_gate ? buffers.router_logits.data + moe.num_experts : nullptr,
       .gate_stride = buffers.router_logits.stride,
       .scale = spec().residual_scale,
       .hidden = buffers.hidden.data,
       .hidden_stride = buffers.hidden.stride},
      NormOf(at.normed_by, frame), stream_);
  Fail(Enqueued("the sum of experts"));
}

}  // namespace convene::device
