#include "device/cpu/latent_attention.h"

#include <algorithm>

#include "base/check.h"
#include "device/cpu/store_kv.h"

namespace convene::device {
namespace {

using kernels::Epilogue;

}  // namespace

void LatentAttention::Run(const Layer& layer, const weights::LayerWeights& weights,
                          const Frame& frame, bool only_wanted) {
  layer_ = &layer;
  weights_ = &weights;
  frame_ = &frame;
  CacheKeys();
  DivideRows(only_wanted);
  if (!expanded_.empty() || !absorbed_.empty()) PrepareQueries();
  for (const RowRun& run : expanded_) RunExpanded(run);
  if (!absorbed_.empty()) RunAbsorbed();
  layer_ = nullptr;
  weights_ = nullptr;
  frame_ = nullptr;
}

// The projections are queries (or their latent), then the rotated part of the key and the latent.
float* LatentAttention::Query(int64_t row) const {
  const Workspace& buffers = context_.workspace;
  return latent().query_rank > 0 ? buffers.wide_queries.floats(row) : activations().qkv.floats(row);
}

void LatentAttention::CacheKeys() {
  const int first = latent().query_rank > 0 ? latent().query_rank : shape().query_dim();
  const kernels::Norm norm{.format = kernels::ActivationFormat::kF32,
                           .epsilon = latent().norm_epsilon,
                           .weight = weights_->key_norm.data(),
                           .size = latent().kv_rank};
  const kernels::QkvShape shape{.format = cache_.format(),
                                .num_kv_heads = 1,
                                .head_dim = latent().key_dim(),
                                .rotary_dim = latent().rope_dim};
  context_.pool.ParallelFor(
      rows().num_rows(),
      [&](int64_t row, int) {
        float* key = activations().qkv.floats(row) + first;
        float* cached = key + latent().rope_dim;
        context_.kernels.normalize(norm, cached, nullptr, cached);
        context_.kernels.prepare_qkv(
            shape, {.qkv = key, .cosine = angles().cosine(row), .sine = angles().sine(row)});
      },
      4);
  StoreKv(context_, cache_, layer_->cache_layer, rows(),
          {.rows = activations().qkv,
           .first_key = first,
           .num_heads = 1,
           .key_dim = latent().key_dim()});
}

void LatentAttention::PrepareQueries() {
  const Workspace& buffers = context_.workspace;
  const int64_t num_rows = rows().num_rows();
  if (latent().query_rank > 0) {
    const kernels::Norm norm{.format = buffers.format,
                             .epsilon = latent().norm_epsilon,
                             .weight = weights_->query_norm.data(),
                             .size = latent().query_rank};
    context_.pool.ParallelFor(
        num_rows,
        [&](int64_t row, int) {
          float* query = activations().qkv.floats(row);
          context_.kernels.normalize(norm, query, buffers.query_latent.row(row), query);
        },
        4);
    context_.Multiply(weights_->latent->query_up, buffers.query_latent, rows().num_rows(),
                      Epilogue::kStore, buffers.wide_queries);
  }
  const kernels::QkvShape queries{.format = cache_.format(),
                                  .num_heads = shape().num_heads,
                                  .head_dim = shape().head_dim,
                                  .rotary_dim = latent().rope_dim};
  context_.pool.ParallelFor(
      num_rows,
      [&](int64_t row, int) {
        context_.kernels.prepare_qkv(queries, {.qkv = Query(row),
                                               .cosine = angles().cosine(row),
                                               .sine = angles().sine(row),
                                               .queries = buffers.queries.row(row)});
      },
      4);
}

void LatentAttention::DivideRows(bool only_wanted) {
  expanded_.clear();
  absorbed_.clear();
  int out_row = 0;
  for (int sequence_idx = 0; sequence_idx < std::ssize(rows().step()); ++sequence_idx) {
    const SequenceStep& sequence = rows().step()[sequence_idx];
    const int end = static_cast<int>(sequence.tokens.size());
    const int begin = only_wanted ? std::min(sequence.first_logits_token, end) : 0;
    const bool expands = role_.Expands(sequence.prompt_length);
    const int prompt_end = expands ? sequence.prompt_length - sequence.first_position : 0;
    const int middle = std::clamp(prompt_end, begin, end);
    const int first_row = rows().first_row(sequence_idx);
    if (begin < middle) {
      expanded_.push_back({sequence_idx, first_row + begin, middle - begin, out_row});
    }
    if (middle < end) {
      absorbed_.push_back(
          {sequence_idx, first_row + middle, end - middle, out_row + middle - begin});
    }
    out_row += end - begin;
  }
}

void LatentAttention::RunExpanded(const RowRun& run) {
  const SequenceStep& sequence = rows().step()[run.sequence_idx];
  const int end = rows().position(run.first_row + run.num_rows - 1) + 1;
  const int num_heads = shape().num_heads;
  CHECK(end <= longest_, "position {} in a context of {}", end, longest_);
  const int at_once = Workspace::ExpandedHeads(shape(), compute_format(), longest_);
  for (int head = 0; head < num_heads; head += at_once) {
    const int count = std::min(at_once, num_heads - head);
    Expand(sequence, end, head, count);
    AttendExpanded(run, head, count);
  }
  context_.statistics.kv_bytes += int64_t{end} * cache_.TokenBytes(layer_->cache_layer);
}

// Keys and values of the heads at positions [0, end) to expanded_blocks.
void LatentAttention::Expand(const SequenceStep& sequence, int end, int first_head, int num_heads) {
  const Workspace& buffers = context_.workspace;
  const weights::LatentWeights& weights = *weights_->latent;
  const int key_rows = weights::LatentWeights::HeadRows(latent().nope_dim);
  const int value_rows = weights::LatentWeights::HeadRows(shape().value_dim);
  const auto keys = weights::LatentWeights::Heads(weights.key_up, first_head, num_heads, key_rows);
  const auto values =
      weights::LatentWeights::Heads(weights.value_up, first_head, num_heads, value_rows);
  for (int first = 0; first < end; first += Workspace::kExpandedRows) {
    const int count = std::min(Workspace::kExpandedRows, end - first);
    const int num_blocks = (count + kKvBlockTokens - 1) / kKvBlockTokens;
    context_.pool.ParallelFor(num_blocks, [&](int64_t block, int) {
      const int64_t row = block * kKvBlockTokens;
      const int num_slots = static_cast<int>(std::min<int64_t>(kKvBlockTokens, count - row));
      const int stored = sequence.blocks[first / kKvBlockTokens + block];
      context_.kernels.load_keys({.format = cache_.format(),
                                  .key_dim = latent().key_dim(),
                                  .num_slots = num_slots,
                                  .block = cache_.Block(layer_->cache_layer, 0, stored),
                                  .out = buffers.cached_keys.floats(row),
                                  .out_stride = buffers.cached_keys.stride_bytes / 4});
      for (int slot = 0; slot < num_slots; ++slot) {
        context_.ToActivations(buffers.cached_keys.floats(row + slot) + latent().rope_dim,
                               latent().kv_rank, buffers.cached_latents.row(row + slot));
      }
    });
    context_.Multiply(keys, buffers.cached_latents, count, Epilogue::kStore, buffers.expanded_keys);
    context_.Multiply(values, buffers.cached_latents, count, Epilogue::kStore,
                      buffers.expanded_values);
    StoreExpanded(first, count, num_heads);
  }
}

void LatentAttention::StoreExpanded(int first_position, int count, int num_heads) {
  const Workspace& buffers = context_.workspace;
  const int key_rows = weights::LatentWeights::HeadRows(latent().nope_dim);
  const int value_rows = weights::LatentWeights::HeadRows(shape().value_dim);
  const int num_blocks = (count + kKvBlockTokens - 1) / kKvBlockTokens;
  context_.pool.ParallelFor(int64_t{num_blocks} * num_heads, [&](int64_t index, int) {
    const auto head = static_cast<int>(index / num_blocks);
    const auto block = static_cast<int>(index % num_blocks);
    const int64_t target =
        int64_t{head} * blocks_per_head() + first_position / kKvBlockTokens + block;
    const int num_slots = std::min(kKvBlockTokens, count - block * kKvBlockTokens);
    const int64_t row = int64_t{block} * kKvBlockTokens;
    context_.kernels.store_kv({.format = compute_format(),
                               .key_dim = shape().head_dim,
                               .value_dim = shape().value_dim,
                               .shared_dim = latent().rope_dim,
                               .num_rows = num_slots,
                               .shared = buffers.cached_keys.floats(row),
                               .keys = buffers.expanded_keys.floats(row) + head * key_rows,
                               .values = buffers.expanded_values.floats(row) + head * value_rows,
                               .shared_stride = buffers.cached_keys.stride_bytes / 4,
                               .key_stride = buffers.expanded_keys.stride_bytes / 4,
                               .value_stride = buffers.expanded_values.stride_bytes / 4,
                               .block = buffers.expanded_blocks.row(target)});
  });
}

void LatentAttention::AttendExpanded(const RowRun& run, int first_head, int num_heads) {
  const Workspace& buffers = context_.workspace;
  while (std::ssize(expanded_blocks_) < int64_t{num_heads} * blocks_per_head()) {
    const auto next = static_cast<int32_t>(expanded_blocks_.size());
    expanded_blocks_.push_back(buffers.expanded_blocks.row(next));
    expanded_block_ids_.push_back(next);
  }
  const int64_t query_stride =
      kernels::PaddedHead(shape().head_dim) * ElementBytes(kernels::QueryFormat(compute_format()));
  const int64_t out_stride = shape().value_dim * ElementBytes(buffers.wide_format);
  calls_.clear();
  for (int i = 0; i < num_heads; ++i) {
    const int head = first_head + i;
    for (int token = 0; token < run.num_rows; token += kernels::kAttentionRows) {
      calls_.push_back(
          {.format = compute_format(),
           .out_format = buffers.wide_format,
           .key_dim = shape().head_dim,
           .value_dim = shape().value_dim,
           .scale = shape().scale,
           .num_tokens = std::min(kernels::kAttentionRows, run.num_rows - token),
           .num_heads = 1,
           .first_position = rows().position(run.first_row + token),
           .queries = buffers.queries.row(run.first_row + token) + head * query_stride,
           .query_token_stride = buffers.queries.stride_bytes,
           .query_head_stride = query_stride,
           .kv_blocks = expanded_blocks_.data(),
           .blocks = expanded_block_ids_.data() + int64_t{i} * blocks_per_head(),
           .out = activations().attention_wide.row(run.first_out_row + token) + head * out_stride,
           .out_token_stride = activations().attention_wide.stride_bytes,
           .out_head_stride = out_stride});
    }
  }
  attender_.Run(calls_);
}

void LatentAttention::RunAbsorbed() {
  // A few rows at a time: all heads of a row are wide.
  batch_.clear();
  int num_rows = 0;
  const auto run_batch = [&] {
    AbsorbQueries(num_rows);
    AttendAbsorbed(num_rows);
    ProjectOutputs(num_rows);
    batch_.clear();
    num_rows = 0;
  };
  for (RowRun run : absorbed_) {
    const int64_t last = rows().position(run.first_row + run.num_rows - 1);
    context_.statistics.kv_bytes += (last + 1) * cache_.TokenBytes(layer_->cache_layer);
    while (run.num_rows > 0) {
      const int count = std::min(run.num_rows, Workspace::kAbsorbedRows - num_rows);
      batch_.push_back({run.sequence_idx, run.first_row, count, run.first_out_row});
      num_rows += count;
      run.first_row += count;
      run.first_out_row += count;
      run.num_rows -= count;
      if (num_rows == Workspace::kAbsorbedRows) run_batch();
    }
  }
  if (num_rows > 0) run_batch();
}

// Calls f(i, row, out_row) for each row of the batch.
template <typename F>
void LatentAttention::ForEachRow(F&& f) const {
  int i = 0;
  for (const RowRun& run : batch_) {
    for (int j = 0; j < run.num_rows; ++j) f(i++, run.first_row + j, run.first_out_row + j);
  }
}

// For each head with all rows of the batch: head_in times its matrix to head_out. Rows lie head
// after head.
void LatentAttention::MultiplyHeads(std::span<const kernels::PackedMatrix> heads, int num_rows) {
  for (const kernels::PackedMatrix& matrix : heads) {
    const int first_row = static_cast<int>(groups_.size()) * num_rows;
    groups_.push_back({.weights = &matrix, .first_row = first_row, .num_rows = num_rows});
  }
  const Workspace& buffers = context_.workspace;
  context_.MultiplyGroups(groups_, buffers.head_in, Epilogue::kStore, buffers.head_out);
  groups_.clear();
}

// absorbed_queries: a head's rotated part as it is, its other part as the latent sees it.
void LatentAttention::AbsorbQueries(int num_rows) {
  const Workspace& buffers = context_.workspace;
  const int num_heads = shape().num_heads;
  batch_queries_.resize(num_rows);
  ForEachRow([&](int i, int row, int) { batch_queries_[i] = Query(row); });
  context_.pool.ParallelFor(
      int64_t{num_heads} * num_rows,
      [&](int64_t index, int) {
        const float* query = batch_queries_[index % num_rows];
        const int64_t head = index / num_rows;
        context_.ToActivations(query + head * shape().head_dim + latent().rope_dim,
                               latent().nope_dim, buffers.head_in.row(index));
      },
      16);
  MultiplyHeads(weights_->latent->query_in, num_rows);
  const kernels::ActivationFormat format = kernels::QueryFormat(cache_.format());
  const int padded = kernels::PaddedHead(latent().key_dim());
  const int rope_dim = latent().rope_dim;
  context_.pool.ParallelFor(
      int64_t{num_heads} * num_rows,
      [&](int64_t index, int) {
        const int64_t row = index % num_rows;
        const int64_t head = index / num_rows;
        const float* query = batch_queries_[row] + head * shape().head_dim;
        std::byte* out = buffers.absorbed_queries.row(row) + head * padded * ElementBytes(format);
        context_.kernels.convert(format, query, rope_dim, rope_dim, out);
        context_.kernels.convert(format, buffers.head_out.floats(index), latent().kv_rank,
                                 padded - rope_dim, out + rope_dim * ElementBytes(format));
      },
      16);
}

// All heads share the latents; the outputs, latents too, go to head_out.
void LatentAttention::AttendAbsorbed(int num_rows) {
  const Workspace& buffers = context_.workspace;
  const int num_heads = shape().num_heads;
  const int heads_per_call = std::min(num_heads, kernels::kAttentionRows);
  const int tokens_per_call = kernels::kAttentionRows / heads_per_call;
  const int64_t query_stride =
      kernels::PaddedHead(latent().key_dim()) * ElementBytes(kernels::QueryFormat(cache_.format()));
  calls_.clear();
  int first = 0;  // of the run's rows in the batch
  for (const RowRun& run : batch_) {
    for (int head = 0; head < num_heads; head += heads_per_call) {
      for (int token = 0; token < run.num_rows; token += tokens_per_call) {
        calls_.push_back(
            {.format = cache_.format(),
             .out_format = kernels::ActivationFormat::kF32,
             .key_dim = latent().key_dim(),
             .value_dim = latent().kv_rank,
             .value_in_key = latent().rope_dim,
             .scale = shape().scale,
             .num_tokens = std::min(tokens_per_call, run.num_rows - token),
             .num_heads = std::min(heads_per_call, num_heads - head),
             .first_position = rows().position(run.first_row + token),
             .queries = buffers.absorbed_queries.row(first + token) + head * query_stride,
             .query_token_stride = buffers.absorbed_queries.stride_bytes,
             .query_head_stride = query_stride,
             .kv_blocks = cache_.blocks(layer_->cache_layer),
             .blocks = rows().step()[run.sequence_idx].blocks.data(),
             .out = buffers.head_out.row(int64_t{head} * num_rows + first + token),
             .out_token_stride = buffers.head_out.stride_bytes,
             .out_head_stride = num_rows * buffers.head_out.stride_bytes});
      }
    }
    first += run.num_rows;
  }
  attender_.Run(calls_);
}

void LatentAttention::ProjectOutputs(int num_rows) {
  const Workspace& buffers = context_.workspace;
  const int num_heads = shape().num_heads;
  context_.pool.ParallelFor(
      int64_t{num_heads} * num_rows,
      [&](int64_t index, int) {
        context_.ToActivations(buffers.head_out.floats(index), latent().kv_rank,
                               buffers.head_in.row(index));
      },
      16);
  const weights::LatentWeights& weights = *weights_->latent;
  const int head_rows = weights::LatentWeights::HeadRows(shape().value_dim);
  for (int head = 0; head < num_heads; ++head) {
    head_matrices_.push_back(weights::LatentWeights::Heads(weights.value_up, head, 1, head_rows));
  }
  MultiplyHeads(head_matrices_, num_rows);
  head_matrices_.clear();
  const int64_t out_bytes = shape().value_dim * ElementBytes(buffers.wide_format);
  batch_out_rows_.resize(num_rows);
  ForEachRow([&](int i, int, int out_row) { batch_out_rows_[i] = out_row; });
  context_.pool.ParallelFor(
      int64_t{num_heads} * num_rows,
      [&](int64_t index, int) {
        const int64_t head = index / num_rows;
        std::byte* out = activations().attention_wide.row(batch_out_rows_[index % num_rows]);
        context_.kernels.convert(buffers.wide_format, buffers.head_out.floats(index),
                                 shape().value_dim, shape().value_dim, out + head * out_bytes);
      },
      16);
}

}  // namespace convene::device
