#include "device/cpu/cpu_stream.h"

#include <cstring>
#include <span>

#include "device/cpu/cpu_frame.h"
#include "kernels/pack.h"
#include "tensor/finite.h"

namespace convene::device {

using kernels::Epilogue;
using weights::LayerPart;

CpuStream::CpuStream(weights::WeightStore& weights, const kernels::KernelSet& kernels,
                     hardware::ThreadPool& pool, CpuKvCache& cache, const StreamOptions& options,
                     Workspace workspace)
    : whole_spec_(options.whole_spec),
      role_(options.roles.of(options.rank).attention.value_or(strategy::AttentionRole{})),
      workspace_(std::move(workspace)),
      context_{.weights = weights,
               .kernels = kernels,
               .pool = pool,
               .workspace = workspace_,
               .statistics = statistics_,
               .wire = options.wire,
               .dense_from_rows = options.dense_from_rows,
               .comm_budget = options.comm_budget},
      attender_(context_),
      attention_(context_, cache, attender_, options),
      cross_attention_(context_, cache, attender_),
      partial_sums_(context_, role_),
      feed_forward_(context_, options.roles.divides_dense() ? &partial_sums_ : nullptr) {}

void CpuStream::Begin(Frame& frame) { CpuFrameOf(frame).angles.Compute(frame.rows, context_.pool); }

Status CpuStream::Embed(bool encoder, Frame& frame) {
  const auto embedding = context_.weights.LeaseEmbedding(encoder);
  if (!embedding) return embedding.error();
  const OwnRows own = frame.own();
  context_.pool.ParallelFor(own.count, [&](int64_t i, int) {
    const int64_t row = own.first + i;
    float* hidden = ActivationsOf(frame).hidden.floats(row);
    kernels::UnpackRow(**embedding, frame.rows.token(row), hidden);
    const float scale = context_.spec().embedding_scale;
    if (scale == 1) return;
    for (int column = 0; column < context_.spec().hidden_size; ++column) hidden[column] *= scale;
  });
  return {};
}

void CpuStream::Normalize(const Layer& layer, bool cross, Frame& frame) {
  context_.Normalize(context_.weights.AttentionNorm(layer.id(), cross), frame.own(),
                     /*also_float=*/false, ActivationsOf(frame));
}

void CpuStream::NormalizeFinal(bool encoder, Frame& frame) {
  context_.Normalize(context_.weights.FinalNorm(encoder), frame.own(), /*also_float=*/encoder,
                     ActivationsOf(frame));
}

void CpuStream::MoveWanted(OwnRows wanted, Frame& frame) {
  const RowBuffer& hidden = ActivationsOf(frame).hidden;
  for (int i = wanted.first; i < wanted.first + wanted.count; ++i) {
    std::memmove(hidden.row(i), hidden.row(frame.rows.wanted()[i]), hidden.stride_bytes);
  }
}

Status CpuStream::Project(const Layer& layer, Frame& frame) {
  if (Status projected = attention_.Project(layer, frame); !projected) return projected;
  partial_sums_.SumSquares(frame, layer.spec.attention);
  return {};
}

Status CpuStream::Attend(const Layer& layer, const AttentionTask& task, Frame& frame) {
  const bool is_divided = role_.parts > 1;
  const model::AttentionSpec& local = layer.spec.attention;
  const auto leased = context_.weights.LeaseLayer(
      layer.id(), task.cross ? LayerPart::kCrossAttention : LayerPart::kAttention);
  if (!leased) return leased.error();
  const weights::LayerWeights& weights = **leased;
  if (!is_divided) Normalize(layer, task.cross, frame);
  int num_out = 0;
  if (task.cross) {
    num_out = cross_attention_.Run(layer, weights, frame, task.only_wanted);
  } else if (is_divided && local.qk_norm == model::QkNorm::kWholeProjection) {
    const model::AttentionSpec& whole = whole_spec_.layers[layer.index].attention;
    partial_sums_.NormalizeWhole(frame, local, whole, weights.query_norm, weights.key_norm);
    num_out = attention_.Attend(layer, weights, frame, task.only_wanted, /*is_normed=*/true);
  } else {
    if (Status projected = attention_.Project(layer, frame); !projected) return projected;
    num_out = attention_.Attend(layer, weights, frame, task.only_wanted, /*is_normed=*/false);
  }

  const Activations& buffers = ActivationsOf(frame);
  const auto output = [&](Epilogue epilogue, float scale, const RowBuffer& out) {
    const std::span<const float> no_bias;
    context_.Multiply(task.cross ? weights.cross->output : weights.output, buffers.attention_out,
                      num_out, epilogue, out, task.cross ? no_bias : weights.output_bias,
                      {.scale = scale});
  };
  if (is_divided) {
    output(Epilogue::kStore, 1, buffers.partial_out);
    partial_sums_.Pack(frame, num_out);
    return {};
  }
  if (task.only_wanted && !task.cross) MoveWanted({0, num_out}, frame);
  output(Epilogue::kAdd, context_.spec().residual_scale, buffers.hidden);
  return {};
}

Status CpuStream::BeginAttention(const Layer& layer, Frame& frame) {
  const auto leased = context_.weights.LeaseLayer(layer.id(), LayerPart::kAttention);
  if (!leased) return leased.error();
  Normalize(layer, /*cross=*/false, frame);
  if (Status projected = attention_.Project(layer, frame); !projected) return projected;
  attention_.Prepare(layer, **leased, frame);
  return {};
}

Status CpuStream::AttendSequences(const Layer& layer, SequenceRange sequences, bool only_wanted,
                                  Frame& frame) {
  const auto leased = context_.weights.LeaseLayer(layer.id(), LayerPart::kAttention);
  if (!leased) return leased.error();
  attention_.AttendSequences(layer, **leased, frame, sequences, only_wanted);
  return {};
}

Status CpuStream::EndAttention(const Layer& layer, bool only_wanted, Frame& frame) {
  const auto leased = context_.weights.LeaseLayer(layer.id(), LayerPart::kAttention);
  if (!leased) return leased.error();
  const weights::LayerWeights& weights = **leased;
  const int num_out = attention_.Narrow(layer, frame, only_wanted);
  if (only_wanted) MoveWanted({0, num_out}, frame);
  const Activations& buffers = ActivationsOf(frame);
  context_.Multiply(weights.output, buffers.attention_out, num_out, Epilogue::kAdd, buffers.hidden,
                    weights.output_bias, {.scale = context_.spec().residual_scale});
  return {};
}

void CpuStream::FetchRouting(Frame& frame) {
  CpuFrameOf(frame).experts.swap(frame.experts);
  CpuFrameOf(frame).expert_weights.swap(frame.expert_weights);
  frame.predicted.clear();
  CpuFrameOf(frame).predicted.swap(frame.predicted);
}

// The host has all logits anyway.
Status CpuStream::Head(std::span<const HeadRow> rows, bool /*largest_suffices*/) {
  const auto head = context_.weights.LeaseHead();
  if (!head) return head.error();
  for (int64_t i = 0; i < std::ssize(rows); ++i) {
    const HeadRow& row = rows[i];
    const std::byte* from =
        row.received != nullptr
            ? row.received
            : static_cast<const CpuFrame*>(row.memory)->activations.normed.row(row.row);
    std::memcpy(workspace_.wanted.row(i), from, workspace_.wanted.stride_bytes);
  }
  context_.Multiply(**head, workspace_.wanted, static_cast<int>(rows.size()), Epilogue::kStore,
                    workspace_.logits, {}, {.scale = context_.spec().logits_scale});
  return {};
}

FetchedLogits CpuStream::FetchLogits() {
  return {.rows = {workspace_.logits.floats(0), workspace_.logits.stride_bytes / 4}};
}

bool CpuStream::FetchAllFinite(const Frame& frame) {
  const OwnRows own = frame.own();
  const auto hidden_size = static_cast<size_t>(context_.spec().hidden_size);
  for (int row = own.first; row < own.first + own.count; ++row) {
    const float* hidden = ActivationsOf(frame).hidden.floats(row);
    if (!tensor::AllFinite(std::span(hidden, hidden_size))) return false;
  }
  return true;
}

}  // namespace convene::device
