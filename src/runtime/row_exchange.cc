#include "runtime/row_exchange.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "kernels/route.h"
#include "runtime/expert_rows.h"
#include "runtime/frame.h"

namespace convene::runtime {
namespace {

using Send = std::vector<std::span<const std::byte>>;
using Receive = std::vector<std::span<std::byte>>;

std::span<std::byte> RowsOf(const RowBuffer& buffer, OwnRows rows) {
  return {buffer.row(rows.first), static_cast<size_t>(rows.count * buffer.stride_bytes)};
}

// Complete when both are.
class BothExchanges : public comm::Exchange {
 public:
  BothExchanges(std::unique_ptr<comm::Exchange> first, std::unique_ptr<comm::Exchange> second)
      : first_(std::move(first)), second_(std::move(second)) {}

  bool Test() override {
    const bool first_done = first_->Test();
    return second_->Test() && first_done;
  }

 private:
  std::unique_ptr<comm::Exchange> first_;
  std::unique_ptr<comm::Exchange> second_;
};

// Partial sums are not rounded to bytes.
comm::WireFormat SumFormat(comm::WireFormat wire) {
  return wire == comm::WireFormat::kF32 ? wire : comm::WireFormat::kBf16;
}

}  // namespace

RowBuffers RowExchange::TakeBuffers(const model::ModelSpec& spec,
                                    kernels::ActivationFormat activations, const Options& options,
                                    ExchangeMemory& memory) {
  const strategy::Roles& roles = options.roles;
  const auto hidden = static_cast<size_t>(spec.hidden_size);
  RowBuffers buffers;
  const int64_t parts = roles.attention_parts();
  if (parts > 1) {
    const auto sum_bytes = static_cast<int64_t>(comm::RowBytes(SumFormat(options.wire), hidden));
    buffers.squares = memory.TakeFloats(parts * options.most_tokens * 2);
    buffers.sums_out = memory.Take(options.most_tokens * sum_bytes);
    buffers.sums_in = memory.Take(parts * options.most_rows * sum_bytes);
  }
  buffers.gathered.resize(static_cast<size_t>(roles.num_ranks()));
  // An encoder's states are gathered as floats.
  int64_t row_bytes = RowStride(activations, spec.hidden_size);
  if (spec.has_encoder()) {
    row_bytes = std::max(row_bytes, RowStride(kernels::ActivationFormat::kF32, spec.hidden_size));
  }
  for (int other = 1; options.rank == 0 && other < roles.num_ranks(); ++other) {
    buffers.gathered[other] = memory.Take(options.most_rows * row_bytes);
  }
  return buffers;
}

RowExchange::RowExchange(ForwardContext& context, const Options& options, comm::Group* group)
    : context_(context),
      roles_(options.roles),
      rank_(options.rank),
      wire_(SumFormat(options.wire)),
      group_(group) {}

std::unique_ptr<comm::Exchange> RowExchange::StartGatherNormed(const Frame& frame,
                                                               std::string what) {
  Send send(static_cast<size_t>(roles_.num_ranks()));
  Receive receive(send.size());
  const RowBuffer& normed = frame.activations.normed;
  for (int part = 0; part < own().parts; ++part) {
    const int rank = RankOfPart(part);
    if (rank == rank_) continue;
    send[rank] = RowsOf(normed, frame.own());
    receive[rank] = RowsOf(normed, frame.owners[part]);
  }
  return group_->StartAllToAll(kDispatchQueue, send, receive, std::move(what));
}

void RowExchange::SumSquares(const Frame& frame, const model::AttentionSpec& local) {
  const int num_rows = frame.rows.num_rows();
  const size_t num_floats = static_cast<size_t>(own().parts) * num_rows * 2;
  CHECK(num_floats <= frame.row_buffers.squares.size(), "{} sums of {}", num_floats,
        frame.row_buffers.squares.size());
  const Activations& buffers = frame.activations;
  float* sums = frame.row_buffers.squares.data() + static_cast<size_t>(own().part) * num_rows * 2;
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

std::unique_ptr<comm::Exchange> RowExchange::StartNormSums(const Frame& frame, std::string what) {
  const int num_rows = frame.rows.num_rows();
  Send send(static_cast<size_t>(roles_.num_ranks()));
  Receive receive(send.size());
  const size_t count = static_cast<size_t>(num_rows) * 2;
  const auto part_of = [&](int part) {
    return frame.row_buffers.squares.subspan(part * count, count);
  };
  for (int part = 0; part < own().parts; ++part) {
    const int rank = RankOfPart(part);
    if (rank == rank_) continue;
    send[rank] = std::as_bytes(part_of(own().part));
    receive[rank] = std::as_writable_bytes(part_of(part));
  }
  return group_->StartAllToAll(kDispatchQueue, send, receive, std::move(what));
}

void RowExchange::NormalizeWhole(const Frame& frame, const model::AttentionSpec& local,
                                 const model::AttentionSpec& whole,
                                 std::span<const float> query_norm,
                                 std::span<const float> key_norm) {
  const int num_rows = frame.rows.num_rows();
  const Activations& buffers = frame.activations;
  const float epsilon = context_.spec().norm.epsilon;
  const auto normalize = [](float* x, std::span<const float> weight, float inverse) {
    for (size_t i = 0; i < weight.size(); ++i) x[i] = x[i] * inverse * weight[i];
  };
  context_.pool.ParallelFor(
      num_rows,
      [&](int64_t row, int) {
        double queries = 0;
        double keys = 0;
        for (int part = 0; part < own().parts; ++part) {
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

void RowExchange::PackPartials(const Frame& frame) {
  const OwnRows last = frame.owners.back();
  const int num_rows = last.first + last.count;
  const auto hidden_size = static_cast<size_t>(context_.spec().hidden_size);
  CHECK(num_rows * row_bytes() <= frame.row_buffers.sums_out.size() &&
            static_cast<size_t>(own().parts) * frame.own().count * row_bytes() <=
                frame.row_buffers.sums_in.size(),
        "{} rows, {} of them here", num_rows, frame.own().count);
  context_.pool.ParallelFor(
      num_rows,
      [&](int64_t row, int) {
        comm::EncodeRow(wire_, {frame.activations.partial_out.floats(row), hidden_size},
                        &frame.row_buffers.sums_out[row * row_bytes()]);
      },
      16);
}

std::unique_ptr<comm::Exchange> RowExchange::StartScatterSums(const Frame& frame,
                                                              std::string what) {
  Send send(static_cast<size_t>(roles_.num_ranks()));
  Receive receive(send.size());
  const size_t own_bytes = frame.own().count * row_bytes();
  for (int part = 0; part < own().parts; ++part) {
    const int rank = RankOfPart(part);
    if (rank == rank_) continue;
    send[rank] = frame.row_buffers.sums_out.subspan(frame.owners[part].first * row_bytes(),
                                                    frame.owners[part].count * row_bytes());
    receive[rank] = frame.row_buffers.sums_in.subspan(part * own_bytes, own_bytes);
  }
  return group_->StartAllToAll(kDispatchQueue, send, receive, std::move(what));
}

void RowExchange::AddPartials(const Frame& frame, float scale) {
  const auto hidden_size = static_cast<size_t>(context_.spec().hidden_size);
  const int num_parts = own().parts;
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
          if (part == own().part) {
            parts[part] = frame.activations.partial_out.floats(frame.own().first + i);
            continue;
          }
          const size_t row = static_cast<size_t>(part) * frame.own().count + i;
          comm::DecodeRow(wire_, &frame.row_buffers.sums_in[row * row_bytes()],
                          {unpacked, hidden_size});
          parts[part] = unpacked;
        }
        context_.kernels.combine({.rows = parts.data(),
                                  .weights = ones.data(),
                                  .merges = merges.data(),
                                  .count = num_parts,
                                  .scale = scale,
                                  .out = frame.activations.hidden.floats(frame.own().first + i),
                                  .size = static_cast<int>(hidden_size)});
      },
      4);
}

std::unique_ptr<comm::Exchange> RowExchange::StartGatherRows(const Frame& frame,
                                                             const RowBuffer& buffer,
                                                             std::span<uint32_t> statuses) {
  Send send(static_cast<size_t>(roles_.num_ranks()));
  Receive receive(send.size());
  if (rank_ != 0) {
    if (!frame.rows.wanted().empty()) send[0] = RowsOf(buffer, frame.own());
  } else {
    for (int rank = 1; rank < roles_.num_ranks(); ++rank) {
      const auto size = static_cast<size_t>(frame.wanted_counts[rank] * buffer.stride_bytes);
      CHECK(size <= frame.row_buffers.gathered[rank].size(), "{} rows of rank {}",
            frame.wanted_counts[rank], rank);
      receive[rank] = frame.row_buffers.gathered[rank].first(size);
    }
  }
  auto rows = group_->StartAllToAll(kDispatchQueue, send, receive, "gathering rows of the output");
  for (int rank = 0; rank < roles_.num_ranks(); ++rank) {
    send[rank] = {};
    receive[rank] = {};
    if (rank == rank_) continue;
    static_assert(sizeof(uint32_t) == strategy::kStatusBytes);
    send[rank] = std::as_bytes(statuses.subspan(static_cast<size_t>(rank_), 1));
    receive[rank] = std::as_writable_bytes(statuses.subspan(static_cast<size_t>(rank), 1));
  }
  return std::make_unique<BothExchanges>(
      std::move(rows), group_->StartAllToAll(kDispatchQueue, send, receive, "ending a step"));
}

const std::byte* RowExchange::GatheredRow(const Frame& frame, const RowBuffer& buffer, int rank,
                                          int row_idx) const {
  if (rank == 0) return buffer.row(frame.own().first + row_idx);
  return frame.row_buffers.gathered[rank].data() + row_idx * buffer.stride_bytes;
}

}  // namespace convene::runtime
