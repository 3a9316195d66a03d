// The operators between the GEMMs for any instruction set: norms, what comes between the QKV
// projection and attention, and the weighted sum of expert outputs.
#pragma once

#include <cmath>

#include "kernels/cpu/math.h"
#include "kernels/kernel_set.h"

namespace convene::kernels::cpu {

// Calls f(column, count) for vectors of 16 lanes over [0, size), the last one with what is left.
template <typename F>
inline void ForEachVector(int size, F&& f) {
  int column = 0;
  for (; column + kLanes <= size; column += kLanes) f(column, kLanes);
  if (column < size) f(column, size - column);
}

// The first `count` lanes, the others zero.
template <class Isa>
inline typename Isa::Floats FirstLanes(typename Isa::Floats value, int count) {
  float lanes[kLanes];
  Isa::Store(lanes, value);
  return Isa::LoadPartial(lanes, count);
}

// Sum of squares of x - mean.
template <class Isa>
inline float SumOfSquares(const float* x, int size, float mean) {
  auto squares = Isa::Zero();
  const auto center = Isa::Broadcast(mean);
  ForEachVector(size, [&](int column, int count) {
    auto value = Isa::LoadPartial(x + column, count) - center;
    if (count < kLanes) value = FirstLanes<Isa>(value, count);
    squares = Isa::MultiplyAdd(value, value, squares);
  });
  return Isa::Sum(squares);
}

template <class Isa>
inline float Mean(const float* x, int size) {
  auto sum = Isa::Zero();
  ForEachVector(size,
                [&](int column, int count) { sum = sum + Isa::LoadPartial(x + column, count); });
  return Isa::Sum(sum) / static_cast<float>(size);
}

// NaN if x holds one, otherwise infinity if it holds that.
template <class Isa>
inline float LargestMagnitude(const float* x, int size) {
  auto largest = Isa::Zero();
  ForEachVector(size, [&](int column, int count) {
    largest = Isa::MaxMagnitude(largest, Isa::Abs(Isa::LoadPartial(x + column, count)));
  });
  return Isa::LargestMagnitude(largest);
}

// x (size) as an int8 row: values, sums of blocks, scale. The same bits on all instruction sets. Of
// a row that is not finite the scale is not, either.
template <class Isa>
void Quantize(const float* x, int size, void* out) {
  const float top = LargestMagnitude<Isa>(x, size);
  const auto inverse = Isa::Broadcast(Int8Inverse(top));
  const int padded = PaddedDepth(size);
  auto* values = static_cast<int8_t*>(out);
  int32_t* block_sums = BlockSums(out, padded);
  uint32_t total = 0;  // which may wrap around where the row is not finite
  for (int block = 0; block < padded; block += kInt4Block) {
    auto sum = Isa::ZeroInts();
    for (int column = block; column < block + kInt4Block; column += kLanes) {
      const int left = size - column;
      const int count = left < 0 ? 0 : left < kLanes ? left : kLanes;
      const auto whole = Isa::RoundToInts(Isa::LoadPartial(x + column, count) * inverse);
      Isa::StoreInt8(values + column, whole);
      sum = Isa::AddInts(sum, whole);
    }
    *block_sums = Isa::SumInts(sum);
    total += static_cast<uint32_t>(*block_sums++);
  }
  *RowEnd(out, padded) = {.scale = top / 127.0f, .sum = static_cast<int32_t>(total)};
}

template <class Isa>
void Normalize(const Norm& norm, const float* x, void* out_activations, float* out_float) {
  const bool int8 = norm.format == ActivationFormat::kInt8;
  const float mean = norm.kind == NormKind::kLayer ? Mean<Isa>(x, norm.size) : 0.0f;
  const float variance = SumOfSquares<Isa>(x, norm.size, mean) / static_cast<float>(norm.size);
  const auto scale = Isa::Broadcast(1.0f / std::sqrt(variance + norm.epsilon));
  const auto center = Isa::Broadcast(mean);
  ForEachVector(norm.size, [&](int column, int count) {
    const auto centered = Isa::LoadPartial(x + column, count) - center;
    const auto value = centered * scale * Isa::LoadPartial(norm.weight + column, count);
    if (out_activations != nullptr && !int8) {
      StoreActivations<Isa>(norm.format, out_activations, column, value, count);
    }
    if (out_float != nullptr) Isa::StorePartial(out_float + column, value, count);
  });
  if (out_activations == nullptr) return;
  if (int8) return Quantize<Isa>(out_float, norm.size, out_activations);
  ForEachVector(PaddedDepth(norm.size) - norm.size, [&](int column, int count) {
    StoreActivations<Isa>(norm.format, out_activations, norm.size + column, Isa::Zero(), count);
  });
}

template <class Isa>
inline void RmsNormInPlace(float* x, int size, const float* weight, float epsilon) {
  const Norm norm{.epsilon = epsilon, .weight = weight, .size = size};
  Normalize<Isa>(norm, x, nullptr, x);
}

template <class Isa>
inline void NormalizeHeads(const QkvShape& shape, float* x, int num_heads, const float* weight) {
  if (shape.norm == QkNorm::kWholeProjection) {
    RmsNormInPlace<Isa>(x, num_heads * shape.head_dim, weight, shape.epsilon);
  } else if (shape.norm == QkNorm::kPerHead) {
    for (int head = 0; head < num_heads; ++head) {
      RmsNormInPlace<Isa>(x + head * shape.head_dim, shape.head_dim, weight, shape.epsilon);
    }
  }
}

template <class Isa>
inline void Rotate(float* head, const QkvShape& shape, const QkvToken& token) {
  const int half = shape.rotary_dim / 2;
  ForEachVector(half, [&](int i, int count) {
    const auto cosine = Isa::LoadPartial(token.cosine + i, count);
    const auto sine = Isa::LoadPartial(token.sine + i, count);
    const auto first = Isa::LoadPartial(head + i, count);
    const auto second = Isa::LoadPartial(head + half + i, count);
    Isa::StorePartial(head + i, first * cosine - second * sine, count);
    Isa::StorePartial(head + half + i, second * cosine + first * sine, count);
  });
}

template <class Isa>
void Convert(ActivationFormat format, const float* x, int size, int padded, void* out) {
  ForEachVector(padded, [&](int i, int count) {
    const int left = size - i;
    const int from = left < 0 ? 0 : left < count ? left : count;
    StoreActivations<Isa>(format, out, i, Isa::LoadPartial(x + i, from), count);
  });
}

template <class Isa>
void PrepareQkv(const QkvShape& shape, const QkvToken& token) {
  const int query_dim = shape.num_heads * shape.head_dim;
  const int kv_dim = shape.num_kv_heads * shape.head_dim;
  const int qkv_dim = query_dim + kv_dim + shape.num_kv_heads * shape.value_dim;
  float* queries = token.qkv;
  float* keys = queries + query_dim;
  NormalizeHeads<Isa>(shape, queries, shape.num_heads, shape.query_norm);
  NormalizeHeads<Isa>(shape, keys, shape.num_kv_heads, shape.key_norm);
  if (shape.clip > 0) {
    const auto limit = Isa::Broadcast(shape.clip);
    ForEachVector(qkv_dim, [&](int i, int count) {
      const auto value = Isa::LoadPartial(token.qkv + i, count);
      Isa::StorePartial(token.qkv + i, Isa::Min(limit, Isa::Max(Isa::Zero() - limit, value)),
                        count);
    });
  }
  const int padded_dim = PaddedHead(shape.head_dim);
  for (int head = 0; head < shape.num_heads; ++head) {
    float* query = queries + head * shape.head_dim;
    Rotate<Isa>(query, shape, token);
    const int64_t first = int64_t{head} * padded_dim;
    ForEachVector(padded_dim, [&](int i, int) {
      const int left = shape.head_dim - i;
      const int count = left < 0 ? 0 : left < kLanes ? left : kLanes;
      StoreActivations<Isa>(QueryFormat(shape.format), token.queries, first + i,
                            Isa::LoadPartial(query + i, count), kLanes);
    });
  }
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    Rotate<Isa>(keys + head * shape.head_dim, shape, token);
  }
}

template <class Isa>
void CombineRows(const Combine& combine) {
  const auto shared_weight = Isa::Broadcast(combine.shared_weight);
  ForEachVector(combine.size, [&](int column, int count) {
    typename Isa::Floats sums[kMaxTopK];
    sums[0] = Isa::Zero();
    for (int row = 0; row < combine.count; ++row) {
      sums[row] = Isa::Broadcast(combine.weights[row]) *
                  Isa::LoadPartial(combine.rows[row] + column, count);
    }
    for (int merge = 0; merge + 1 < combine.count; ++merge) {
      const Merge step = combine.merges[merge];
      sums[step.into] = sums[step.into] + sums[step.from];
    }
    auto total = sums[0];
    if (combine.shared != nullptr) {
      total = total + shared_weight * Isa::LoadPartial(combine.shared + column, count);
    }
    if (combine.scale != 1.0f) total = total * Isa::Broadcast(combine.scale);
    Isa::StorePartial(combine.out + column, Isa::LoadPartial(combine.out + column, count) + total,
                      count);
  });
}

}  // namespace convene::kernels::cpu
