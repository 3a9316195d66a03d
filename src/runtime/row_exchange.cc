#include "runtime/row_exchange.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "kernels/route.h"
#include "runtime/expert_rows.h"

namespace convene::runtime {
namespace {

using Send = std::vector<std::span<const std::byte>>;
using Receive = std::vector<std::span<std::byte>>;

std::span<std::byte> RowsOf(const RowBuffer& buffer, OwnRows rows) {
  return {buffer.row(rows.first), static_cast<size_t>(rows.count * buffer.stride_bytes)};
}

// Partial sums are not rounded to bytes.
comm::WireFormat SumFormat(comm::WireFormat wire) {
  return wire == comm::WireFormat::kF32 ? wire : comm::WireFormat::kBf16;
}

}  // namespace

RowExchange::Buffers RowExchange::TakeBuffers(const model::ModelSpec& spec,
                                              kernels::ActivationFormat activations,
                                              const Options& options, int num_threads,
                                              ExchangeMemory& memory) {
  const strategy::Layout& layout = options.layout;
  const auto hidden = static_cast<size_t>(spec.hidden_size);
  Buffers buffers;
  if (layout.attention_tp > 1) {
    const auto sum_bytes = static_cast<int64_t>(comm::RowBytes(SumFormat(options.wire), hidden));
    const int64_t parts = layout.attention_tp;
    buffers.squares = memory.TakeFloats(parts * options.most_tokens * 2);
    buffers.sums_out = memory.Take(options.most_tokens * sum_bytes);
    buffers.sums_in = memory.Take(parts * options.most_rows * sum_bytes);
    buffers.unpacked = memory.TakeFloats(num_threads * parts * spec.hidden_size);
  }
  buffers.gathered.resize(static_cast<size_t>(layout.num_ranks()));
  // An encoder's states are gathered as floats.
  int64_t row_bytes = Activations::RowStride(activations, spec.hidden_size);
  if (spec.has_encoder()) {
    row_bytes = std::max(row_bytes,
                         Activations::RowStride(kernels::ActivationFormat::kF32, spec.hidden_size));
  }
  for (int other = 1; options.rank == 0 && other < layout.num_ranks(); ++other) {
    buffers.gathered[other] = memory.Take(options.most_rows * row_bytes);
  }
  return buffers;
}

int64_t RowExchange::MemoryBytes(const model::ModelSpec& spec,
                                 kernels::ActivationFormat activations, const Options& options,
                                 int num_threads) {
  ExchangeMemory counted;
  TakeBuffers(spec, activations, options, num_threads, counted);
  return counted.used_bytes();
}

RowExchange::RowExchange(ForwardContext& context, const Options& options, comm::Group* group,
                         ExchangeMemory& memory)
    : context_(context),
      layout_(options.layout),
      rank_(options.rank),
      wire_(SumFormat(options.wire)),
      group_(group),
      owners_(static_cast<size_t>(options.layout.attention_tp)),
      buffers_(TakeBuffers(context.spec(), context.activations.format, options, context.pool.size(),
                           memory)) {}

std::unique_ptr<comm::Exchange> RowExchange::StartGatherNormed(std::string what) {
  Send send(static_cast<size_t>(layout_.num_ranks()));
  Receive receive(send.size());
  const RowBuffer& normed = context_.activations.normed;
  for (int part = 0; part < layout_.attention_tp; ++part) {
    const int rank = first_rank() + part;
    if (rank == rank_) continue;
    send[rank] = RowsOf(normed, own());
    receive[rank] = RowsOf(normed, owners_[part]);
  }
  return group_->StartAllToAll(kDispatchQueue, send, receive, std::move(what));
}

void RowExchange::SumSquares(const model::AttentionSpec& local, int num_rows) {
  const size_t num_floats = static_cast<size_t>(layout_.attention_tp) * num_rows * 2;
  CHECK(num_floats <= buffers_.squares.size(), "{} sums of {}", num_floats,
        buffers_.squares.size());
  const Activations& buffers = context_.activations;
  float* sums =
      buffers_.squares.data() + static_cast<size_t>(layout_.attention_part(rank_)) * num_rows * 2;
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

std::unique_ptr<comm::Exchange> RowExchange::StartNormSums(int num_rows, std::string what) {
  Send send(static_cast<size_t>(layout_.num_ranks()));
  Receive receive(send.size());
  const size_t count = static_cast<size_t>(num_rows) * 2;
  const auto part_of = [&](int part) { return buffers_.squares.subspan(part * count, count); };
  for (int part = 0; part < layout_.attention_tp; ++part) {
    const int rank = first_rank() + part;
    if (rank == rank_) continue;
    send[rank] = std::as_bytes(part_of(layout_.attention_part(rank_)));
    receive[rank] = std::as_writable_bytes(part_of(part));
  }
  return group_->StartAllToAll(kDispatchQueue, send, receive, std::move(what));
}

void RowExchange::NormalizeWhole(const model::AttentionSpec& local,
                                 const model::AttentionSpec& whole,
                                 std::span<const float> query_norm, std::span<const float> key_norm,
                                 int num_rows) {
  const Activations& buffers = context_.activations;
  const float epsilon = context_.spec().norm.epsilon;
  const auto normalize = [](float* x, std::span<const float> weight, float inverse) {
    for (size_t i = 0; i < weight.size(); ++i) x[i] = x[i] * inverse * weight[i];
  };
  context_.pool.ParallelFor(
      num_rows,
      [&](int64_t row, int) {
        double queries = 0;
        double keys = 0;
        for (int part = 0; part < layout_.attention_tp; ++part) {
          const float* sums = &buffers_.squares[(static_cast<size_t>(part) * num_rows + row) * 2];
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

void RowExchange::PackPartials() {
  const OwnRows last = owners_.back();
  const int num_rows = last.first + last.count;
  const auto hidden_size = static_cast<size_t>(context_.spec().hidden_size);
  CHECK(num_rows * row_bytes() <= buffers_.sums_out.size() &&
            static_cast<size_t>(layout_.attention_tp) * own().count * row_bytes() <=
                buffers_.sums_in.size(),
        "{} rows, {} of them here", num_rows, own().count);
  context_.pool.ParallelFor(
      num_rows,
      [&](int64_t row, int) {
        comm::EncodeRow(wire_, {context_.activations.partial_out.floats(row), hidden_size},
                        &buffers_.sums_out[row * row_bytes()]);
      },
      16);
}

std::unique_ptr<comm::Exchange> RowExchange::StartScatterSums(std::string what) {
  Send send(static_cast<size_t>(layout_.num_ranks()));
  Receive receive(send.size());
  const size_t own_bytes = own().count * row_bytes();
  for (int part = 0; part < layout_.attention_tp; ++part) {
    const int rank = first_rank() + part;
    if (rank == rank_) continue;
    send[rank] = buffers_.sums_out.subspan(owners_[part].first * row_bytes(),
                                           owners_[part].count * row_bytes());
    receive[rank] = buffers_.sums_in.subspan(part * own_bytes, own_bytes);
  }
  return group_->StartAllToAll(kDispatchQueue, send, receive, std::move(what));
}

void RowExchange::AddPartials(float scale) {
  const auto hidden_size = static_cast<size_t>(context_.spec().hidden_size);
  const int num_parts = layout_.attention_tp;
  CHECK(num_parts <= kernels::kMaxTopK, "{} parts", num_parts);
  std::array<int32_t, kernels::kMaxTopK> order;
  std::array<float, kernels::kMaxTopK> ones;
  std::array<kernels::Merge, kernels::kMaxTopK> merges;
  for (int part = 0; part < num_parts; ++part) order[part] = part;
  ones.fill(1);
  kernels::TreeMerges(order.data(), num_parts, merges.data());
  context_.pool.ParallelFor(
      own().count,
      [&](int64_t i, int thread_idx) {
        std::array<const float*, kernels::kMaxTopK> parts;
        float* unpacked =
            &buffers_.unpacked[static_cast<size_t>(thread_idx) * num_parts * hidden_size];
        for (int part = 0; part < num_parts; ++part, unpacked += hidden_size) {
          if (part == layout_.attention_part(rank_)) {
            parts[part] = context_.activations.partial_out.floats(own().first + i);
            continue;
          }
          const size_t row = static_cast<size_t>(part) * own().count + i;
          comm::DecodeRow(wire_, &buffers_.sums_in[row * row_bytes()], {unpacked, hidden_size});
          parts[part] = unpacked;
        }
        context_.kernels.combine({.rows = parts.data(),
                                  .weights = ones.data(),
                                  .merges = merges.data(),
                                  .count = num_parts,
                                  .scale = scale,
                                  .out = context_.activations.hidden.floats(own().first + i),
                                  .size = static_cast<int>(hidden_size)});
      },
      4);
}

std::unique_ptr<comm::Exchange> RowExchange::StartGatherRows(const RowBuffer& buffer,
                                                             int num_wanted,
                                                             std::span<const int> counts) {
  Send send(static_cast<size_t>(layout_.num_ranks()));
  Receive receive(send.size());
  if (rank_ != 0) {
    if (num_wanted > 0) send[0] = RowsOf(buffer, own());
  } else {
    for (int rank = 1; rank < layout_.num_ranks(); ++rank) {
      const auto size = static_cast<size_t>(counts[rank] * buffer.stride_bytes);
      CHECK(size <= buffers_.gathered[rank].size(), "{} rows of rank {}", counts[rank], rank);
      receive[rank] = buffers_.gathered[rank].first(size);
    }
  }
  return group_->StartAllToAll(kDispatchQueue, send, receive, "gathering rows of the output");
}

const std::byte* RowExchange::GatheredRow(const RowBuffer& buffer, int rank, int row_idx) const {
  if (rank == 0) return buffer.row(own().first + row_idx);
  return buffers_.gathered[rank].data() + row_idx * buffer.stride_bytes;
}

}  // namespace convene::runtime
