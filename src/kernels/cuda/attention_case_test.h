// Cases of attention for tests and measurements: sequences whose queries, keys and values follow
// from a seed and positions alone, a paged cache in which all else is NaN, and what attention is by
// its definition, in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/device_memory_test.h"

namespace convene::kernels::cuda {

// Rows at positions [first, first + count) of a sequence that is no longer than that; where
// num_keys is given, it has so many keys, and each row sees them all.
struct CaseSequence {
  uint32_t seed = 1;
  int first = 0;
  int count = 1;
  int num_keys = 0;

  int keys() const { return num_keys > 0 ? num_keys : first + count; }
};

inline Bf16 RoundToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<Bf16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float WidenBf16(Bf16 value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float widened;
  std::memcpy(&widened, &bits, sizeof(widened));
  return widened;
}

struct AttentionCase {
  AttentionShape shape;
  std::vector<float> sinks;  // (num_heads) or empty
  int bias_reach = 0;        // more than 0: with a bias
  int num_multiprocessors = 132;

  int group() const { return shape.num_heads / shape.num_kv_heads; }
  int out_width() const { return shape.num_heads * shape.value_dim; }
  int cached_value_dim() const { return shape.value_in_key < 0 ? shape.value_dim : 0; }
  int64_t bias_stride() const { return 2 * bias_reach + 1 + 2 * 16; }

  enum Kind { kQuery, kKey, kValue, kBias };
  // All heads' elements of one position.
  std::vector<Bf16> Elements(const CaseSequence& sequence, Kind kind, int position) const {
    const int size = kind == kQuery ? shape.num_heads * shape.key_dim
                     : kind == kKey ? shape.num_kv_heads * shape.key_dim
                                    : shape.num_kv_heads * shape.value_dim;
    std::minstd_rand random(sequence.seed * 7919 + static_cast<uint32_t>(position) * 4 + kind);
    random.discard(3);
    std::vector<Bf16> elements(static_cast<size_t>(size));
    const float scale = kind == kQuery ? 2.0f : 1.0f;
    for (Bf16& element : elements) {
      // Of a variance of about one.
      float sum = 0;
      for (int i = 0; i < 3; ++i) sum += static_cast<float>(random()) / 2147483647.0f - 0.5f;
      element = RoundToBf16(2 * scale * sum);
    }
    return elements;
  }
  std::vector<float> Bias() const {
    std::vector<float> table(static_cast<size_t>(bias_stride() * shape.num_heads));
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0, 4);
    for (float& value : table) value = normal(random);
    for (int head = 0; head < shape.num_heads; ++head) {
      float* of_head = table.data() + head * bias_stride();
      std::fill_n(of_head, 16, of_head[16]);
      std::fill_n(of_head + bias_stride() - 16, 16, of_head[bias_stride() - 17]);
    }
    return table;
  }
};

// A step's inputs in the device's memory.
class AttentionStep {
 public:
  AttentionStep(const AttentionCase& of, const std::vector<CaseSequence>& sequences)
      : case_(of), sequences_(sequences) {
    const AttentionShape& shape = of.shape;
    int num_blocks = 0;
    int num_rows = 0;
    for (const CaseSequence& sequence : sequences) {
      rows_.push_back({.first_row = num_rows,
                       .num_rows = sequence.count,
                       .first_position = sequence.first,
                       .num_keys = sequence.num_keys,
                       .first_out_row = num_rows,
                       .first_block = num_blocks});
      num_rows += sequence.count;
      num_blocks += (sequence.keys() + 63) / 64;
    }
    num_rows_ = num_rows;
    query_stride_ = (shape.num_heads * shape.key_dim + 63) / 64 * 64;
    std::vector<int32_t> numbers(static_cast<size_t>(num_blocks));
    std::iota(numbers.begin(), numbers.end(), 0);
    std::shuffle(numbers.begin(), numbers.end(), std::mt19937(3));

    constexpr Bf16 kNan = 0x7fff;
    const int64_t block_elements =
        KvBlockElements(shape.num_kv_heads, shape.key_dim, of.cached_value_dim());
    std::vector<Bf16> cache(static_cast<size_t>(num_blocks * block_elements), kNan);
    std::vector<Bf16> queries(static_cast<size_t>(num_rows * query_stride_), kNan);
    for (size_t i = 0; i < sequences.size(); ++i) {
      for (int key = 0; key < sequences[i].keys(); ++key) {
        Bf16* block = cache.data() + numbers[static_cast<size_t>(rows_[i].first_block + key / 64)] *
                                         block_elements;
        Store(sequences[i], AttentionCase::kKey, key, shape.key_dim, block);
        block += int64_t{64} * shape.num_kv_heads * shape.key_dim;
        if (shape.value_in_key < 0) {
          Store(sequences[i], AttentionCase::kValue, key, shape.value_dim, block);
        }
      }
      for (int row = 0; row < sequences[i].count; ++row) {
        const std::vector<Bf16> query =
            of.Elements(sequences[i], AttentionCase::kQuery, sequences[i].first + row);
        std::copy(query.begin(), query.end(),
                  queries.begin() + (rows_[i].first_row + row) * query_stride_);
      }
    }
    cache_ = DeviceArray<Bf16>(cache);
    queries_ = DeviceArray<Bf16>(queries);
    blocks_ = DeviceArray<int32_t>(numbers);
    std::vector<const std::byte*> kv_blocks(static_cast<size_t>(num_blocks));
    for (int i = 0; i < num_blocks; ++i) {
      kv_blocks[static_cast<size_t>(i)] =
          reinterpret_cast<const std::byte*>(cache_.data() + i * block_elements);
    }
    kv_blocks_ = DeviceArray<const std::byte*>(kv_blocks);
    device_rows_ = DeviceArray<QueryRows>(rows_);
    out_ =
        DeviceArray<Bf16>(std::vector<Bf16>(static_cast<size_t>(num_rows * of.out_width()), kNan));
    if (!of.sinks.empty()) sinks_ = DeviceArray<float>(of.sinks);
    if (of.bias_reach > 0) bias_ = DeviceArray<float>(of.Bias());
    plan_ = PlanAttention(shape, rows_, of.num_multiprocessors);
    work_ = DeviceArray<AttentionWork>(plan_.work);
    folds_ = DeviceArray<AttentionWork>(plan_.folds);
    partials_ = DeviceArray<float>(
        std::vector<float>(static_cast<size_t>(plan_.partial_floats), std::nanf("")));
  }

  void Run(StreamHandle stream = nullptr) const {
    Attend(case_.shape,
           {.work = work_.data(),
            .num_work = static_cast<int>(plan_.work.size()),
            .folds = folds_.data(),
            .num_folds = static_cast<int>(plan_.folds.size()),
            .sequences = device_rows_.data(),
            .blocks = blocks_.data(),
            .kv_blocks = kv_blocks_.data(),
            .queries = queries_.data(),
            .query_stride = query_stride_,
            .sinks = case_.sinks.empty() ? nullptr : sinks_.data(),
            .bias = case_.bias_reach > 0 ? bias_.data() : nullptr,
            .bias_head_stride = case_.bias_stride(),
            .bias_reach = case_.bias_reach,
            .partials = partials_.data(),
            .out = out_.data(),
            .out_stride = case_.out_width()},
           stream);
  }

  // Of each sequence, (count, num_heads, value_dim).
  std::vector<std::vector<Bf16>> Outputs() const {
    const std::vector<Bf16> all = out_.Host();
    std::vector<std::vector<Bf16>> outputs;
    for (const QueryRows& rows : rows_) {
      const auto begin = all.begin() + int64_t{rows.first_out_row} * case_.out_width();
      outputs.emplace_back(begin, begin + int64_t{rows.num_rows} * case_.out_width());
    }
    return outputs;
  }

  const AttentionPlan& plan() const { return plan_; }
  const std::vector<QueryRows>& rows() const { return rows_; }

 private:
  void Store(const CaseSequence& sequence, AttentionCase::Kind kind, int key, int dim,
             Bf16* to) const {
    const std::vector<Bf16> elements = case_.Elements(sequence, kind, key);
    for (int head = 0; head < case_.shape.num_kv_heads; ++head) {
      std::copy_n(elements.begin() + head * dim, dim, to + (int64_t{head} * 64 + key % 64) * dim);
    }
  }

  const AttentionCase case_;
  const std::vector<CaseSequence> sequences_;
  std::vector<QueryRows> rows_;
  int num_rows_ = 0;
  int64_t query_stride_ = 0;
  AttentionPlan plan_;
  DeviceArray<Bf16> cache_;
  DeviceArray<Bf16> queries_;
  DeviceArray<Bf16> out_;
  DeviceArray<int32_t> blocks_;
  DeviceArray<const std::byte*> kv_blocks_;
  DeviceArray<QueryRows> device_rows_;
  DeviceArray<AttentionWork> work_;
  DeviceArray<AttentionWork> folds_;
  DeviceArray<float> partials_;
  DeviceArray<float> sinks_;
  DeviceArray<float> bias_;
};

inline std::vector<std::vector<Bf16>> RunAttention(const AttentionCase& of,
                                                   const std::vector<CaseSequence>& sequences) {
  const AttentionStep step(of, sequences);
  step.Run();
  return step.Outputs();
}

// The largest error of a sequence's rows, each `every`-th of them, as a multiple of what rounding
// allows: probabilities and outputs are rounded to bf16 once each, by up to 2^-8 of their size.
inline double WorstError(const AttentionCase& of, const CaseSequence& sequence,
                         const std::vector<Bf16>& outputs, int every = 1) {
  const AttentionShape& shape = of.shape;
  std::vector<std::vector<Bf16>> keys;
  std::vector<std::vector<Bf16>> values;
  for (int key = 0; key < sequence.keys(); ++key) {
    keys.push_back(of.Elements(sequence, AttentionCase::kKey, key));
    if (shape.value_in_key < 0) {
      values.push_back(of.Elements(sequence, AttentionCase::kValue, key));
    }
  }
  const std::vector<float> bias = of.bias_reach > 0 ? of.Bias() : std::vector<float>();
  const auto value_at = [&](int key, int kv_head, int i) {
    const auto at = static_cast<size_t>(key);
    return shape.value_in_key < 0
               ? WidenBf16(values[at][static_cast<size_t>(kv_head * shape.value_dim + i)])
               : WidenBf16(keys[at][static_cast<size_t>(kv_head * shape.key_dim +
                                                        shape.value_in_key + i)]);
  };
  double worst = 0;
  for (int row = 0; row < sequence.count; row += every) {
    const int position = sequence.first + row;
    const std::vector<Bf16> query = of.Elements(sequence, AttentionCase::kQuery, position);
    const int begin = shape.window > 0 ? std::max(0, position - shape.window + 1) : 0;
    const int end = sequence.num_keys > 0 ? sequence.num_keys : position + 1;
    for (int head = 0; head < shape.num_heads; ++head) {
      const int kv_head = head / of.group();
      std::vector<double> scores;
      double top = of.sinks.empty() ? -1e300 : of.sinks[static_cast<size_t>(head)];
      for (int key = begin; key < end; ++key) {
        double score = 0;
        for (int i = 0; i < shape.key_dim; ++i) {
          score +=
              double{WidenBf16(query[static_cast<size_t>(head * shape.key_dim + i)])} *
              WidenBf16(
                  keys[static_cast<size_t>(key)][static_cast<size_t>(kv_head * shape.key_dim + i)]);
        }
        if (of.bias_reach > 0) {
          const int distance = std::clamp(key - position, -of.bias_reach, of.bias_reach);
          score +=
              bias[static_cast<size_t>(head * of.bias_stride() + 16 + of.bias_reach + distance)];
        }
        scores.push_back(score * shape.scale);
        top = std::max(top, scores.back());
      }
      double sum = of.sinks.empty() ? 0 : std::exp(of.sinks[static_cast<size_t>(head)] - top);
      for (double& score : scores) sum += score = std::exp(score - top);
      for (int i = 0; i < shape.value_dim; ++i) {
        double out = 0;
        double size = 0;
        for (int key = begin; key < end; ++key) {
          const double share = scores[static_cast<size_t>(key - begin)] / sum;
          out += share * value_at(key, kv_head, i);
          size += share * std::abs(value_at(key, kv_head, i));
        }
        const double got = WidenBf16(
            outputs[static_cast<size_t>((row * shape.num_heads + head) * shape.value_dim + i)]);
        const double allowed = (std::abs(out) + size) / 256 + 1e-6;
        const double error = std::abs(got - out) / allowed;
        worst = error <= worst ? worst : error;  // NaN counts
        if (!(error <= 1e30)) return 1e30;
      }
    }
  }
  return worst;
}

}  // namespace convene::kernels::cuda
