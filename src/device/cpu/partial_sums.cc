#include "device/cpu/partial_sums.h"

#include <array>
#include <cmath>

#include "base/check.h"
#include "device/cpu/cpu_frame.h"
#include "kernels/route.h"

namespace convene::device {

void PartialSums::SumSquares(const Frame& frame, const model::AttentionSpec& local) {
  const int num_rows = frame.rows.num_rows();
  const size_t num_floats = static_cast<size_t>(own_.parts) * num_rows * 2;
  CHECK(num_floats <= frame.row_buffers.squares.size(), "{} sums of {}", num_floats,
        frame.row_buffers.squares.size());
  const Activations& buffers = ActivationsOf(frame);
  float* sums = frame.row_buffers.squares.data() + static_cast<size_t>(own_.part) * num_rows * 2;
  const auto sum_of = [](const float* x, int count) {
    float sum = 0;
    for (int i = 0; i < count; ++i) sum += x[i] * x[i];
    return sum;
  };
  context_.pool.ParallelFor(
      num_rows,
      [&](int64_t row, int) {
        const float* qkv = buffers.qkv.floats(row);
        sums[2 * row] = sum_of(qkv, local.query_dim());
        sums[2 * row + 1] = sum_of(qkv + local.query_dim(), local.kv_dim());
      },
      16);
}

void PartialSums::NormalizeWhole(const Frame& frame, const model::AttentionSpec& local,
                                 const model::AttentionSpec& whole,
                                 std::span<const float> query_norm,
                                 std::span<const float> key_norm) {
  const int num_rows = frame.rows.num_rows();
  const Activations& buffers = ActivationsOf(frame);
  const float epsilon = context_.spec().norm.epsilon;
  const auto normalize = [](float* x, std::span<const float> weight, float inverse) {
    for (size_t i = 0; i < weight.size(); ++i) x[i] = x[i] * inverse * weight[i];
  };
  context_.pool.ParallelFor(
      num_rows,
      [&](int64_t row, int) {
        double queries = 0;
        double keys = 0;
        for (int part = 0; part < own_.parts; ++part) {
          const float* sums =
              &frame.row_buffers.squares[(static_cast<size_t>(part) * num_rows + row) * 2];
          queries += sums[0];
          keys += sums[1];
        }
        const auto inverse = [&](double sum, int size) {
          return static_cast<float>(1 / std::sqrt(sum / size + epsilon));
        };
        float* qkv = buffers.qkv.floats(row);
        normalize(qkv, query_norm, inverse(queries, whole.query_dim()));
        normalize(qkv + local.query_dim(), key_norm, inverse(keys, whole.kv_dim()));
      },
      16);
}

void PartialSums::Pack(const Frame& frame, int num_rows) {
  const int64_t row_bytes = context_.wire.sum_bytes;
  const auto hidden_size = static_cast<size_t>(context_.spec().hidden_size);
  CHECK(num_rows * row_bytes <= std::ssize(frame.row_buffers.sums_out), "{} rows", num_rows);
  context_.pool.ParallelFor(
      num_rows,
      [&](int64_t row, int) {
        comm::EncodeRow(context_.wire.sums,
                        {ActivationsOf(frame).partial_out.floats(row), hidden_size},
                        &frame.row_buffers.sums_out[row * row_bytes]);
      },
      16);
}

void PartialSums::Add(const Frame& frame) {
  const auto hidden_size = static_cast<size_t>(context_.spec().hidden_size);
  const auto row_bytes = static_cast<size_t>(context_.wire.sum_bytes);
  const int num_parts = own_.parts;
  CHECK(num_parts <= kernels::kMaxTopK, "{} parts", num_parts);
  std::array<int32_t, kernels::kMaxTopK> order;
  std::array<float, kernels::kMaxTopK> ones;
  std::array<kernels::Merge, kernels::kMaxTopK> merges;
  for (int part = 0; part < num_parts; ++part) order[part] = part;
  ones.fill(1);
  kernels::TreeMerges(order.data(), num_parts, merges.data());
  context_.pool.ParallelFor(
      frame.own().count,
      [&](int64_t i, int thread_idx) {
        std::array<const float*, kernels::kMaxTopK> parts;
        float* unpacked = context_.workspace.unpacked.floats(thread_idx);
        for (int part = 0; part < num_parts; ++part, unpacked += hidden_size) {
          if (part == own_.part) {
            parts[part] = ActivationsOf(frame).partial_out.floats(frame.own().first + i);
            continue;
          }
          const size_t row = static_cast<size_t>(part) * frame.own().count + i;
          comm::DecodeRow(context_.wire.sums, &frame.row_buffers.sums_in[row * row_bytes],
                          {unpacked, hidden_size});
          parts[part] = unpacked;
        }
        context_.kernels.combine({.rows = parts.data(),
                                  .weights = ones.data(),
                                  .merges = merges.data(),
                                  .count = num_parts,
                                  .scale = context_.spec().residual_scale,
                                  .out = ActivationsOf(frame).hidden.floats(frame.own().first + i),
                                  .size = static_cast<int>(hidden_size)});
      },
      4);
}

}  // namespace convene::device
